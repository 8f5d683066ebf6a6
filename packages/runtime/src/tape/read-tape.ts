/** Reads a tape up to a position: the positions of a slice, and the entries in it. Source: docs/reference/tape.md, "Reading". */
import {
  anchorNameOf,
  anchorNotFound,
  anchorState,
  isCleanText,
  type JsonObject,
  type JsonValue,
  matchesText,
  type TapeQuery,
  type TapeRecord,
  type TapeSlice,
  toName,
  toRecord,
} from '@boxcar/kernel';
import {
  countAnchors,
  findAnchor,
  loadEntries,
  loadTapeFacts,
  type PartReader,
  type Queryable,
  readEntries,
  type TapeActor,
  type TapeEntryRow,
  type TapeRow,
  withAsked,
} from '@boxcar/store';
import type { AnchorSummary, AnchorsPage, TapeInfo } from './tape-types.js';

/** The row of a tape, and the last position to read. */
export interface OpenedTape {
  readonly row: TapeRow;
  readonly last: number;
  /** The reader, if it may not read everything up to `last`. */
  readonly within: PartReader | null;
  readonly actor: TapeActor;
}

/** A named anchor that was found. */
export interface FoundAnchor {
  readonly name: string;
  readonly position: number;
  readonly state: JsonValue;
}

interface Positions {
  readonly from: number;
  readonly to: number;
}

/** The position of the last anchor that the reader may read, and the number of anchors. */
export async function anchorsUpto(
  db: Queryable,
  { row, last, within }: OpenedTape,
): Promise<{ readonly last: number; readonly count: number }> {
  if (last === row.headPosition && within === null)
    return { last: row.lastAnchorPosition, count: row.anchorCount };
  return countAnchors(db, row.boxId, last, within);
}

/** The position of a named anchor: the latest, or the first in a range. @throws KernelError `not_found`. */
async function locateAnchor(
  db: Queryable,
  { row, last, within }: OpenedTape,
  name: string,
  { from, edge }: { readonly from: number; readonly edge: 'first' | 'latest' } = { from: 1, edge: 'latest' },
): Promise<number> {
  // No anchor has a name that Postgres cannot store. With such a name, Postgres would refuse the query or search for another name.
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
  return { name: toName(name), position, state: entry === undefined ? null : anchorState(toRecord(entry)) };
}

/** The positions of a slice, without its boundary anchors. @throws KernelError `not_found`. */
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

/** The most bytes of content in one answer of a reader. A single entry may be larger. */
const MAX_PAGE_BYTES = 1024 * 1024;

/**
 * Yields the records of a query while they are read.
 *
 * @param after - Only records after this position.
 */
async function* readRecords(
  db: Queryable,
  opened: OpenedTape,
  { slice, kinds, from: since, until, limit, text }: TapeQuery,
  after = 0,
): AsyncGenerator<readonly TapeRecord[], void, void> {
  const { from, to } = await resolveSlice(db, opened, slice);
  const range = {
    from: Math.max(from, after + 1),
    to,
    kinds,
    since,
    until,
    within: opened.within,
    limit: text === null ? limit : null,
  };
  let left = limit ?? Number.POSITIVE_INFINITY;
  if (left === 0) return;
  for await (const entries of withAsked(db, readEntries(db, opened.row.boxId, range), opened.actor)) {
    const records = entries.map(toRecord).filter((record) => text === null || matchesText(record, text));
    yield records.slice(0, left);
    left -= records.length;
    if (left <= 0) return;
  }
}

/** All entries of a checked query. @throws KernelError `not_found` for a named anchor. */
export async function selectEntries(
  db: Queryable,
  opened: OpenedTape,
  query: TapeQuery,
): Promise<readonly TapeRecord[]> {
  const found: TapeRecord[] = [];
  for await (const records of readRecords(db, opened, query)) found.push(...records);
  return found;
}

/** One page of the result of a query. */
export interface RecordsPage {
  readonly records: readonly TapeRecord[];
  /** The position after which the next page begins; null at the end. */
  readonly next: number | null;
}

const sizeOf = (record: TapeRecord): number => Buffer.byteLength(JSON.stringify(record));

/** The first page of entries of a checked query. @throws KernelError `not_found` for a named anchor. */
export async function selectPage(
  db: Queryable,
  opened: OpenedTape,
  { query, after }: { readonly query: TapeQuery; readonly after: number },
): Promise<RecordsPage> {
  const { limit } = query;
  const records: TapeRecord[] = [];
  let bytes = 0;
  // One more record is read to learn whether there are others after the page.
  const reading = readRecords(db, opened, { ...query, limit: limit === null ? null : limit + 1 }, after);
  for await (const found of reading) {
    for (const record of found) {
      bytes += sizeOf(record);
      const isFull = records.length === limit || (records.length > 0 && bytes > MAX_PAGE_BYTES);
      if (isFull) return { records, next: records.at(-1)?.position ?? after };
      records.push(record);
    }
  }
  return { records, next: null };
}

/** The last anchors before a position, at most one page. */
export async function selectAnchors(
  db: Queryable,
  { row, last, within }: OpenedTape,
  { limit, before }: { readonly limit: number; readonly before: number },
): Promise<AnchorsPage> {
  const found: AnchorSummary[] = [];
  let bytes = 0;
  const page = (next: number | null): AnchorsPage => ({ anchors: found.toReversed(), next });
  // One more anchor is read to learn whether there are others before the page.
  const range = {
    from: 1,
    to: Math.min(last, before - 1),
    within,
    kinds: ['anchor'],
    limit: limit + 1,
  } as const;
  for await (const entries of readEntries(db, row.boxId, { ...range, edge: 'newest' })) {
    for (const entry of entries) {
      const record = toRecord(entry);
      const { position, date } = record;
      const anchor = { position, name: anchorNameOf(record) ?? '', state: anchorState(record), date };
      bytes += Buffer.byteLength(JSON.stringify(anchor));
      const isFull = found.length === limit || (found.length > 0 && bytes > MAX_PAGE_BYTES);
      if (isFull) return page(found.at(-1)?.position ?? before);
      found.push(anchor);
    }
  }
  return page(null);
}

/** The entries of a slice, and the anchor directly before them. @throws KernelError `not_found`. */
export async function loadSlice(
  db: Queryable,
  opened: OpenedTape,
  slice: TapeSlice,
): Promise<{ readonly anchor: TapeEntryRow | null; readonly entries: readonly TapeEntryRow[] }> {
  const { from, to } = await resolveSlice(db, opened, slice);
  const range = { from: Math.max(1, from - 1), to, within: opened.within };
  const entries: TapeEntryRow[] = [];
  for await (const page of withAsked(db, readEntries(db, opened.row.boxId, range), opened.actor))
    entries.push(...page);
  const [first] = entries;
  return first === undefined || first.position >= from
    ? { anchor: null, entries }
    : { anchor: first, entries: entries.slice(1) };
}

/** Counts the entries that the reader may read, without loading them. */
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
