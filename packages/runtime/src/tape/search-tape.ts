/**
 * Searches a tape: writes the missing words of its entries, reads candidates newest first, and checks each candidate again. The search
 * works page by page. Between two pages, and between two entries that take long, other work of the process can run.
 */
import { createHash } from 'node:crypto';
import {
  askedAsMessage,
  type BoxId,
  matchSearch,
  parseSearch,
  parseTapeQuery,
  sanitizeText,
  type TapeRecord,
  type TapeSearch,
  toRecord,
  wordsOf,
} from '@boxcar/kernel';
import {
  type EntryWords,
  findWords,
  insertWords,
  loadParts,
  type PartReader,
  type Queryable,
  readEntries,
  readEntriesAt,
  type TapeActor,
  type TapePart,
  withAsked,
} from '@boxcar/store';
import { pauses } from '../lib/index.js';
import { DEFAULT_MATCHES, MAX_MATCHES, type SearchOptions } from './tape-types.js';

export interface TapeMatch {
  readonly record: TapeRecord;
  /** `near`: the entry contains every word of the query, with a typo or in another order. */
  readonly match: 'exact' | 'near';
}

interface SearchRange {
  readonly kinds: readonly string[];
  readonly since: string | null;
  readonly until: string | null;
  readonly limit: number;
  /** Answers of this tool never match. Null: no tool is excluded. */
  readonly answersOf: string | null;
}

/** @throws KernelError `bad_request`. */
export function parseSearchOptions({
  kinds = ['message', 'tool_result'],
  limit = DEFAULT_MATCHES,
  start,
  end,
  answersOf = null,
}: SearchOptions & { readonly answersOf?: string | null }): SearchRange {
  const dates = { ...(start === undefined ? {} : { start }), ...(end === undefined ? {} : { end }) };
  const checked = parseTapeQuery({ kinds, limit, between_dates: dates });
  return {
    kinds: checked.kinds,
    since: checked.from,
    until: checked.until,
    limit: Math.min(limit, MAX_MATCHES),
    answersOf,
  };
}

/** A statement writes about this many characters of words at most, plus the words of one entry. */
const MAX_PAGE_WORDS = 256 * 1024;

async function writeWords(db: Queryable, { box_id: boxId, written, upto }: TapePart): Promise<void> {
  const pause = pauses();
  for await (const entries of readEntries(db, boxId, { from: written + 1, to: upto })) {
    let page: EntryWords[] = [];
    let length = 0;
    const writePage = async (): Promise<void> => {
      if (page.length > 0) await insertWords(db, boxId, page);
      page = [];
      length = 0;
    };
    for (const entry of entries) {
      const words = wordsOf(toRecord(entry));
      page.push({ position: entry.position, cardId: entry.card?.id ?? null, words });
      length += words.length;
      // Some texts become longer when they are folded.
      if (length >= MAX_PAGE_WORDS) await writePage();
      await pause();
    }
    await writePage();
  }
}

interface SearchedTape {
  readonly boxId: BoxId;
  readonly upto: number;
  readonly within: PartReader | null;
  /** The actor that searches. */
  readonly actor: TapeActor;
}

/** The results of a search so far, and the data to avoid duplicates. */
interface Findings {
  readonly positions: number[];
  /** Digests of words: the newest of several entries with the same words counts. */
  readonly seen: Set<string>;
  /** Positions that were left out. */
  readonly leftOut: Set<number>;
}

const digestOf = (words: string): string => createHash('sha256').update(words).digest('base64');

/** Adds positions that match, newest first, up to the limit. */
async function find(
  db: Queryable,
  parts: readonly TapePart[],
  options: SearchRange & {
    readonly search: TapeSearch;
    readonly match: 'exact' | 'near';
    readonly found: Findings;
    readonly within: PartReader | null;
    /** Newest first. */
    readonly asked: readonly AskedMatch[];
  },
): Promise<void> {
  const { search, match, found, limit, asked, ...range } = options;
  const { positions, seen, leftOut } = found;
  const pause = pauses();
  const add = (position: number, digest: string): void => {
    if (positions.length === limit || seen.has(digest)) return;
    seen.add(digest);
    positions.push(position);
  };
  const waiting = asked.filter((one) => one.match === match);
  let next = 0;
  const addAskedFrom = (position: number): void => {
    for (let one = waiting[next]; one !== undefined && one.position >= position; one = waiting[next]) {
      next += 1;
      add(one.position, one.digest);
    }
  };
  for (const part of parts) {
    if (positions.length === limit) return;
    const query = { ...range, search, match, from: part.behind + 1, to: part.upto };
    for await (const candidates of findWords(db, part.box_id, query)) {
      for (const { position, words } of candidates) {
        addAskedFrom(position);
        if (positions.length === limit) return;
        await pause();
        if (words === null) {
          if (match === 'exact') leftOut.add(position);
          continue;
        }
        if (matchSearch(search, words) === match && !positions.includes(position))
          add(position, digestOf(words));
      }
    }
  }
  addAskedFrom(1);
}

/** The start of a turn whose instruction matches. */
interface AskedMatch {
  readonly position: number;
  readonly match: 'exact' | 'near';
  readonly digest: string;
}

/**
 * The instruction of a turn is in the context box of the turn, for readers that may read that box. Each search reads all starts of turns,
 * newest first.
 */
async function findAsked(
  db: Queryable,
  { boxId, upto, within, actor }: SearchedTape,
  { search, kinds, since, until }: SearchRange & { readonly search: TapeSearch },
): Promise<readonly AskedMatch[]> {
  if (kinds.length > 0 && !kinds.includes('message')) return [];
  const found: AskedMatch[] = [];
  const pause = pauses();
  const range = { from: 1, to: upto, kinds: ['event'], edge: 'newest', since, until, within } as const;
  for await (const entries of withAsked(db, readEntries(db, boxId, range), actor)) {
    for (const entry of entries) {
      if (entry.asked === undefined) continue;
      const words = wordsOf(askedAsMessage(toRecord(entry)));
      const match = matchSearch(search, words);
      if (match !== undefined) found.push({ position: entry.position, match, digest: digestOf(words) });
      await pause();
    }
  }
  return found;
}

/** The entries at the given positions, in the given order. */
async function* matchesAt(
  db: Queryable,
  { boxId, actor }: SearchedTape,
  { positions, exact }: { readonly positions: readonly number[]; readonly exact: number },
): AsyncGenerator<readonly TapeMatch[], void, void> {
  const isExact = new Set(positions.slice(0, exact));
  for await (const entries of withAsked(db, readEntriesAt(db, boxId, positions), actor))
    yield entries.map((entry) => ({
      record: askedAsMessage(toRecord(entry)),
      match: isExact.has(entry.position) ? 'exact' : 'near',
    }));
}

/** The result of a search. */
export interface FoundMatches {
  /** Page by page: first entries that contain the query as one piece, then near matches; each group newest first. */
  readonly pages: AsyncGenerator<readonly TapeMatch[], void, void>;
  /** The number of excluded answers of `answersOf` that contain the query as one piece, among the entries that the search has read. */
  readonly leftOut: number;
}

/** Finds the matches of a query. Contents of matches are read as their pages are taken. */
export async function searchTape(
  db: Queryable,
  tape: SearchedTape,
  query: string,
  range: SearchRange,
): Promise<FoundMatches> {
  const search = parseSearch(sanitizeText(query).value);
  const found: Findings = { positions: [], seen: new Set(), leftOut: new Set() };
  let exact = 0;
  if (search.text !== '' && range.limit > 0) {
    const parts = await loadParts(db, tape.boxId, tape.upto);
    for (const part of parts) await writeWords(db, part);
    const { within } = tape;
    const asked = await findAsked(db, tape, { ...range, search });
    await find(db, parts, { ...range, search, match: 'exact', found, within, asked });
    exact = found.positions.length;
    if (search.words.length > 0)
      await find(db, parts, { ...range, search, match: 'near', found, within, asked });
  }
  const { positions, leftOut } = found;
  return { pages: matchesAt(db, tape, { positions, exact }), leftOut: leftOut.size };
}
