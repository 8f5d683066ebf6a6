/** The statements of the least floor that differ from the floor's: the same rows, with several turns in one statement. */
import type pg from 'pg';
import type { FloorTurn } from '../floor/rows.js';

/** Inserts turns with their prompts, in one commit. */
export async function insertTurns(pool: pg.Pool, turns: readonly FloorTurn[]): Promise<void> {
  await pool.query({
    name: 'least_submit',
    text: `
      with given as (select * from unnest($1::uuid[], $2::uuid[], $3::uuid[], $4::text[]) as g(id, join_id, card_id, content)),
      cards as (insert into floor.cards (id, content) select card_id, content::json from given)
      insert into floor.turns (id, join_id, prompt_card_id, status, epoch) select id, join_id, card_id, 'dispatched', 1 from given`,
    values: [
      turns.map((turn) => turn.id),
      turns.map((turn) => turn.joinId),
      turns.map((turn) => turn.promptCardId),
      turns.map((turn) => JSON.stringify({ text: turn.prompt })),
    ],
  });
}
