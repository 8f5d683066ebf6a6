/**
 * The text of a handoff's turn while the turn writes it.
 *
 * P1  Parts are numbered from 1 without gaps, in the order of their writing. Only erasure changes them.
 * P2  Only the worker that holds the running turn adds parts. The end of a turn waits for a part that is being added; after the end no
 *     part is added.
 * P3  A round is one answer of a model or one attempt at a platform. Its first part voids the text of other rounds: a part without text
 *     separates the rounds. A part that is added again after a lost answer is stored once.
 * Rule: docs/reference/handoff.md, "Streams".
 */
import type { TurnId, WorkerId } from '@boxcar/kernel';
import type pg from 'pg';
import { type Queryable, run, statement } from '../db/index.js';
import { hasStatus } from '../turn/index.js';

/** The channel for new parts of turns: the payload is the id of the turn. */
export const PARTS_CHANNEL = 'boxcar_parts';

// The turn is locked for share, by its epoch, holder and status: an end waits for the part, and a part after the end finds no turn (P2).
// Only one worker holds the turn, so the numbers have no gaps.
const ADD = statement(`
  with /* turn-parts.add */
  held as materialized (
    select t.id
    from boxcar.turns t
    where t.id = $1 and t.epoch = $2 and t.holder_id = $3 and ${hasStatus('running')}
    for share
  ),
  last as materialized (
    select p.seq, p.round
    from boxcar.turn_parts p
    join held on held.id = p.turn_id
    order by p.seq desc
    limit 1
  ),
  new as (
    select 0 as n, null as text
    from last
    where last.round <> $4
    union all
    select $5::int, $6::text
  ),
  added as (
    insert into boxcar.turn_parts (turn_id, seq, round, n, text)
    select
      held.id,
      coalesce((select seq from last), 0) + row_number() over (order by new.n),
      $4, new.n, new.text
    from held
    cross join new
    where not exists (select from boxcar.turn_parts p where p.turn_id = held.id and p.round = $4 and p.n = $5)
    returning turn_id
  )
  select
    (select count(*) from held)::int as held,
    (select pg_notify('${PARTS_CHANNEL}', a.turn_id::text) from added a limit 1) as told`);

/** Adds a text to a round (P2, P3). @returns False when another worker holds the turn. */
export async function addPart(
  db: Queryable,
  part: {
    readonly turnId: TurnId;
    readonly epoch: number;
    readonly holderId: WorkerId;
    /** Different for every round of the turn. */
    readonly round: string;
    /** The number of the part in its round, from 1. */
    readonly n: number;
    readonly text: string;
  },
): Promise<boolean> {
  const { turnId, epoch, holderId, round, n, text } = part;
  const [row] = await run<{ held: number }>(db, ADD, [turnId, epoch, holderId, round, n, text]);
  return row?.held === 1;
}

/** `text` is null where the earlier text becomes void. */
export interface TurnPart extends pg.QueryResultRow {
  readonly seq: number;
  readonly text: string | null;
}

const LOAD = statement(`
  select /* turn-parts.load */ p.seq, p.text
  from boxcar.turn_parts p
  where p.turn_id = $1 and p.seq > $2
  order by p.seq
  limit $3`);

/** The parts after a number, in order. */
export const loadTurnParts = (
  db: Queryable,
  of: { readonly turnId: TurnId; readonly afterSeq: number; readonly limit: number },
): Promise<TurnPart[]> => run<TurnPart>(db, LOAD, [of.turnId, of.afterSeq, of.limit]);

const SAID = statement(`
  select /* turn-parts.said */
    coalesce(max(p.seq), 0) as seq,
    coalesce(
      string_agg(p.text, '' order by p.seq) filter (where p.seq > coalesce((
        select max(v.seq)
        from boxcar.turn_parts v
        where v.turn_id = $1 and v.text is null
      ), 0)),
      ''
    ) as text,
    coalesce(bool_or(p.text = ''), false)
    or exists (
      select from boxcar.turns t
      join boxcar.cards d on d.id = t.deliverable_card_id
      where t.id = $1 and d.content is null
    ) as is_erased
  from boxcar.turn_parts p
  where p.turn_id = $1`);

/** The combined parts of a turn. After the end of the turn, only erasure changes them. */
export interface Said {
  /** The number of the last part. */
  readonly seq: number;
  /** The text of the last round. */
  readonly text: string;
  /** Text of the parts or of the result was erased. */
  readonly is_erased: boolean;
}

export async function loadSaid(db: Queryable, turnId: TurnId): Promise<Said> {
  const [row] = await run<Said & pg.QueryResultRow>(db, SAID, [turnId]);
  return row ?? { seq: 0, text: '', is_erased: false };
}
