import type { TurnId } from '@boxcar/kernel';
import { expect, test } from 'vitest';
import { World } from '../testing/world.js';
import { commitSteps } from '../turn/index.js';
import { ActivityFeed } from './activity.js';

/** More turns than one look reads. */
const MANY = 1_500;

test('the activity of turns is read in the same number of rows for any number of turns in the last minute', async () => {
  await using world = await World.open();
  const turn = await world.running({ profile: await world.profile('writer'), holder: await world.worker() });
  await commitSteps(world.pool, [await world.commit(turn, { end: 'success' })]);
  /** Copies of this turn that begin and end now, with ids of this moment. */
  const copy = (count: number) =>
    world.rows<{ id: TurnId }>(
      `insert into boxcar.turns select (jsonb_populate_record(t, jsonb_build_object('created_at', clock_timestamp(), 'ended_at', clock_timestamp(),
         'id', lpad(to_hex((extract(epoch from clock_timestamp()) * 1000)::bigint), 12, '0') || '70008000' || lpad(to_hex(n), 12, '0')))).*
       from boxcar.turns t cross join generate_series(1, ${count}) n where t.id = $1 returning id`,
      [turn.turnId],
    );
  const feed = new ActivityFeed(world.pool);
  await feed.readNew();
  await copy(MANY);
  const ends = (await feed.readNew()).filter(({ event }) => event === 'turn.ended');
  expect(ends.length).toBeGreaterThan(MANY / 2);
  const [last] = await copy(1);
  const told = async (): Promise<string[]> =>
    (await feed.readNew()).filter((one) => one.turn_id === last?.id).map((one) => one.event);
  expect(await told()).toEqual(['turn.submitted', 'turn.ended']);
  expect(await told()).toEqual([]);
});
