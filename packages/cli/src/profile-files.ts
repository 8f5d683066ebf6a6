/** Profiles from YAML and JSON files: every finding with its file, line and field, before anything is applied. */
import { KernelError, type Profile, parseProfile } from '@boxcar/kernel';
import {
  type Document,
  isMap,
  isNode,
  isPair,
  isScalar,
  LineCounter,
  type Node,
  parseAllDocuments,
} from 'yaml';

export interface ProfileFinding {
  /** `file:line:column`. */
  readonly place: string;
  readonly file: string;
  readonly line: number;
  readonly column: number;
  /** Path inside the profile; empty when the document itself is wrong. */
  readonly field: string;
  readonly message: string;
}

export interface ReadProfile {
  readonly profile: Profile;
  readonly file: string;
  readonly line: number;
}

/** What only a model knows of a profile: its name, its script. */
export type CheckProfile = (profile: Profile) => void;

interface Source {
  readonly file: string;
  readonly lines: LineCounter;
}

function findingAt(source: Source, offset: number, what: { field: string; message: string }): ProfileFinding {
  // A counter that saw no line break says line 0.
  const { line, col } = source.lines.linePos(offset);
  const place = { line: Math.max(line, 1), column: Math.max(col, 1) };
  return { place: `${source.file}:${place.line}:${place.column}`, file: source.file, ...place, ...what };
}

/** Between two separators, or only a comment. */
const isEmpty = ({ contents }: { readonly contents: unknown }): boolean =>
  contents === null || (isScalar(contents) && contents.value === null);

const startOf = (node: unknown): number | undefined => (isNode(node) ? (node as Node).range?.[0] : undefined);

/** Where in the text a path of the profile stands: its key, or the deepest part of it that is there. */
function offsetOf(document: Document, path: readonly string[]): number {
  let node: unknown = document.contents;
  let offset = startOf(node) ?? 0;
  for (const part of path) {
    if (isMap(node)) {
      const pair = node.items.find((item) => isPair(item) && String(item.key) === part);
      if (pair === undefined) break;
      offset = startOf(pair.key) ?? offset;
      node = pair.value;
    } else if (isNode(node) && 'items' in node) {
      node = node.items[Number(part)];
      offset = startOf(node) ?? offset;
    } else {
      break;
    }
  }
  return offset;
}

/** Unknown keys are reported on their parent; the key itself is the better place. */
const unknownKeyOf = (message: string): string | undefined =>
  /^Unrecognized keys?: "([^"]+)"/.exec(message)?.[1];

function findingsOf(error: unknown, document: Document, source: Source): ProfileFinding[] {
  if (!(error instanceof KernelError)) throw error;
  const issues = error.details.issues;
  if (!Array.isArray(issues)) {
    return [findingAt(source, offsetOf(document, []), { field: '', message: error.message })];
  }
  return issues.map(({ path, message }: { path: string; message: string }) => {
    const parts = path.split('.').filter((part) => part !== '');
    const unknown = unknownKeyOf(message);
    const offset = offsetOf(document, unknown === undefined ? parts : [...parts, unknown]);
    return findingAt(source, offset, { field: path, message: path === '' ? message : `${path}: ${message}` });
  });
}

function readDocument(
  document: Document,
  source: Source,
  check: CheckProfile,
): { profile: ReadProfile } | { findings: ProfileFinding[] } {
  const flaws = [...document.errors, ...document.warnings];
  if (flaws.length > 0) {
    return {
      findings: flaws.map((flaw) => findingAt(source, flaw.pos[0], { field: '', message: flaw.message })),
    };
  }
  try {
    const profile = parseProfile(document.toJS());
    check(profile);
    const line = findingAt(source, offsetOf(document, []), { field: '', message: '' }).line;
    return { profile: { profile, file: source.file, line } };
  } catch (error) {
    return { findings: findingsOf(error, document, source) };
  }
}

/**
 * Reads the profiles of files with one or more documents each.
 *
 * @throws KernelError `profile_invalid` with every finding of every file in `details.findings`.
 */
export function readProfiles(
  files: readonly { readonly name: string; readonly text: string }[],
  check: CheckProfile,
): readonly ReadProfile[] {
  const found: ReadProfile[] = [];
  const findings: ProfileFinding[] = [];
  for (const { name, text } of files) {
    const source: Source = { file: name, lines: new LineCounter() };
    const documents = parseAllDocuments(text, { lineCounter: source.lines, prettyErrors: false });
    const filled = Array.isArray(documents)
      ? documents.filter((document) => !isEmpty(document) || document.errors.length > 0)
      : [];
    if (filled.length === 0) findings.push(findingAt(source, 0, { field: '', message: 'holds no profile' }));
    for (const document of filled) {
      const read = readDocument(document as Document, source, check);
      if ('findings' in read) {
        findings.push(...read.findings);
        continue;
      }
      const { profile, line } = read.profile;
      const earlier = found.find((other) => other.profile.name === profile.name);
      if (earlier !== undefined) {
        const message = `name: '${profile.name}' stands in ${earlier.file}:${earlier.line} too`;
        findings.push(
          findingAt(source, offsetOf(document as Document, ['name']), { field: 'name', message }),
        );
      }
      found.push({ profile, file: name, line });
    }
  }
  if (findings.length > 0) {
    const [first] = findings;
    throw new KernelError('profile_invalid', {
      message: `${first?.place}: ${first?.message}${findings.length > 1 ? ` (and ${findings.length - 1} more)` : ''}.`,
      details: { findings },
    });
  }
  return found;
}
