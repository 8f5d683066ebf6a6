/**
 * Words of instructions, by which lists find turns. They are rows of `boxcar.tape_words` at position 0, under the id of the turn; the
 * words of tapes begin at position 1. Searches write the missing rows, so turns themselves have no extra cost. Erasure finds the rows by
 * their card; a purge removes them with the turns.
 */
import { foldedWords, type JsonObject, type ProjectId } from '@boxcar/kernel';
import { type Queryable, run, runRetrying, statement } from '../db/index.js';
import { type ListPlace, newestFirst, onlyBy } from '../rows/index.js';
import type { Outer, Row } from '../schema/index.js';
import { PAGE_BYTES } from '../tape/index.js';
import { joinInstruction } from './turns.js';

/** The number of turns whose words are written at once. */
const WRITTEN = 500;
/**
 * Turns up to this much older than the newest words are examined again: their transactions may have been open when those words were
 * written.
 */
const OVERLAP = "interval '1 hour'";

// Words are written from the oldest turn on. A turn that commits late has an earlier time, the beginning of its transaction.
const START = statement(`
  select /* turn-words.start */
    to_regclass('boxcar.tape_words_trigrams') is not null as has_index,
    (
      select to_char((t.created_at - ${OVERLAP}) at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')
      from boxcar.turns t
      where ${onlyBy('t.project_id', '$1')}
        and (select true from boxcar.tape_words w where w.box_id = t.id and w.position = 0) is true
      order by t.project_id desc, ${newestFirst('t')}
      limit 1
    ) as at`);

// Contents are only referenced until it is known which of them are sent.
const MISSING = statement(`
  with /* turn-words.missing */
  chosen as materialized (
    select t.created_at, t.id, t.context_box_id
    from boxcar.turns t
    where ${onlyBy('t.project_id', '$1')}
      and (t.created_at, t.id) > ($2::timestamptz, $3::uuid)
      and (select true from boxcar.tape_words w where w.box_id = t.id and w.position = 0) is not true
    order by t.project_id, t.created_at, t.id
    limit ${WRITTEN}
  ),
  sized as (
    select
      k.*, card.id as card_id, card.content, row_number() over w as n,
      sum(coalesce(card.size_bytes, 0)) over w as bytes
    from chosen k
    ${joinInstruction('k')}
    window w as (order by k.created_at, k.id)
  )
  select
    s.id as turn_id, s.card_id, s.content,
    to_char(s.created_at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"') as at
  from sized s
  where s.n = 1 or s.bytes <= ${PAGE_BYTES}
  order by s.n`);

// Locks the runs in the same way as spawns do, so that a purge of them waits and then finds these rows. An erasure in progress is waited
// for and seen; a later erasure waits and then finds these rows.
const INSERT = statement(`
  with /* turn-words.insert */
  run as materialized (
    select r.id
    from boxcar.runs r
    where r.id = any (array(select t.run_id from boxcar.turns t where t.id = any ($1::uuid[])))
    order by r.id
    for key share
  ),
  alive as materialized (
    select c.id
    from boxcar.cards c
    where (select count(*) from run) > 0 and c.id = any ($2::uuid[]) and c.erased_at is null
    order by c.id
    for share
  )
  insert into boxcar.tape_words (box_id, position, card_id, words)
  select
    t.id, 0, x.card_id,
    case when x.card_id in (select id from alive) then x.words end
  from json_to_recordset($3::json) as x(turn_id uuid, card_id uuid, words text)
  cross join lateral (select o.id, o.run_id from boxcar.turns o where o.id = x.turn_id offset 0) t
  where t.run_id in (select id from run)
  on conflict do nothing`);

type MissingRow = Row<'turns', never, { turn_id: 'id' }> &
  Outer<Row<'cards', never, { card_id: 'id' }>> & {
    readonly content: JsonObject | null;
    readonly at: string;
  };

const FIRST: ListPlace = { at: '-infinity', id: '00000000-0000-0000-0000-000000000000' };

function wordsOf(content: JsonObject | null): string | null {
  if (content === null) return null;
  const { kind: _kind, ...words } = content;
  return foldedWords(words);
}

/** Three letters or digits in a row: without them a trigram index would not narrow the search. */
const HAS_TRIGRAM = /[\p{L}\p{N}]{3}/u;

/**
 * Writes the words of the turns of a project that have no words yet, page by page.
 *
 * @param folded - The text to search for.
 * @returns Whether an index finds the text.
 */
export async function writeTurnWords(
  db: Queryable,
  projectId: ProjectId,
  folded: string,
): Promise<{ readonly isIndexed: boolean }> {
  const [start] = await run<{ has_index: boolean; at: string | null }>(db, START, [projectId]);
  let after: ListPlace | undefined = { ...FIRST, ...(start?.at == null ? {} : { at: start.at }) };
  while (after !== undefined) {
    const rows: MissingRow[] = await run<MissingRow>(db, MISSING, [projectId, after.at, after.id]);
    const records = rows.map(({ turn_id, card_id, content }) => ({
      turn_id,
      card_id,
      words: wordsOf(content),
    }));
    const last = rows.at(-1);
    if (last !== undefined)
      await runRetrying(db, INSERT, [
        records.map(({ turn_id }) => turn_id),
        records.flatMap(({ card_id }) => card_id ?? []),
        JSON.stringify(records),
      ]);
    after = last === undefined ? undefined : { at: last.at, id: last.turn_id };
  }
  return { isIndexed: start?.has_index === true && HAS_TRIGRAM.test(folded) };
}
