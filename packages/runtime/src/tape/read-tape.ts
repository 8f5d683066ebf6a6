/** What a tape says to somebody who reads up to a position: which positions a slice means, and the entries in it. Source: docs/tape.md, "Reading". */
import {
  anchorNotFound,
  anchorState,
  type EntryKind,
  isCleanText,
  type JsonObject,
  type JsonValue,
  matchesText,
  type TapeQuery,
  type TapeRecord,
  type TapeSlice,
  toRecord,
} from '@boxcar/kernel';
import {
  countAnchors,
  findAnchor,
  loadEntries,
  loadTapeFacts,
  type PartReader,
  type Queryable,
  type TapeEntryRow,
  type TapeRow,
} from '@boxcar/store';
import type { TapeInfo } from './tape-types.js';

/** Entries that a look for a text reads at once. */
const PAGE = 2_000;

/** A tape's row, and how far it is read. */
export interface OpenedTape {
  readonly row: TapeRow;
  readonly last: number;
  /** Who reads, when that is not all up to `last`. */
  readonly within: PartReader | null;
}

/** A named anchor, as it was found. */
export interface FoundAnchor {
  readonly name: string;
  readonly position: number;
  readonly state: JsonValue;
}

interface Positions {
  readonly from: number;
  readonly to: number;
}

/** The last anchor that is read, and how many there are. */
export async function anchorsUpto(
  db: Queryable,
  { row, last, within }: OpenedTape,
): Promise<{ readonly last: number; readonly count: number }> {
  if (last === row.headPosition && within === null)
    return { last: row.lastAnchorPosition, count: row.anchorCount };
  return countAnchors(db, row.boxId, last, within);
}

/** Where a named anchor stands: the latest, or the first of a range. @throws KernelError `not_found`. */
async function locateAnchor(
  db: Queryable,
  { row, last, within }: OpenedTape,
  name: string,
  { from, edge }: { readonly from: number; readonly edge: 'first' | 'latest' } = { from: 1, edge: 'latest' },
): Promise<number> {
  // No anchor has a name that Postgres could not keep; to be asked for one it would refuse, or ask for another.
  const position = isCleanText(name)
    ? await findAnchor(db, row.boxId, name, { from, to: last, edge, within })
    : undefined;
  if (position === undefined) throw anchorNotFound(name);
  return position;
}

/** The latest anchor of a name, with its state. @throws KernelError `not_found`. */
export async function readAnchor(db: Queryable, opened: OpenedTape, name: string): Promise<FoundAnchor> {
  const position = await locateAnchor(db, opened, name);
  const [entry] = await loadEntries(db, opened.row.boxId, { from: position, to: position });
  return { name, position, state: entry === undefined ? null : anchorState(toRecord(entry)) };
}

/** The positions of a slice, its boundary anchors left out. @throws KernelError `not_found`. */
async function resolveSlice(db: Queryable, opened: OpenedTape, slice: TapeSlice): Promise<Positions> {
  const to = opened.last;
  switch (slice.kind) {
    case 'all':
      return { from: 1, to };
    case 'after_last':
      return { from: (await anchorsUpto(db, opened)).last + 1, to };
    case 'after':
      return { from: (await locateAnchor(db, opened, slice.anchor)) + 1, to };
    case 'between': {
      const from = (await locateAnchor(db, opened, slice.start)) + 1;
      if (slice.end === null) return { from, to };
      return { from, to: (await locateAnchor(db, opened, slice.end, { from, edge: 'first' })) - 1 };
    }
    default:
      return slice satisfies never;
  }
}

/** The entries that a checked query asks for. @throws KernelError `not_found` for a named anchor. */
export async function selectEntries(
  db: Queryable,
  opened: OpenedTape,
  { slice, kinds, from: since, until, limit, text }: TapeQuery,
): Promise<readonly TapeRecord[]> {
  const range = { ...(await resolveSlice(db, opened, slice)), kinds, since, until, within: opened.within };
  const { boxId } = opened.row;
  if (text !== null) return searchEntries(db, { boxId, ...range }, { text, limit: limit ?? Infinity });
  return (await loadEntries(db, boxId, { ...range, limit })).map(toRecord);
}

/** Reads the range page by page, until as many are found. */
async function searchEntries(
  db: Queryable,
  {
    boxId,
    ...range
  }: Positions & {
    readonly boxId: TapeRow['boxId'];
    readonly kinds: readonly EntryKind[];
    readonly since: string | null;
    readonly until: string | null;
    readonly within: OpenedTape['within'];
  },
  { text, limit }: { readonly text: string; readonly limit: number },
): Promise<readonly TapeRecord[]> {
  const found: TapeRecord[] = [];
  for (let from = range.from; from <= range.to && found.length < limit; from += PAGE) {
    const page = await loadEntries(db, boxId, { ...range, from, to: Math.min(range.to, from + PAGE - 1) });
    found.push(...page.map(toRecord).filter((record) => matchesText(record, text)));
  }
  return found.slice(0, limit);
}

/** The entries of a slice, and the anchor that it begins behind. @throws KernelError `not_found`. */
export async function loadSlice(
  db: Queryable,
  opened: OpenedTape,
  slice: TapeSlice,
): Promise<{ readonly anchor: TapeEntryRow | null; readonly entries: readonly TapeEntryRow[] }> {
  const { from, to } = await resolveSlice(db, opened, slice);
  const entries = await loadEntries(db, opened.row.boxId, {
    from: Math.max(1, from - 1),
    to,
    within: opened.within,
  });
  const [first] = entries;
  return first === undefined || first.position >= from
    ? { anchor: null, entries }
    : { anchor: first, entries: entries.slice(1) };
}

/** Counts what the reader may read of a tape, without loading the entries. */
export async function describeTape(db: Queryable, opened: OpenedTape): Promise<TapeInfo> {
  const { row, last, within } = opened;
  const anchors = await anchorsUpto(db, opened);
  const facts = await loadTapeFacts(db, row.boxId, { anchor: anchors.last, head: last, within });
  const total = facts.usage?.total_tokens ?? sumTokens(facts.usage);
  return {
    name: row.name,
    box_id: row.boxId,
    incarnation: row.incarnation,
    entries: facts.entries,
    anchors: anchors.count,
    last_anchor: facts.lastAnchor,
    last_anchor_position: anchors.last,
    entries_since_last_anchor: facts.sinceAnchor,
    last_token_usage: typeof total === 'number' ? total : null,
  };
}

const sumTokens = (usage: JsonObject | null): number | null => {
  const { input_tokens: input, output_tokens: output } = usage ?? {};
  return typeof input === 'number' && typeof output === 'number' ? input + output : null;
};
