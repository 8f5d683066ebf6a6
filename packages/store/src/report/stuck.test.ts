import type { BatchId, ToolCallId, TurnId } from '@boxcar/kernel';
import { describeWait } from '@boxcar/kernel/words';
import { beforeEach, expect, test } from 'vitest';
import { pauseForBudget } from '../budget/budget-waits.js';
import { setProjectLimits } from '../submit/projects.js';
import { writeSubmission } from '../submit/submission.js';
import { emptySubmission } from '../submit/submission-rows.js';
import { DEFAULT_PROJECT, newId, type TestProfile, type TestTurn, World } from '../testing/world.js';
import { advanceTurns } from '../turn/tool-calls.js';
import { setProviderLimits } from '../work/provider-limits.js';
import { loadWaitFacts } from './stuck.js';

let world: World;
let profile: TestProfile;
beforeEach(async () => {
  world = await World.open();
  profile = await world.profile('writer');
  return () => world[Symbol.asyncDispose]();
});

const linksOf = async (turnId: TurnId): Promise<string[]> =>
  (describeWait(await loadWaitFacts(world.pool, turnId))?.links ?? []).map(
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
  // After its worker, the only one, has died, no worker is live any more.
  await world.rows("update boxcar.workers set lease_until = now() - interval '1 second'");
  expect(await linksOf(busy.turnId)).toEqual([`0 ${busy.turnId} lease !`]);
  expect((await loadWaitFacts(world.pool, busy.turnId)).turns[0]?.holder).toMatchObject({
    worker_id: holder,
    is_alive: false,
  });
});

test('a queued turn has a position: after the older turns of its project, and first after the turns of its agent', async () => {
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

test('times are in UTC in every time zone of the session, so that they can be compared with the clock', async () => {
  const holder = await world.worker();
  const parent = await world.running({ profile, holder });
  await waiting(parent);
  const client = await world.pool.connect();
  try {
    await client.query("set timezone to 'Asia/Tokyo'");
    const { at, turns } = await loadWaitFacts(client, parent.turnId);
    const [turn] = turns;
    const times = [at, turn?.created_at, turn?.calls[0]?.created_at, turn?.calls[0]?.deadline_at];
    for (const time of times) expect(time).toBe(new Date(time ?? '').toISOString());
    // A call with its whole time left is not late.
    expect(describeWait({ at, turns, live_workers: 0, has_more: false })?.links).toMatchObject([
      { kind: 'tool', profile: 'writer@1', tool: expect.any(String), is_live: true },
    ]);
  } finally {
    client.release(true);
  }
});

test('a turn that does not exist has no chain', async () => {
  expect(describeWait(await loadWaitFacts(world.pool, newId<'turn'>()))).toBeUndefined();
});

/** A turn that is suspended on one call. */
async function waiting(turn: TestTurn): Promise<ToolCallId> {
  const [call] = (await world.call(turn, 1)) as [ToolCallId];
  const { epoch, holder_id } = await world.row(turn);
  if (holder_id === null) throw new Error('nobody holds it');
  await advanceTurns(world.pool, [{ turnId: turn.turnId, epoch, holderId: holder_id, results: [] }]);
  return call;
}

test('of a batch of 1,000 members a few are read: one of each kind that can be shown first', async () => {
  const holder = await world.worker();
  const parent = await world.running({ profile, holder });
  const call = await waiting(parent);
  const gpu = await world.profile('gpu', { workerTarget: 'gpu' });
  const member = await world.running({ profile, holder, parent });
  const lost = await world.submit({ profile: gpu, parent });
  await world.pool.query('alter table boxcar.turns disable trigger all');
  await world.pool.query('drop index boxcar.turns_one_active');
  const copies = await world.rows<{ id: TurnId }>(
    `insert into boxcar.turns select (jsonb_populate_record(t, jsonb_build_object('id', gen_random_uuid()))).*
     from boxcar.turns t, generate_series(1, 998) where t.id = $1 returning id`,
    [member.turnId],
  );
  const turnIds = [member.turnId, lost.turnId, ...copies.map(({ id }) => id)];
  const batchId: BatchId = newId<'batch'>();
  await writeSubmission(world.pool, {
    ...emptySubmission(),
    batches: [
      {
        id: batchId,
        projectId: DEFAULT_PROJECT,
        runId: parent.runId,
        turnId: parent.turnId,
        toolCallId: call,
        primitive: 'fork_join',
        kind: 'fork_join',
        turnIds,
        remaining: 1_000,
        succeeded: 0,
        failed: 0,
        minSuccess: null,
        failFast: false,
        deadlineMs: 60_000,
      },
    ],
  });
  await world.wait(call, 60_000, batchId);
  const facts = await loadWaitFacts(world.pool, parent.turnId);
  expect(facts.turns).toHaveLength(6);
  const links = describeWait(facts)?.links ?? [];
  expect(links[0]).toMatchObject({
    kind: 'batch',
    batch_id: batchId,
    members: { total: 1_000, open: 1_000, needed: 1_000 },
    until: expect.any(String),
    on_turn_ids: expect.arrayContaining([lost.turnId]),
  });
  expect(links.filter(({ is_live }) => !is_live)).toMatchObject([
    { kind: 'window', turn_id: lost.turnId, level: 1 },
  ]);
  expect(links).toHaveLength(6);
});

test('a wait for a time, a provider or a budget is read with the condition that ends it', async () => {
  const holder = await world.worker();
  const wait = (turn: TestTurn, kind: string, provider: string | null, detail: object): Promise<unknown> =>
    world.rows(
      `with up as (update boxcar.turns set status = 'suspended', holder_id = null where id = $1)
       insert into boxcar.waits (turn_id, project_id, kind, due_at, provider, detail) values ($1, $2, $3, now() + interval '1 minute', $4, $5)`,
      [turn.turnId, turn.projectId, kind, provider, detail],
    );
  const linkOf = async (turn: TestTurn) =>
    describeWait(await loadWaitFacts(world.pool, turn.turnId))?.links ?? [];
  const retry = await world.running({ profile, holder });
  await wait(retry, 'retry', null, { retry: 1, code: 'model_timeout' });
  expect(await linkOf(retry)).toMatchObject([
    { kind: 'retry', is_live: true, since: expect.any(String), until: expect.any(String) },
  ]);
  const limited = await world.running({ profile, holder });
  await wait(limited, 'limit', 'openai', { reason: 'rate' });
  expect(await linkOf(limited)).toMatchObject([{ kind: 'provider', provider: 'openai' }]);
  await setProviderLimits(world.pool, 'openai', { maxConcurrent: 2 });
  expect((await linkOf(limited))[0]?.what).toMatch(/\(2 at once\): .*; 1 turns wait/);
  await world.rows("update boxcar.providers set failures = 12, open_until = now() + interval '1 minute'");
  expect(await linkOf(limited)).toMatchObject([
    { kind: 'breaker', what: expect.stringContaining('12 times') },
  ]);
  const paused = await world.running({ profile, holder });
  const hit = { accountId: paused.runId, kind: 'tokens', limit: 100, used: 90, needed: 50 } as const;
  await pauseForBudget(world.pool, paused, hit);
  expect(await linkOf(paused)).toMatchObject([
    { kind: 'budget', is_live: false, budget_id: paused.runId, next: expect.stringContaining(paused.runId) },
  ]);
});

test('a turn that the limit of its project holds back is reported as such', async () => {
  const holder = await world.worker();
  await world.running({ profile, holder });
  await setProjectLimits(world.pool, DEFAULT_PROJECT, { max_concurrent: 1 });
  const held = await world.submit({ profile });
  expect(await linksOf(held.turnId)).toEqual([`0 ${held.turnId} project_limit`]);
  await setProjectLimits(world.pool, DEFAULT_PROJECT, { max_concurrent: 5 });
  expect(await linksOf(held.turnId)).toEqual([`0 ${held.turnId} window`]);
});
