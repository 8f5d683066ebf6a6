import type { ToolCallId, WorkerId } from '@boxcar/kernel';
import { beforeEach, expect, test } from 'vitest';
import { newId, type TestProfile, type TestTurn, World } from '../testing/world.js';
import { probe } from '../work/sweep.js';
import { commitSteps } from './commits.js';
import { loadPendingCalls } from './pending-calls.js';
import { findDueCalls, hastenLooks, loadArguments, loadQueueCalls, noteLooks } from './queue-calls.js';
import { recordResults } from './tool-calls.js';

let world: World;
let profile: TestProfile;
let holder: WorkerId;

beforeEach(async () => {
  world = await World.open();
  profile = await world.profile('writer');
  holder = await world.worker();
  return () => world[Symbol.asyncDispose]();
});

/** A time in the given number of seconds from now: the clock of these tests. */
const later = (seconds: number): { now: Date } => ({ now: new Date(Date.now() + seconds * 1_000) });

/** A turn that its worker still holds, with calls that outside workers answer. */
async function out(n: number, timeoutMs = 600_000): Promise<{ turn: TestTurn; ids: ToolCallId[] }> {
  const turn = await world.running({ profile, holder });
  const ids = Array.from({ length: n }, () => newId<'tool_call'>());
  const commit = await world.commit(turn, { calls: ids });
  const { outcomes } = await commitSteps(world.pool, [
    {
      ...commit,
      calls: commit.calls.map((call) => ({ ...call, route: 'queue', target: 'crm', timeoutMs })),
    },
  ]);
  expect(outcomes).toMatchObject([{ outcome: 'committed' }]);
  return { turn, ids };
}

const due = async (seconds: number, limit = 100): Promise<ToolCallId[]> =>
  (await findDueCalls(world.pool, { ...later(seconds), limit })).map((call) => call.id);

/** Seconds until the next look; null when no look is due. */
async function nextLook(id: ToolCallId): Promise<number | null> {
  const { rows } = await world.pool.query<{ seconds: string | null }>(
    'select extract(epoch from look_at - now()) as seconds from boxcar.tool_calls where id = $1',
    [id],
  );
  return rows[0]?.seconds == null ? null : Math.round(Number(rows[0].seconds));
}

const age = (id: ToolCallId, seconds: number) =>
  world.pool.query(
    "update boxcar.tool_calls set created_at = now() - $2 * interval '1 second' where id = $1",
    [id, seconds],
  );

test('a call is put into its queue with its target, and is checked only after its job had time to end', async () => {
  const { turn, ids } = await out(2);
  expect(await loadPendingCalls(world.pool, turn.turnId)).toMatchObject(
    ids.map((id) => ({ id, route: 'queue', target: 'crm' })),
  );
  expect(await due(1)).toEqual([]);
  expect(await probe(world.pool, { ...later(1), lostRingMs: 60_000 })).toMatchObject({ due_looks: false });
  expect(await due(3)).toEqual(ids);
  expect(await probe(world.pool, { ...later(3), lostRingMs: 60_000 })).toMatchObject({ due_looks: true });
});

test('other calls are never checked', async () => {
  const turn = await world.running({ profile, holder });
  const [id] = await world.call(turn, 1);
  expect(await due(3600)).toEqual([]);
  expect(await loadQueueCalls(world.pool, id === undefined ? [] : [id])).toMatchObject([
    { route: 'function', target: null },
  ]);
  await hastenLooks(world.pool, [turn.turnId]);
  expect(await due(3600)).toEqual([]);
});

test('the database refuses a queue call without a target, and a target without a queue call', async () => {
  const { ids } = await out(1);
  await expect(
    world.pool.query('update boxcar.tool_calls set target = null where id = $1', [ids[0]]),
  ).rejects.toThrow('tool_calls_target_check');
});

test('a settled call is no longer checked', async () => {
  const { turn, ids } = await out(2);
  const [first, second] = ids as [ToolCallId, ToolCallId];
  await recordResults(world.pool, [world.result(turn, first)]);
  expect(await due(3)).toEqual([second]);
  await noteLooks(world.pool, { callIds: ids, sentIds: ids });
  expect(await loadQueueCalls(world.pool, ids)).toMatchObject([
    { id: first, status: 'success', is_sent: false },
    { id: second, status: 'pending', is_sent: true },
  ]);
});

test('the older a call is, the rarer are the checks, with an additional check shortly before its deadline', async () => {
  const { ids } = await out(4);
  const [young, old, ancient, closing] = ids as [ToolCallId, ToolCallId, ToolCallId, ToolCallId];
  await age(old, 40);
  await age(ancient, 100_000);
  await age(closing, 100_000);
  await world.pool.query(
    "update boxcar.tool_calls set deadline_at = now() + interval '13 seconds' where id = $1",
    [closing],
  );
  await noteLooks(world.pool, { callIds: ids });
  expect(await Promise.all([young, old, ancient, closing].map(nextLook))).toEqual([2, 10, 60, 10]);
});

test('a backlog of slow calls does not prevent the checks of other calls', async () => {
  const slow = await out(30);
  for (const id of slow.ids) await age(id, 1_000);
  // Ten looks at a time: calls that were looked at move to the end.
  const seen: ToolCallId[] = [];
  for (let pass = 0; pass < 3; pass++) {
    const batch = await due(3, 10);
    await noteLooks(world.pool, { callIds: batch });
    seen.push(...batch);
  }
  expect(new Set(seen)).toEqual(new Set(slow.ids));
  const young = await out(5);
  expect(await due(3, 10)).toEqual(young.ids);
});

test('a call whose answer follows later has no next check until its turn has ended', async () => {
  const { turn, ids } = await out(2);
  const [resting, waiting] = ids as [ToolCallId, ToolCallId];
  await noteLooks(world.pool, { callIds: ids, restIds: [resting] });
  expect(await nextLook(resting)).toBeNull();
  expect(await due(3600)).toEqual([waiting]);
  await commitSteps(world.pool, [await world.commit(turn, { step: 'none', end: 'timeout' })]);
  await hastenLooks(world.pool, [turn.turnId]);
  expect(await findDueCalls(world.pool, { ...later(1), limit: 100 })).toMatchObject(
    ids.map((id) => ({ id, is_over: true })),
  );
});

test('a lost job is made again from the arguments of its row', async () => {
  const { ids } = await out(2);
  expect(await loadArguments(world.pool, ids)).toEqual(new Map(ids.map((id) => [id, {}])));
});
