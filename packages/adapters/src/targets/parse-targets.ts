/**
 * The targets of handoffs, from a file or from code: everything that is wrong at once, or the frozen entries. No finding repeats a value,
 * which may be an address or a key in the wrong place.
 */
import { readFileSync } from 'node:fs';
import { findingsOf, isJsonObject, KernelError, meant, normalizePlatform, safeParse } from '@boxcar/kernel';
import { type Document, isNode, LineCounter, parseDocument, visit } from 'yaml';
import { namedPlatforms, schemaOf, type Target } from './target.js';

/** The entries by the name of the target agent. */
export type Targets = ReadonlyMap<string, Target>;

export interface ParseTargetsOptions {
  /** The first names of the platforms that the program has registered. */
  readonly customPlatforms?: readonly string[] | undefined;
}

interface TargetFinding {
  readonly path: readonly string[];
  readonly message: string;
}

function platformFinding(platform: unknown, customPlatforms: readonly string[]): string {
  const known = namedPlatforms(customPlatforms);
  if (typeof platform !== 'string') return `must be one of ${known.join(', ')}`;
  if (normalizePlatform(platform) === 'agdd')
    return 'an agent of this installation needs no entry; remove it';
  return `must be one of ${known.join(', ')}${meant(platform.toLowerCase(), known)}`;
}

/** An entry, or what is wrong with it. */
function readTarget(
  name: string,
  input: unknown,
  customPlatforms: readonly string[],
): Target | readonly TargetFinding[] {
  if (name.trim() === '') return [{ path: [name], message: 'the name of a target must not be blank' }];
  if (!isJsonObject(input)) return [{ path: [name], message: 'must be an object' }];
  const { platform } = input;
  const schema = typeof platform === 'string' ? schemaOf(platform, customPlatforms) : undefined;
  if (schema === undefined || typeof platform !== 'string')
    return [{ path: [name, 'platform'], message: platformFinding(platform, customPlatforms) }];
  const first = normalizePlatform(platform) ?? platform.toLowerCase();
  const parsed = safeParse(schema, { ...input, platform: first });
  if (parsed.success) return Object.freeze(parsed.data);
  return findingsOf(parsed.error).map(({ path, message }) => ({
    path: [name, ...(path === '' ? [] : path.split('.'))],
    message,
  }));
}

function readTargets(
  input: unknown,
  { customPlatforms = [] }: ParseTargetsOptions,
  refuse: (finding: TargetFinding) => void,
): Targets {
  const targets = new Map<string, Target>();
  if (!isJsonObject(input)) {
    refuse({ path: [], message: 'must be an object: the name of each target, and its entry' });
    return targets;
  }
  for (const [name, entry] of Object.entries(input)) {
    const read = readTarget(name, entry, customPlatforms);
    if (Array.isArray(read)) read.forEach(refuse);
    else targets.set(name, read as Target);
  }
  return targets;
}

/** Words in double quotes: an error takes what is between two single quotes for one word, and shortens it. */
const wordsOf = ({ path, message }: TargetFinding, root: string): string =>
  `${path.length === 0 ? root : path.join('.')}: ${message.replaceAll("'", '"')}`;

/**
 * Checks targets that a program gives in code.
 *
 * @throws KernelError `bad_config` with all findings.
 */
export function checkTargets(input: unknown, options: ParseTargetsOptions = {}): Targets {
  const findings: string[] = [];
  const targets = readTargets(input, options, (finding) => findings.push(wordsOf(finding, 'targets')));
  if (findings.length > 0) throw badTargets(findings);
  return targets;
}

const badTargets = (findings: readonly string[]): KernelError =>
  new KernelError('bad_config', { message: `${findings.join('; ')}.`, details: { findings } });

/** Where a finding is in the document: its node, else the nearest node around it. */
function offsetOf(document: Document, path: readonly string[]): number {
  for (let length = path.length; length >= 0; length -= 1) {
    const node: unknown = length === 0 ? document.contents : document.getIn(path.slice(0, length), true);
    if (isNode(node) && node.range) return node.range[0];
  }
  return 0;
}

/**
 * Reads targets from YAML or JSON.
 *
 * @param file - What findings call the text.
 * @throws KernelError `bad_config` with all findings, each `file:line:column path: what`.
 */
export function parseTargets(text: string, file: string, options: ParseTargetsOptions = {}): Targets {
  const lines = new LineCounter();
  const document = parseDocument(text.replace(/^\ufeff/, ''), {
    lineCounter: lines,
    prettyErrors: false,
    stringKeys: true,
  });
  const findings: string[] = [];
  const refuseAt = (offset: number, finding: TargetFinding): void => {
    const { line, col } = lines.linePos(offset);
    findings.push(`${file}:${Math.max(line, 1)}:${Math.max(col, 1)} ${wordsOf(finding, 'targets')}`);
  };
  // The words of the reader may repeat the text around an error.
  for (const { code, pos } of [...document.errors, ...document.warnings])
    refuseAt(pos[0], { path: [], message: `is not valid YAML (${code})` });
  visit(document, {
    Alias: (_key, { range }) =>
      refuseAt(range?.[0] ?? 0, { path: [], message: 'has an alias; write the value itself' }),
  });
  if (findings.length > 0) throw badTargets(findings);
  const input: unknown = document.contents === null ? {} : document.toJS();
  const targets = readTargets(input, options, (finding) =>
    refuseAt(offsetOf(document, finding.path), finding),
  );
  if (findings.length > 0) throw badTargets(findings);
  return targets;
}

/**
 * Reads the targets of a file.
 *
 * @throws KernelError `bad_config` when it cannot be read or is not valid.
 */
export function readTargetsFile(file: string, options: ParseTargetsOptions = {}): Targets {
  let text: string;
  try {
    text = readFileSync(file, 'utf8');
  } catch (cause) {
    const code = cause instanceof Error && 'code' in cause ? String(cause.code) : 'unreadable';
    throw new KernelError('bad_config', {
      message: `The file of targets '${file}' cannot be read (${code}).`,
      next: 'Correct BOXCAR_TARGETS_FILE.',
      details: { file },
      cause,
    });
  }
  return parseTargets(text, file, options);
}
