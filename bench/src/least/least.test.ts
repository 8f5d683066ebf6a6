/** The least floors write the rows of the floor, and complete their turns. */
import { migrateQueues, newId } from '@boxcar/runtime';
import { testDatabase } from '@boxcar/testkit';
import { beforeAll, expect, it } from 'vitest';
import { claimTurns, completeTurns, insertTurn, migrateFloor } from '../floor/rows.js';
import { openJoins } from './joins.js';
import { openLocalTurns } from './local.js';
import { insertTurns } from './rows.js';

let database: Awaited<ReturnType<typeof testDatabase>>;
beforeAll(async () => {
  database = await testDatabase({ empty: true });
  await migrateFloor(database.url);
  await migrateQueues(database.url);
  return () => database.close();
});

const turnOf = (prompt: string) => ({ id: newId(), promptCardId: newId(), prompt, joinId: null });

it('the floor submits several turns in one commit, with its fixed rows for each', async () => {
  const { pool } = database;
  const turns = [turnOf('one'), turnOf('two'), turnOf('three')];
  const [alone, ...together] = turns;
  if (alone === undefined) throw new Error('no turn');
  await insertTurn(pool, alone);
  await insertTurns(pool, together);
  const { rows } = await pool.query(
    `select c.content->>'text' as prompt, t.status, t.epoch, t.steps, t.holder_id, t.join_id, t.answer_card_id
     from floor.turns t join floor.cards c on c.id = t.prompt_card_id order by t.id`,
  );
  const rest = {
    status: 'dispatched',
    epoch: 1,
    steps: 0,
    holder_id: null,
    join_id: null,
    answer_card_id: null,
  };
  expect(rows).toEqual(turns.map(({ prompt }) => ({ prompt, ...rest })));
  const { rows: commits } = await pool.query(
    'select count(distinct xmin::text)::int as n from floor.turns where id = any ($1)',
    [together.map(({ id }) => id)],
  );
  expect(commits).toEqual([{ n: 1 }]);
});

it('the floor takes a turn through its three commits on one connection', async () => {
  await using local = openLocalTurns(database.url);
  for (let turn = 0; turn < 3; turn += 1) await local.answer();
  const { rows } = await database.pool.query(
    "select count(*)::int as n from floor.turns where status = 'success' and answer_card_id is not null and holder_id is null",
  );
  expect(rows).toEqual([{ n: 3 }]);
});

it('the floor notices the last end of a join, in whatever batches the ends arrive', async () => {
  const { pool, url } = database;
  await using joins = await openJoins({ databaseUrl: url, concurrency: 1 });
  const joined = joins.join(5, 'go');
  const holderId = newId();
  const dispatched = async () =>
    (
      await pool.query<{ id: string }>(
        "select id from floor.turns where join_id is not null and status = 'dispatched' order by id",
      )
    ).rows;
  for (let left = 5; left > 0; ) {
    const rings = (await dispatched()).slice(0, 2).map(({ id }) => ({ turnId: id, epoch: 1 }));
    await claimTurns(pool, rings, holderId);
    const answers = rings.map((ring) => ({ ...ring, cardId: newId(), text: 'done' }));
    left -= (await completeTurns(pool, answers, holderId)).size;
  }
  await joined;
  const { rows } = await pool.query('select pending from floor.joins');
  expect(rows).toEqual([{ pending: 0 }]);
});
