/** Words of entries for search: written when a tape is searched, found by trigrams where Postgres has them. */
import type { BoxId, CardId, TapeSearch } from '@boxcar/kernel';
import type pg from 'pg';
import { type Queryable, run, runRetrying, type Statement, statement } from '../db/index.js';
import { type PartReader, readsEntry } from '../rows/index.js';
import { partsOf } from '../visible/index.js';
import { kindOf, PAGE_BYTES } from './entries.js';

/** A box that contains entries of a tape, with the part that belongs to the tape, and the position up to which its words are written. */
export interface TapePart extends pg.QueryResultRow {
  readonly box_id: BoxId;
  /** The last position before the part. */
  readonly behind: number;
  readonly upto: number;
  readonly written: number;
}

const PARTS = statement(`
  select /* words.parts */
    part.box_id, part.behind, least(part.upto, $2::int) as upto,
    coalesce((select max(w.position) from boxcar.tape_words w where w.box_id = part.box_id), part.behind) as written
  from boxcar.boxes b
  cross join lateral ${partsOf('b')} as part(box_id, behind, upto)
  where b.id = $1 and b.kind = 'tape' and part.behind < $2
  order by part.upto desc`);

/** The boxes that contain the entries of a tape up to a position, the newest first. */
export const loadParts = (db: Queryable, boxId: BoxId, upto: number): Promise<TapePart[]> =>
  run<TapePart>(db, PARTS, [boxId, upto]);

export interface EntryWords {
  readonly position: number;
  readonly cardId: CardId | null;
  readonly words: string;
}

// An erasure in progress is waited for and seen; a later erasure waits, and finds these rows. The same is true of a purge of the box.
const INSERT = statement(`
  with /* words.insert */
  box as (select id from boxcar.boxes where id = $1 for key share),
  alive as materialized (
    select c.id
    from boxcar.cards c
    where c.id = any ($3::uuid[]) and c.erased_at is null
    order by c.id
    for share
  )
  insert into boxcar.tape_words (box_id, position, card_id, words)
  select
    box.id, x.position, x.card_id,
    case when x.card_id is null or x.card_id in (select id from alive) then x.words end
  from box
  cross join json_to_recordset($2::json) as x(position int, card_id uuid, words text)
  on conflict do nothing`);

/** Writes the words of a sequence of entries in one box; skips the words of erased cards. */
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
  /** `exact`: the whole query as one piece. `near`: the parts that a text with typos still contains. */
  readonly match: 'exact' | 'near';
  /** The positions from the first to the last. */
  readonly from: number;
  readonly to: number;
  /** Empty: all kinds. */
  readonly kinds: readonly string[];
  readonly since: string | null;
  readonly until: string | null;
  /** Only the parts of the tape that this agent may read; null: all. */
  readonly within: PartReader | null;
  /** A tool whose answers are not searched: only their places are returned. Null: all answers are searched. */
  readonly answersOf: string | null;
}

/** An entry whose words may match. */
export interface WordsCandidate {
  readonly position: number;
  /** Null: an answer of the named tool. */
  readonly words: string | null;
}

const toPattern = (text: string): string => `%${text.replace(/[\\%_]/g, '\\$&')}%`;

/** The number of candidates that a statement lists. */
const LISTED = 500;

// The name of the call that a result answers: from the call's row. When that row was purged, or the tape was imported, from the result
// itself.
const CALLED = `
  (
    select coalesce(k.name, c.content->>'name')
    from boxcar.cards c
    left join boxcar.tool_calls k on k.id = c.tool_call_id
    where c.id = e.card_id
  )`;

const statements = new Map<string, Statement>();

/** One pattern for each `like`: a list of patterns could not use the index. Takes no locks: the candidates are of one snapshot. */
function wordsText(groups: readonly number[]): Statement {
  const key = groups.join(' ');
  const known = statements.get(key);
  if (known !== undefined) return known;
  let next = 11;
  const condition = groups
    .map((count) => `(${Array.from({ length: count }, () => `w.words like $${next++}`).join(' or ')})`)
    .join(' and ');
  const prepared = statement(`
    with /* words.prepared */
    listed as materialized (
      select
        w.position, w.words,
        $9::text is not null and e.kind = 'tool_result' and coalesce(${CALLED} = $9, false) as is_answer
      from boxcar.tape_words w
      join boxcar.tape_entries e
        on e.box_id = w.box_id
        and e.position = w.position
        and (cardinality($4::text[]) = 0 or ${kindOf('e')} = any ($4::text[]))
        and e.created_at >= coalesce($5::timestamptz, '-infinity')
        and e.created_at <= coalesce($6::timestamptz, 'infinity')
      where w.box_id = $1
        and w.position >= $2
        and w.position <= $3
        and ($7::uuid is null or ${readsEntry('e', '$10::uuid', '$7')})
        and ${condition}
      order by w.position desc
      limit ${LISTED}
    ),
    sized as (
      select l.*, case when l.is_answer then 0 else octet_length(l.words) end as bytes
      from listed l
    )
    select
      s.position, s.is_answer, s.bytes,
      case
        when not s.is_answer and sum(s.bytes) over (order by s.position desc) <= $8::bigint then s.words
      end as words
    from sized s
    order by s.position desc`);
  statements.set(key, prepared);
  return prepared;
}

const WORDS_AT = statement(`
  select /* words.words_at */ position, words
  from boxcar.tape_words
  where box_id = $1 and position = any ($2::int[]) and words is not null
  order by position desc`);

interface CandidateRow extends pg.QueryResultRow {
  position: number;
  is_answer: boolean;
  /** The size of its words. */
  bytes: number;
  words: string | null;
}

/** Cuts rows into pages; each has up to `PAGE_BYTES`, or is a single row. */
function* runsOf(rows: readonly CandidateRow[]): Generator<readonly CandidateRow[]> {
  let page: CandidateRow[] = [];
  let bytes = 0;
  for (const row of rows) {
    if (page.length > 0 && bytes + row.bytes > PAGE_BYTES) {
      yield page;
      page = [];
      bytes = 0;
    }
    page.push(row);
    bytes += row.bytes;
  }
  if (page.length > 0) yield page;
}

/**
 * Entries of a box whose words may match, the newest first; the caller must check them. Page by page, each of up to `PAGE_BYTES` or of one
 * entry.
 */
export async function* findWords(
  db: Queryable,
  boxId: BoxId,
  query: WordsQuery,
): AsyncGenerator<readonly WordsCandidate[], void, void> {
  const { search, match, from, kinds, since, until, within, answersOf } = query;
  const groups = match === 'exact' ? [[search.text]] : search.words.map(({ parts }) => parts);
  const prepared = wordsText(groups.map((parts) => parts.length));
  for (let to = query.to; to >= from; ) {
    const rows = await run<CandidateRow>(db, prepared, [
      boxId,
      from,
      to,
      kinds,
      since,
      until,
      within?.agentId ?? null,
      PAGE_BYTES,
      answersOf,
      within?.boxId ?? null,
      ...groups.flat().map(toPattern),
    ]);
    const isSent = (row: CandidateRow): boolean => row.is_answer || row.words !== null;
    const sent = rows.findIndex((row) => !isSent(row));
    if (sent !== 0 && rows.length > 0) yield rows.slice(0, sent === -1 ? rows.length : sent);
    for (const page of runsOf(sent === -1 ? [] : rows.slice(sent))) {
      const positions = page.flatMap(({ position, is_answer: isAnswer }) => (isAnswer ? [] : position));
      const found: readonly WordsCandidate[] =
        positions.length === 0 ? [] : await run(db, WORDS_AT, [boxId, positions]);
      yield [...found, ...page.filter((row) => row.is_answer)].toSorted((a, b) => b.position - a.position);
    }
    if (rows.length < LISTED) return;
    to = (rows.at(-1)?.position ?? 0) - 1;
  }
}
