/** Search on a tape: its words are written as far as they are missing, candidates read newest first and looked at again. */

import {
  type BoxId,
  ENTRY_KINDS,
  type EntryKind,
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
  findWords,
  insertWords,
  loadEntries,
  loadEntriesAt,
  loadParts,
  type PartReader,
  type Queryable,
  type TapePart,
} from '@boxcar/store';
import { DEFAULT_MATCHES, MAX_MATCHES, type SearchOptions } from './tape-types.js';

export interface TapeMatch {
  readonly record: TapeRecord;
  /** `near`: every word of the query stands in it, with a typo or in another order. */
  readonly match: 'exact' | 'near';
}

interface SearchRange {
  readonly kinds: readonly EntryKind[];
  readonly since: string | null;
  readonly until: string | null;
  readonly limit: number;
}

/** @throws KernelError `bad_request`. */
export function parseSearchOptions({
  kinds = ['message', 'tool_result'],
  limit = DEFAULT_MATCHES,
  start,
  end,
}: SearchOptions): SearchRange {
  const dates = { ...(start === undefined ? {} : { start }), ...(end === undefined ? {} : { end }) };
  const checked = parseTapeQuery({ kinds, limit, between_dates: dates });
  return {
    kinds: checked.kinds.length > 0 ? checked.kinds : ENTRY_KINDS,
    since: checked.from,
    until: checked.until,
    limit: Math.min(limit, MAX_MATCHES),
  };
}

/** Entries whose words are written at once. */
const PAGE = 1_000;

async function writeWords(db: Queryable, { box_id: boxId, written, upto }: TapePart): Promise<void> {
  for (let from = written + 1; from <= upto; from += PAGE) {
    const entries = await loadEntries(db, boxId, { from, to: Math.min(upto, from + PAGE - 1) });
    await insertWords(
      db,
      boxId,
      entries.map((entry) => ({
        position: entry.position,
        cardId: entry.card?.id ?? null,
        words: wordsOf(toRecord(entry)),
      })),
    );
  }
}

/** Positions that match, newest first; of entries that say the same the newest. */
async function find(
  db: Queryable,
  parts: readonly TapePart[],
  options: SearchRange & {
    readonly search: TapeSearch;
    readonly match: 'exact' | 'near';
    readonly seen: Set<string>;
    readonly within: PartReader | null;
  },
): Promise<readonly number[]> {
  const { search, match, seen, limit, ...range } = options;
  const found: number[] = [];
  for (const part of parts) {
    let before = part.upto + 1;
    while (found.length < limit) {
      const page = Math.max(50, limit);
      const candidates = await findWords(db, part.box_id, {
        ...range,
        search,
        match,
        from: part.behind + 1,
        before,
        limit: page,
      });
      for (const { position, words } of candidates) {
        if (found.length === limit || seen.has(words) || matchSearch(search, words) !== match) continue;
        seen.add(words);
        found.push(position);
      }
      if (candidates.length < page) break;
      before = candidates.at(-1)?.position ?? 0;
    }
  }
  return found;
}

/** What matches the query: what says it as one piece first, then what comes near; each newest first. */
export async function searchTape(
  db: Queryable,
  tape: {
    readonly boxId: BoxId;
    readonly upto: number;
    readonly within: PartReader | null;
  },
  query: string,
  range: SearchRange,
): Promise<readonly TapeMatch[]> {
  const search = parseSearch(sanitizeText(query).value);
  if (search.text === '' || range.limit === 0) return [];
  const parts = await loadParts(db, tape.boxId, tape.upto);
  for (const part of parts) await writeWords(db, part);
  const { within } = tape;
  const seen = new Set<string>();
  const exact = await find(db, parts, { ...range, search, match: 'exact', seen, within });
  const near =
    search.words.length === 0
      ? []
      : await find(db, parts, {
          ...range,
          limit: range.limit - exact.length,
          search,
          match: 'near',
          seen,
          within,
        });
  const entries = await loadEntriesAt(db, tape.boxId, [...exact, ...near]);
  return entries.map((entry, index) => ({
    record: toRecord(entry),
    match: index < exact.length ? 'exact' : 'near',
  }));
}
