/** The nodes of a YAML document with their positions, and all errors in them. */
import { mustBe, suggest } from '@boxcar/kernel';
import { isAlias, isMap, isNode, isScalar, isSeq, type LineCounter } from 'yaml';

/** One error in a policy. */
export interface PolicyFinding {
  /** From 1. */
  readonly line: number;
  /** From 1, in UTF-16 code units. */
  readonly column: number;
  /** Such as `rules.0.condition.environment`; empty for the file itself. */
  readonly path: string;
  readonly message: string;
}

/** A value of the document with its position. */
export interface Place {
  readonly node: unknown;
  /** The position for findings when the node has no position of its own. */
  readonly offset: number;
  readonly path: string;
}

const offsetOf = (node: unknown, otherwise: number): number =>
  isNode(node) ? (node.range?.[0] ?? otherwise) : otherwise;

/** The kind and value of a node, as far as findings show them. */
function sample(node: unknown): unknown {
  if (isMap(node)) return {};
  if (isSeq(node)) return [];
  return isScalar(node) ? node.value : null;
}

const LONGEST_ECHO = 60;

/** A word of the file, as a finding repeats it. In double quotes: an error treats text between two single quotes as a word. */
export const quoted = (word: string): string =>
  JSON.stringify(word.length > LONGEST_ECHO ? `${word.slice(0, LONGEST_ECHO).toWellFormed()}…` : word);

/** The end of a finding about an unknown word: the closest known word, or empty. */
export function meantWord(word: string, known: readonly string[]): string {
  const near = suggest(word, known);
  return near === undefined ? '' : ` (did you mean ${quoted(near)}?)`;
}

const unknownKey = (key: string, known: readonly string[]): string =>
  `unknown key ${quoted(key)}${meantWord(key, known) || `; known here are ${known.join(', ')}`}`;

const joined = (path: string, part: string | number): string =>
  path === '' ? String(part) : `${path}.${part}`;

/** Reads nodes. A wrong node adds a finding, and reading continues. */
export class NodeReader {
  readonly findings: PolicyFinding[] = [];
  readonly #lines: LineCounter;

  constructor(lines: LineCounter) {
    this.#lines = lines;
  }

  refuseAt(offset: number, path: string, message: string): void {
    // A counter that has seen no line break reports line 0.
    const { line, col } = this.#lines.linePos(offset);
    this.findings.push({ line: Math.max(line, 1), column: Math.max(col, 1), path, message });
  }

  refuse({ node, offset, path }: Place, message: string): void {
    this.refuseAt(offsetOf(node, offset), path, message);
  }

  /** @param what - The kind that was expected, such as "a list". */
  refuseKind(place: Place, what: string): undefined {
    this.refuse(
      place,
      isAlias(place.node) ? 'is an alias; write the value itself' : mustBe(what, sample(place.node)),
    );
  }

  /**
   * The members of a map, by key. A repeated key adds a finding.
   *
   * @param known - The only allowed keys. Default: any.
   * @returns Undefined for a node that is not a map, which adds a finding.
   */
  members(place: Place, known?: readonly string[]): ReadonlyMap<string, Place> | undefined {
    const { node, offset, path } = place;
    if (!isMap(node)) return this.refuseKind(place, 'an object');
    const found = new Map<string, Place>();
    for (const { key, value } of node.items) {
      const name = String(isScalar(key) ? key.value : key);
      const at = offsetOf(key, offset);
      const member = joined(path, name);
      if (found.has(name)) this.refuseAt(at, member, 'is given twice');
      else if (known?.includes(name) === false) this.refuseAt(at, path, unknownKey(name, known));
      else found.set(name, { node: value, offset: at, path: member });
    }
    return found;
  }

  /** The items of a list; undefined for a node that is not a list, which adds a finding. */
  items(place: Place): readonly Place[] | undefined {
    const { node, offset, path } = place;
    if (!isSeq(node)) return this.refuseKind(place, 'a list');
    return node.items.map((item, index) => ({ node: item, offset, path: joined(path, index) }));
  }

  /** The items of a list that is not empty, or the single value in place of a list. */
  itemsOrOne(place: Place): readonly Place[] {
    if (!isSeq(place.node)) return [place];
    const items = this.items(place) ?? [];
    if (items.length === 0) this.refuse(place, 'must not be empty');
    return items;
  }
}
