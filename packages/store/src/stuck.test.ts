import { explainWait, type ToolCallId, type TurnId } from '@boxcar/kernel';
import { beforeEach, expect, test } from 'vitest';
import { loadWaitFacts } from './stuck.js';
import { newId, type TestProfile, World } from './testing/world.js';
import { advanceTurns } from './tool-calls.js';

let world: World;
let profile: TestProfile;
beforeEach(async () => {
  world = await World.open();
  profile = await world.profile('writer');
  return () => world[Symbol.asyncDispose]();
});

const linksOf = async (turnId: TurnId): Promise<string[]> =>
  (explainWait(await loadWaitFacts(world.pool, turnId))?.links ?? []).map(
    ({ level, turn_id, kind, is_live }) => `${level} ${turn_id} ${kind}${is_live ? '' : ' !'}`,
  );

test('the chain is read from the rows: call, queue of an agent, lease, ring, pool without a worker', async () => {
  const holder = await world.worker();
  const parent = await world.running({ profile, holder });
  const [one, two] = (await world.call(parent, 2)) as [ToolCallId, ToolCallId];
  const busy = await world.running({ profile, holder });
  const behind = await world.submit({ profile, reuse: busy, parent, answers: one });
  const gpu = await world.profile('gpu', { workerTarget: 'gpu' });
  const absent = await world.submit({ profile: gpu, parent, answers: two });
  const row = await world.row(parent);
  await advanceTurns(world.pool, [
    { turnId: parent.turnId, epoch: row.epoch, holderId: holder, results: [] },
  ]);
  expect(await world.statusOf(parent)).toBe('suspended');

  const facts = await loadWaitFacts(world.pool, parent.turnId);
  expect(facts).toMatchObject({ live_workers: 1, has_more: false });
  expect(facts.turns[0]).toMatchObject({ turn_id: parent.turnId, status: 'suspended' });
  expect(facts.turns.map(({ turn_id }) => turn_id).sort()).toEqual(
    [parent, behind, busy, absent].map(({ turnId }) => turnId).sort(),
  );
  expect(await linksOf(parent.turnId)).toEqual([
    `0 ${parent.turnId} child`,
    `1 ${behind.turnId} agent_busy`,
    `2 ${busy.turnId} lease`,
    `0 ${parent.turnId} child`,
    `1 ${absent.turnId} window !`,
  ]);
  // Once its worker is gone, and with it the only one there was, nothing is live any more.
  await world.rows("update boxcar.workers set lease_until = now() - interval '1 second'");
  expect(await linksOf(busy.turnId)).toEqual([`0 ${busy.turnId} lease !`]);
  expect((await loadWaitFacts(world.pool, busy.turnId)).turns[0]?.holder).toMatchObject({
    worker_id: holder,
    is_alive: false,
  });
});

test('a queued turn has its place: behind the older ones of its project, behind those of its agent first', async () => {
  await world.submit({ profile });
  const second = await world.submit({ profile });
  const third = await world.submit({ profile });
  const facts = await loadWaitFacts(world.pool, third.turnId);
  expect(facts.turns).toMatchObject([{ status: 'queued', ahead: 2, behind_turn_id: null, window: 0 }]);
  const next = await world.submit({ profile, reuse: second });
  const chain = await loadWaitFacts(world.pool, next.turnId);
  expect(chain.turns).toMatchObject([
    { turn_id: next.turnId, behind_turn_id: second.turnId, ahead: null },
    { turn_id: second.turnId, ahead: 1 },
  ]);
});

test('a turn that is not there has no chain', async () => {
  expect(explainWait(await loadWaitFacts(world.pool, newId<'turn'>()))).toBeUndefined();
});
