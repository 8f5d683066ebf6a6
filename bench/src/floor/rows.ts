/**
 * The rows of the bare loop: turns with their fence (epoch and holder), cards, and the counter of a join. No agents, boxes,
 * tapes, steps, grants, operations or constraints: what a queued turn costs when nothing is kept but its input, its answer
 * and the right to write it.
 */
import pg from 'pg';

const SCHEMA = `
  create schema floor;
  create table floor.cards (id uuid primary key, content json not null);
  create table floor.joins (id uuid primary key, pending int not null);
  create table floor.turns (
    id uuid primary key,
    join_id uuid,
    prompt_card_id uuid not null,
    answer_card_id uuid,
    status text not null,
    epoch int not null,
    holder_id uuid
  ) with (fillfactor = 60);`;

/** Ended turns are announced here, as comma-separated ids. */
export const ENDED_CHANNEL = 'floor_ended';

export async function migrateFloor(databaseUrl: string): Promise<void> {
  const client = new pg.Client({ connectionString: databaseUrl });
  await client.connect();
  try {
    await client.query(SCHEMA);
  } finally {
    await client.end();
  }
}

export interface FloorTurn {
  readonly id: string;
  readonly promptCardId: string;
  readonly prompt: string;
  readonly joinId: string | null;
}

export async function insertTurn(pool: pg.Pool, turn: FloorTurn): Promise<void> {
  await pool.query({
    name: 'floor_submit',
    text: `
      with card as (insert into floor.cards (id, content) values ($2, $3))
      insert into floor.turns (id, join_id, prompt_card_id, status, epoch) values ($1, $4, $2, 'dispatched', 1)`,
    values: [turn.id, turn.promptCardId, JSON.stringify({ text: turn.prompt }), turn.joinId],
  });
}

export interface FloorRing {
  readonly turnId: string;
  readonly epoch: number;
}

/** Takes dispatched turns at their epochs. @returns The prompts by turn; a stale ring has none. */
export async function claimTurns(
  pool: pg.Pool,
  rings: readonly FloorRing[],
  holderId: string,
): Promise<ReadonlyMap<string, string>> {
  const { rows } = await pool.query<{ id: string; content: { text: string } }>({
    name: 'floor_claim',
    text: `
      with want as (select * from unnest($1::uuid[], $2::int[]) as w(id, epoch)),
      lk as (
        select t.id from floor.turns t join want w on w.id = t.id and w.epoch = t.epoch
        where t.status = 'dispatched' order by t.id for update of t
      ),
      cl as (
        update floor.turns t set status = 'running', holder_id = $3 from lk where t.id = lk.id
        returning t.id, t.prompt_card_id
      )
      select cl.id, c.content from cl join floor.cards c on c.id = cl.prompt_card_id`,
    values: [rings.map((ring) => ring.turnId), rings.map((ring) => ring.epoch), holderId],
  });
  return new Map(rows.map((row) => [row.id, row.content.text]));
}

export interface FloorAnswer extends FloorRing {
  readonly cardId: string;
  readonly text: string;
}

/** Ends turns that this holder still has; one update per join, and one notice for all. @returns The ended ones. */
export async function completeTurns(
  pool: pg.Pool,
  answers: readonly FloorAnswer[],
  holderId: string,
): Promise<ReadonlySet<string>> {
  const { rows } = await pool.query<{ ids: string[] | null }>({
    name: 'floor_complete',
    text: `
      with d as (select * from unnest($1::uuid[], $2::int[], $3::uuid[], $4::text[]) as d(id, epoch, card_id, content)),
      lk as (
        select t.id, t.join_id, d.card_id, d.content from floor.turns t join d on d.id = t.id and d.epoch = t.epoch
        where t.status = 'running' and t.holder_id = $5 order by t.id for update of t
      ),
      cards as (insert into floor.cards (id, content) select card_id, content::json from lk),
      joins as (
        update floor.joins j set pending = j.pending - n.ended
        from (select join_id, count(*) as ended from lk where join_id is not null group by join_id) n where j.id = n.join_id
      ),
      up as (
        update floor.turns t set status = 'success', holder_id = null, answer_card_id = lk.card_id
        from lk where t.id = lk.id returning t.id
      )
      select array_agg(up.id::text) as ids, pg_notify('${ENDED_CHANNEL}', string_agg(up.id::text, ',')) from up`,
    values: [
      answers.map((answer) => answer.turnId),
      answers.map((answer) => answer.epoch),
      answers.map((answer) => answer.cardId),
      answers.map((answer) => JSON.stringify({ text: answer.text })),
      holderId,
    ],
  });
  return new Set(rows[0]?.ids ?? []);
}

/** The answers of turns that have ended. */
export async function readAnswers(
  pool: pg.Pool,
  turnIds: readonly string[],
): Promise<ReadonlyMap<string, string>> {
  const { rows } = await pool.query<{ id: string; content: { text: string } }>({
    name: 'floor_answers',
    text: 'select t.id, c.content from floor.turns t join floor.cards c on c.id = t.answer_card_id where t.id = any ($1::uuid[])',
    values: [turnIds],
  });
  return new Map(rows.map((row) => [row.id, row.content.text]));
}
