/**
 * The rows of the bare loop: turns with their fence (epoch and holder), cards, and the counter of a join. There are no agents, boxes,
 * tapes, steps, grants, operations or constraints: this is the cost of a queued turn that stores only its input, its answer and the right
 * to write the answer.
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
    holder_id uuid,
    steps int not null default 0
  ) with (fillfactor = 60);
  create table floor.boxes (id uuid primary key, card_ids uuid[] not null);
  create table floor.tapes (id uuid primary key, head int not null) with (fillfactor = 60);
  create table floor.entries (tape_id uuid not null, position int not null, card_id uuid not null, primary key (tape_id, position));`;

/** The channel that announces ended turns, as comma-separated ids. */
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

/** Inserts a join and the turns that it waits for, in one commit. */
export async function insertJoin(
  pool: pg.Pool,
  join: { readonly id: string; readonly turns: readonly Omit<FloorTurn, 'joinId'>[] },
): Promise<void> {
  await pool.query({
    name: 'floor_join',
    text: `
      with given as (select * from unnest($2::uuid[], $3::uuid[], $4::text[]) as g(id, card_id, content)),
      joined as (insert into floor.joins (id, pending) values ($1, cardinality($2::uuid[]))),
      cards as (insert into floor.cards (id, content) select card_id, content::json from given)
      insert into floor.turns (id, join_id, prompt_card_id, status, epoch) select id, $1, card_id, 'dispatched', 1 from given`,
    values: [
      join.id,
      join.turns.map((turn) => turn.id),
      join.turns.map((turn) => turn.promptCardId),
      join.turns.map((turn) => JSON.stringify({ text: turn.prompt })),
    ],
  });
}

/** The number of turns that the join still waits for. */
export async function readPending(pool: pg.Pool, joinId: string): Promise<number> {
  const { rows } = await pool.query<{ pending: number }>({
    name: 'floor_pending',
    text: 'select pending from floor.joins where id = $1',
    values: [joinId],
  });
  return rows[0]?.pending ?? Number.NaN;
}

export interface FloorRing {
  readonly turnId: string;
  readonly epoch: number;
}

/** Claims dispatched turns at their epochs. @returns The prompts by turn; a stale ring has none. */
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

/** Ends turns that this holder still has, with one update per join and one notice for all. @returns The ended turns. */
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

/**
 * One bare commit within a turn: cards, under the fence.
 *
 * @throws when this holder does not have the turn.
 */
export async function commitStep(
  pool: pg.Pool,
  step: FloorRing & { readonly cards: readonly { readonly id: string; readonly text: string }[] },
  holderId: string,
): Promise<void> {
  const { rowCount } = await pool.query({
    name: 'floor_step',
    text: `
      with lk as (
        select id from floor.turns where id = $1 and epoch = $2 and status = 'running' and holder_id = $3 for update
      ),
      cards as (
        insert into floor.cards (id, content)
        select c.id, c.content::json from lk, unnest($4::uuid[], $5::text[]) as c(id, content)
      )
      update floor.turns t set steps = t.steps + 1 from lk where t.id = lk.id`,
    values: [
      step.turnId,
      step.epoch,
      holderId,
      step.cards.map((card) => card.id),
      step.cards.map((card) => JSON.stringify({ text: card.text })),
    ],
  });
  if (rowCount !== 1) throw new Error(`floor turn ${step.turnId} is not held by ${holderId}`);
}

export async function insertBox(pool: pg.Pool, id: string, cardIds: readonly string[]): Promise<void> {
  await pool.query({
    name: 'floor_box',
    text: 'insert into floor.boxes (id, card_ids) values ($1, $2)',
    values: [id, cardIds],
  });
}

/** The card ids of boxes, box by box. */
export async function readBoxes(pool: pg.Pool, ids: readonly string[]): Promise<readonly string[][]> {
  const { rows } = await pool.query<{ id: string; card_ids: string[] }>({
    name: 'floor_boxes',
    text: 'select id, card_ids from floor.boxes where id = any ($1::uuid[])',
    values: [ids],
  });
  const found = new Map(rows.map((row) => [row.id, row.card_ids]));
  return ids.map((id) => found.get(id) ?? []);
}

/** The cards of a box in order, with the columns that a message needs: one plain join on the cards of the measured system. */
export async function readCards(pool: pg.Pool, boxId: string): Promise<readonly { content: unknown }[]> {
  const { rows } = await pool.query<{ content: unknown }>({
    name: 'floor_cards',
    text: `
      select c.id, c.type, c.role, c.content, c.metadata, c.author_id
      from floor.boxes b cross join lateral unnest(b.card_ids) with ordinality as u(id, place)
        join boxcar.cards c on c.id = u.id
      where b.id = $1 order by u.place`,
    values: [boxId],
  });
  return rows;
}

/** The answers of ended turns. */
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

export async function insertTape(pool: pg.Pool, id: string): Promise<void> {
  await pool.query('insert into floor.tapes (id, head) values ($1, 0)', [id]);
}

/** Appends a message to a tape in one statement: head, card and entry. */
export async function appendBare(pool: pg.Pool, tapeId: string, cardId: string, text: string): Promise<void> {
  await pool.query({
    name: 'floor_append',
    text: `
      with moved as (update floor.tapes set head = head + 1 where id = $1 returning id, head),
        card as (insert into floor.cards (id, content) values ($2, $3))
      insert into floor.entries (tape_id, position, card_id) select id, head, $2 from moved`,
    values: [tapeId, cardId, JSON.stringify({ text })],
  });
}
