/** Words of entries for search: written when a tape is searched, found by trigrams where Postgres has them. */
import type { BoxId, CardId, EntryKind, TapeSearch } from '@boxcar/kernel';
import type pg from 'pg';
import { type Queryable, run, runRetrying, type Statement, statement } from './db.js';
import { type PartReader, readsEntry } from './rights.js';
import { partsOf } from './tape-line.js';

/** A box in which entries of a tape stand, as far as they are part of it, and how far its words are written. */
export interface TapePart extends pg.QueryResultRow {
  readonly box_id: BoxId;
  /** The last position before it. */
  readonly behind: number;
  readonly upto: number;
  readonly written: number;
}

const PARTS = statement(`
  select part.box_id, part.behind, least(part.upto, $2::int) as upto,
    coalesce((select max(w.position) from boxcar.tape_words w where w.box_id = part.box_id), part.behind) as written
  from boxcar.boxes b cross join lateral ${partsOf('b')} as part(box_id, behind, upto)
  where b.id = $1 and b.kind = 'tape' and part.behind < $2 order by part.upto desc`);

/** Where the entries of a tape up to a position stand, the newest first. */
export const loadParts = (db: Queryable, boxId: BoxId, upto: number): Promise<TapePart[]> =>
  run<TapePart>(db, PARTS, [boxId, upto]);

export interface EntryWords {
  readonly position: number;
  readonly cardId: CardId | null;
  readonly words: string;
}

// An erasure under way is waited for and seen; one that comes later waits, and finds these rows. So does the purge of the box.
const INSERT = statement(`
  with box as (select id from boxcar.boxes where id = $1 for key share),
  alive as materialized (select c.id from boxcar.cards c where c.id = any ($3::uuid[]) and c.erased_at is null order by c.id for share)
  insert into boxcar.tape_words (box_id, position, card_id, words)
  select box.id, x.position, x.card_id, case when x.card_id is null or x.card_id in (select id from alive) then x.words end
  from box cross join json_to_recordset($2::json) as x(position int, card_id uuid, words text)
  on conflict do nothing`);

/** Writes the words of a run of entries that stand in one box; those of an erased card stay away. */
export async function insertWords(
  db: Queryable,
  boxId: BoxId,
  entries: readonly EntryWords[],
): Promise<void> {
  const records = entries.map(({ position, cardId, words }) => ({ position, card_id: cardId, words }));
  await runRetrying(db, INSERT, [
    boxId,
    JSON.stringify(records),
    entries.flatMap(({ cardId }) => cardId ?? []),
  ]);
}

export interface WordsQuery {
  readonly search: TapeSearch;
  /** Whole: the query as one piece. Else the parts that a text with typos still has. */
  readonly match: 'exact' | 'near';
  /** Positions from the first to before the last. */
  readonly from: number;
  readonly before: number;
  readonly kinds: readonly EntryKind[];
  readonly since: string | null;
  readonly until: string | null;
  readonly limit: number;
  /** Only what this agent may read of the tape; null = all. */
  readonly within: PartReader | null;
}

const toPattern = (text: string): string => `%${text.replace(/[\\%_]/g, '\\$&')}%`;

const statements = new Map<string, Statement>();

/** One pattern for each `like`: a list of them could not use the index. */
function wordsText(groups: readonly number[]): Statement {
  const key = groups.join(' ');
  const known = statements.get(key);
  if (known !== undefined) return known;
  let next = 10;
  const condition = groups
    .map((count) => `(${Array.from({ length: count }, () => `w.words like $${next++}`).join(' or ')})`)
    .join(' and ');
  const prepared = statement(`
    select w.position, w.words from boxcar.tape_words w
      join boxcar.tape_entries e on e.box_id = w.box_id and e.position = w.position and e.kind = any ($4::text[])
        and e.created_at >= coalesce($5::timestamptz, '-infinity') and e.created_at <= coalesce($6::timestamptz, 'infinity')
    where w.box_id = $1 and w.position >= $2 and w.position < $3 and ($8::uuid is null or ${readsEntry('e', '$9::uuid', '$8')}) and ${condition}
    order by w.position desc limit $7`);
  statements.set(key, prepared);
  return prepared;
}

/** Entries of a box whose words may match, the newest first; to be looked at again. */
export function findWords(
  db: Queryable,
  boxId: BoxId,
  { search, match, from, before, kinds, since, until, limit, within }: WordsQuery,
): Promise<{ readonly position: number; readonly words: string }[]> {
  const groups = match === 'exact' ? [[search.text]] : search.words.map(({ parts }) => parts);
  return run(db, wordsText(groups.map((parts) => parts.length)), [
    boxId,
    from,
    before,
    kinds,
    since,
    until,
    limit,
    within?.agentId ?? null,
    within?.boxId ?? null,
    ...groups.flat().map(toPattern),
  ]);
}
