import { beforeEach, describe, expect, test } from 'vitest';
import { begin, waitUntilBlocked } from '../testing/interleave.js';
import { newId, type TestProfile, type TestTurn, World } from '../testing/world.js';
import { commitSteps } from '../turn/commits.js';
import { promote } from './promote.js';
import { probe } from './sweep.js';
import { findReady, purgeDeadWorkers, removeWorker, renewLease } from './workers.js';

let world: World;
let profile: TestProfile;

beforeEach(async () => {
  world = await World.open();
  profile = await world.profile('writer');
  return () => world[Symbol.asyncDispose]();
});

const promoted = async (target = ''): Promise<string[]> =>
  (await promote(world.pool, target)).map(({ turnId }) => turnId);
const idsOf = (turns: readonly TestTurn[]): string[] => turns.map(({ turnId }) => turnId);
const submitMany = async (n: number, of = profile): Promise<TestTurn[]> => {
  const turns: TestTurn[] = [];
  for (let i = 0; i < n; i++) turns.push(await world.submit({ profile: of }));
  return turns;
};

describe('the queue of a target', () => {
  test('stays unchanged while no worker lives', async () => {
    await submitMany(2);
    expect(await promoted()).toEqual([]);
    await world.worker({ leaseMs: 0 });
    await world.worker({ targets: ['gpu'] });
    expect(await promoted()).toEqual([]);
  });

  test('enters the window oldest first, up to its limit, and rings with epoch 1', async () => {
    const turns = await submitMany(6);
    await world.worker({ concurrency: 1 });
    expect(await promote(world.pool, '')).toEqual(
      turns.slice(0, 4).map(({ turnId }, priority) => ({ turnId, epoch: 1, workerTarget: '', priority })),
    );
    expect(await promoted()).toEqual([]);
    expect(await world.count('turns', "status = 'dispatched' and dispatched_at is not null")).toBe(4);
  });

  test('is ordered by priority before age', async () => {
    const turns = await submitMany(6);
    await world.pool.query('update boxcar.turns set priority = 5 where id = $1', [turns[5]?.turnId]);
    await world.worker({ concurrency: 1 });
    expect((await promoted()).sort()).toEqual(idsOf([0, 1, 2, 5].flatMap((index) => turns[index] ?? [])));
  });

  test('serves the projects in turn, however long the queue of one project is', async () => {
    const busy = await submitMany(10);
    const others: TestTurn[] = [];
    for (const name of ['b', 'c']) {
      const { projectId } = await world.project(name);
      others.push(...(await submitMany(1, await world.profile('writer', { projectId }))));
    }
    await world.worker({ concurrency: 1 });
    expect((await promoted()).sort()).toEqual(idsOf([...busy.slice(0, 2), ...others]).sort());
  });

  test('is separate from the queues of other targets', async () => {
    const gpu = await world.profile('gpu', { workerTarget: 'gpu' });
    const [turn] = (await submitMany(1, gpu)) as [TestTurn];
    await world.worker({ targets: ['', 'gpu'] });
    expect(await promoted()).toEqual([]);
    expect(await promote(world.pool, 'gpu')).toEqual([
      { turnId: turn.turnId, epoch: 1, workerTarget: 'gpu', priority: 0 },
    ]);
  });

  test('is not delayed by an agent that another session has locked', async () => {
    const [locked, ...others] = await submitMany(3);
    await world.worker({ concurrency: 5 });
    const stranger = await world.pool.connect();
    await stranger.query('begin');
    await stranger.query('select from boxcar.agents where id = $1 for update', [locked?.agentId]);
    expect((await promoted()).sort()).toEqual(others.map(({ turnId }) => turnId).sort());
    await stranger.query('rollback');
    stranger.release();
    expect(await promoted()).toEqual([locked?.turnId]);
  });

  test('has one promoter at a time; the next promoter waits, and sees the turns that arrived meanwhile', async () => {
    await world.worker();
    const holder = await world.worker();
    const busy = await world.running({ profile, holder });
    await world.submit({ profile, reuse: busy });
    await using first = await begin(world.pool);
    await first.query("select pg_advisory_xact_lock(hashtextextended('boxcar:promote:', 0))");
    const turn = await world.submit({ profile });
    expect(await world.statusOf(turn)).toBe('queued');
    const next = promoted();
    await waitUntilBlocked(world.pool, { by: first.pid });
    // The first one looked before this turn was there: no other process would look for the turn.
    await first.query('commit');
    expect(await next).toEqual([turn.turnId]);
  });
});

describe('the turns of one agent', () => {
  test('run in the order in which they arrived, one at a time', async () => {
    const holder = await world.worker();
    const first = await world.running({ profile, holder });
    const [second, third] = [
      await world.submit({ profile, reuse: first }),
      await world.submit({ profile, reuse: first }),
    ];
    expect(await promoted()).toEqual([]);
    await commitSteps(world.pool, [await world.commit(first, { end: 'success' })]);
    expect(await promoted()).toEqual([second.turnId]);
    await world.claim(second, holder);
    expect(await promoted()).toEqual([]);
    await world.pool.query("update boxcar.turns set status = 'suspended', holder_id = null where id = $1", [
      second.turnId,
    ]);
    expect(await promoted()).toEqual([]);
    await commitSteps(world.pool, [
      await world.commit(second, { step: 'none', end: 'timeout', holder: null }),
    ]);
    expect(await promoted()).toEqual([third.turnId]);
  });

  test('do not make other agents wait', async () => {
    const holder = await world.worker({ concurrency: 1 });
    const first = await world.running({ profile, holder });
    for (let i = 0; i < 5; i++) await world.submit({ profile, reuse: first });
    const other = await world.submit({ profile });
    expect(await world.statusOf(other)).toBe('queued');
    expect(await promoted()).toEqual([other.turnId]);
  });
});

describe('a worker', () => {
  test('renews its lease while its row exists', async () => {
    const id = await world.worker({ leaseMs: 0 });
    expect(await renewLease(world.pool, id, { leaseMs: 60_000, hasLock: true })).toEqual({
      held: [],
      gated: [],
      minCompatible: expect.any(Number),
      hasOlder: false,
      hasPeers: false,
    });
    expect(await world.count('workers', "lease_until > now() + interval '30 seconds'")).toBe(1);
    await removeWorker(world.pool, id);
    expect(await renewLease(world.pool, id, { leaseMs: 60_000, hasLock: true })).toBeUndefined();
    expect(
      await renewLease(world.pool, newId<'worker'>(), { leaseMs: 60_000, hasLock: true }),
    ).toBeUndefined();
  });

  test('finds the waiting rings of its targets, oldest first', async () => {
    await world.worker({ targets: ['', 'gpu'] });
    const gpu = await world.profile('gpu', { workerTarget: 'gpu' });
    const [one] = (await submitMany(1)) as [TestTurn];
    const [two] = (await submitMany(1, gpu)) as [TestTurn];
    expect(await findReady(world.pool, ['', 'gpu'], 5)).toEqual([
      { turnId: one.turnId, epoch: 1, workerTarget: '' },
      { turnId: two.turnId, epoch: 1, workerTarget: 'gpu' },
    ]);
    expect(await findReady(world.pool, ['gpu', ''], 1)).toHaveLength(1);
    expect(await findReady(world.pool, ['other'], 5)).toEqual([]);
  });
});

describe('the row of a worker that was killed', () => {
  test('is removed a day after its lease, unless the worker still holds a turn', async () => {
    const [dead, holder, living] = [
      await world.worker({ leaseMs: 0 }),
      await world.worker({ leaseMs: 0 }),
      await world.worker({ leaseMs: 86_400_000 * 2 }),
    ];
    await world.running({ profile, holder });
    const hours = (n: number) => ({ now: new Date(Date.now() + n * 3_600_000) });
    const look = async (at: { now: Date }) =>
      (await probe(world.pool, { ...at, lostRingMs: 2_000 })).dead_workers;
    expect(await look(hours(23))).toBe(false);
    expect(await purgeDeadWorkers(world.pool, hours(23))).toEqual([]);
    expect(await look(hours(25))).toBe(true);
    expect(await purgeDeadWorkers(world.pool, hours(25))).toEqual([dead]);
    expect(await look(hours(25))).toBe(false);
    expect(await world.rows('select id from boxcar.workers order by id')).toEqual([
      { id: holder },
      { id: living },
    ]);
  });
});
