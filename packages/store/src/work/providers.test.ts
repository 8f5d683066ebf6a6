import type { Ring, WorkerId } from '@boxcar/kernel';
import { waitFor } from '@boxcar/testkit';
import { beforeEach, describe, expect, test } from 'vitest';
import { inspectInvariants } from '../report/invariants.js';
import { type TestProfile, type TestTurn, World } from '../testing/world.js';
import { claim } from '../turn/claims.js';
import { commitSteps } from '../turn/commits.js';
import type { Caller } from './provider-books.js';
import { noteProviderFailure } from './provider-failures.js';
import { findGatedProviders, listProviders, setProviderLimits } from './provider-limits.js';
import {
  enterProvider,
  findOverdueProviders,
  type GateAnswer,
  leaveProvider,
  wakeProvider,
} from './providers.js';
import { takeOver } from './sweep.js';
import { renewLease } from './workers.js';

let world: World;
let profile: TestProfile;
let holder: WorkerId;

/** These rows are of turns alone, without the other rows that a submission writes. */
const OF_WAITS = new Set(['waits-with-cause', 'wait-is-of-turn', 'epochs']);

beforeEach(async () => {
  world = await World.open();
  profile = await world.profile('writer');
  holder = await world.worker({ concurrency: 1_000 });
  return async () => {
    const reports = (await inspectInvariants(world.pool)).filter(({ name }) => OF_WAITS.has(name));
    expect(reports).toHaveLength(OF_WAITS.size);
    expect(reports.flatMap(({ name, broken }) => broken.map(({ what }) => `${name}: ${what}`))).toEqual([]);
    await world[Symbol.asyncDispose]();
  };
});

const callerOf = (turn: TestTurn, options: Partial<Caller> = {}): Caller => ({
  turnId: turn.turnId,
  epoch: 1,
  holderId: holder,
  step: 1,
  attempt: 1,
  ...options,
});
const running = (n: number, by = holder): Promise<TestTurn[]> =>
  Promise.all(Array.from({ length: n }, () => world.running({ profile, holder: by })));
const enter = (turns: readonly TestTurn[], now?: Date): Promise<readonly GateAnswer[]> =>
  enterProvider(world.pool, 'p', { callers: turns.map((turn) => callerOf(turn)), now });
const leave = (turns: readonly TestTurn[], now?: Date) =>
  leaveProvider(world.pool, 'p', { turns: turns.map((turn) => callerOf(turn)), hasProved: false, now });
const outcomes = (entries: readonly GateAnswer[]): string[] => entries.map((entry) => entry.outcome);
const idsOf = (items: readonly { readonly turnId: string }[]): string[] => items.map((item) => item.turnId);
const claimAgain = async (rings: readonly Ring[], by = holder): Promise<Caller[]> =>
  (await claim(world.pool, rings, by)).flatMap((outcome) =>
    outcome.outcome === 'claimed'
      ? [
          {
            turnId: outcome.turn.turnId,
            epoch: outcome.turn.epoch,
            holderId: by,
            step: outcome.turn.stepCount + 1,
            attempt: outcome.turn.attempt,
          },
        ]
      : [],
  );
/** Keeps the row of a turn locked, as another transaction would. */
async function lockTurn(turn: TestTurn): Promise<AsyncDisposable & { unlock(): Promise<void> }> {
  const client = await world.pool.connect();
  await client.query('begin');
  await client.query('select from boxcar.turns where id = $1 for update', [turn.turnId]);
  let isLocked = true;
  const unlock = async (): Promise<void> => {
    if (isLocked) await client.query('rollback');
    if (isLocked) client.release();
    isLocked = false;
  };
  return { unlock, [Symbol.asyncDispose]: unlock };
}
const at = (seconds: number): Date => new Date(Date.now() + seconds * 1_000);

test('a provider without a row admits every call and writes nothing', async () => {
  const [turn] = await running(1);
  expect(await enter(turn === undefined ? [] : [turn])).toEqual([{ outcome: 'admitted', isProbe: false }]);
  expect(await world.count('provider_slots')).toBe(0);
  expect(await findGatedProviders(world.pool)).toEqual([]);
});

test('limits are set separately, and the heartbeat returns the providers that have limits', async () => {
  await setProviderLimits(world.pool, 'p', { maxConcurrent: 3, breakerAfter: 7 });
  await setProviderLimits(world.pool, 'p', { requestsPerMinute: 90 });
  expect(await listProviders(world.pool)).toMatchObject([
    { name: 'p', max_concurrent: 3, requests_per_minute: 90, breaker_after: 7, in_use: 0, waiting: 0 },
  ]);
  expect((await renewLease(world.pool, holder, { leaseMs: 60_000, hasLock: true }))?.gated).toEqual(['p']);
  await setProviderLimits(world.pool, 'p', { maxConcurrent: null, requestsPerMinute: null });
  expect((await renewLease(world.pool, holder, { leaseMs: 60_000, hasLock: true }))?.gated).toEqual([]);
});

test('limits are whole numbers up to a million, or none; other values are refused with the name of the limit', async () => {
  const wrong = [0.000001, 1.5, -1, 1_000_001, 2 ** 31, Infinity, Number.NaN, '7'];
  for (const field of ['maxConcurrent', 'requestsPerMinute', 'breakerAfter'] as const) {
    for (const value of field === 'breakerAfter' ? wrong : [0, ...wrong]) {
      await expect(
        setProviderLimits(world.pool, 'p', { [field]: value }),
        `${field}: ${value}`,
      ).rejects.toMatchObject({ code: 'bad_request', details: { field } });
    }
    for (const value of [1, 1_000_000, null]) await setProviderLimits(world.pool, 'p', { [field]: value });
  }
  await setProviderLimits(world.pool, 'p', { breakerAfter: 0 });
  for (const name of ['', 'a\u0000b', '\ud800', 'openai:gpt'])
    await expect(setProviderLimits(world.pool, name, { maxConcurrent: 1 }), name).rejects.toMatchObject({
      code: 'bad_request',
      details: { field: 'name' },
    });
});

describe('limits that are changed while turns wait', () => {
  const overdue = () => findOverdueProviders(world.pool);

  test('make the next sweep check them at once', async () => {
    await setProviderLimits(world.pool, 'p', { requestsPerMinute: 1 });
    const turns = await running(4);
    expect(outcomes(await enter(turns))).toEqual(['admitted', 'waiting', 'waiting', 'waiting']);
    expect(await overdue()).toEqual([]);
    await setProviderLimits(world.pool, 'p', { requestsPerMinute: null });
    expect(await overdue()).toEqual(['p']);
    expect((await wakeProvider(world.pool, 'p')).rings).toHaveLength(3);
  });

  test('end the pause of a failing provider when its breaker is switched off', async () => {
    await setProviderLimits(world.pool, 'p', { breakerAfter: 1 });
    expect((await noteProviderFailure(world.pool, 'p', { hasSucceeded: false })).closedForMs).toBeGreaterThan(
      5_000,
    );
    const turns = await running(3);
    expect(outcomes(await enter(turns))).toEqual(['waiting', 'waiting', 'waiting']);
    await setProviderLimits(world.pool, 'p', { breakerAfter: 0 });
    expect(await overdue()).toEqual(['p']);
    expect((await wakeProvider(world.pool, 'p')).rings).toHaveLength(3);
    expect(await noteProviderFailure(world.pool, 'p', { hasSucceeded: false })).toEqual({
      closedForMs: null,
    });
  });

  test('do not wait for a turn whose row in the line is locked', async () => {
    await setProviderLimits(world.pool, 'p', { requestsPerMinute: 1 });
    const turns = await running(3);
    await enter(turns);
    const client = await world.pool.connect();
    await client.query('begin');
    await client.query(
      'select from boxcar.waits where turn_id = (select turn_id from boxcar.waits order by created_at limit 1) for update',
    );
    await setProviderLimits(world.pool, 'p', { requestsPerMinute: null });
    await client.query('rollback');
    client.release();
    expect(await overdue()).toEqual(['p']);
  });
});

describe('calls at once', () => {
  beforeEach(() => setProviderLimits(world.pool, 'p', { maxConcurrent: 3 }));

  test('are exactly as many as allowed, also when many ask at the same time; the other turns wait without a worker', async () => {
    const turns = await running(24);
    const asked = await Promise.all(
      Array.from({ length: 6 }, (_, n) => enter(turns.slice(n * 4, n * 4 + 4))),
    );
    expect(outcomes(asked.flat()).filter((outcome) => outcome === 'admitted')).toHaveLength(3);
    expect(await world.count('waits', "kind = 'limit' and provider = 'p' and due_at is not null")).toBe(21);
    expect(await world.count('turns', "status = 'suspended' and holder_id is null")).toBe(21);
    expect(await listProviders(world.pool)).toMatchObject([{ in_use: 3, waiting: 21 }]);
  });

  test('B3: leave their room to the turn that has waited longest, and new turns find no room while a turn waits', async () => {
    const first = await running(3);
    const later = await running(3);
    const [newcomer] = await running(1);
    await enter(first);
    await enter(later);
    const { rings, lookAfterMs } = await leave(first.slice(0, 2));
    expect(idsOf(rings)).toEqual(idsOf(later.slice(0, 2)));
    expect(lookAfterMs).toBeGreaterThan(0);
    if (newcomer === undefined) throw new Error('no turn');
    expect(outcomes(await enter([newcomer]))).toEqual(['waiting']);
    // Their places are kept.
    const again = await claimAgain(rings);
    expect(outcomes(await enterProvider(world.pool, 'p', { callers: again }))).toEqual(
      again.map(() => 'admitted'),
    );
    expect(await listProviders(world.pool)).toMatchObject([{ in_use: 3, waiting: 2 }]);
    // There is room, but no turn has been woken for it yet.
    await setProviderLimits(world.pool, 'p', { maxConcurrent: 4 });
    expect(outcomes(await enter(await running(1)))).toEqual(['waiting']);
    expect(idsOf((await wakeProvider(world.pool, 'p')).rings)).toEqual(idsOf(later.slice(2)));
  });

  test('do not count an attempt of a turn that waited: no model was asked', async () => {
    const turns = await running(4);
    await enter(turns);
    expect(await world.count('steps')).toBe(3);
    const { rings } = await leave(turns.slice(0, 1));
    expect(await claimAgain(rings)).toMatchObject([{ step: 1, attempt: 1, epoch: 2 }]);
    expect(await world.count('steps')).toBe(4);
  });

  test('B2: free their room with the lease of a killed worker, and do not return when its turns continue', async () => {
    const killed = await world.worker({ concurrency: 10 });
    const lost = await running(3, killed);
    const callers = lost.map((turn) => callerOf(turn, { holderId: killed }));
    await enterProvider(world.pool, 'p', { callers });
    const waiting = await running(2);
    await enter(waiting);
    expect((await wakeProvider(world.pool, 'p')).rings).toEqual([]);
    await world.pool.query('update boxcar.workers set lease_until = now() where id = $1', [killed]);
    expect(idsOf((await wakeProvider(world.pool, 'p')).rings)).toEqual(idsOf(waiting));
    // A worker whose lease comes back finds that its places were given away.
    await renewLease(world.pool, killed, { leaseMs: 60_000, hasLock: true });
    expect(await listProviders(world.pool)).toMatchObject([{ in_use: 2 }]);
  });

  test('are kept for a woken turn only for a limited time', async () => {
    const turns = await running(5);
    await enter(turns);
    const { rings } = await leave(turns.slice(0, 1));
    expect(idsOf(rings)).toEqual(idsOf(turns.slice(3, 4)));
    expect((await wakeProvider(world.pool, 'p', { now: at(9) })).rings).toEqual([]);
    const after = await wakeProvider(world.pool, 'p', { now: at(11) });
    expect(idsOf(after.rings)).toEqual(idsOf(turns.slice(4)));
  });

  test('of a stale worker suspend nothing, and the leave of a stale worker frees no place of another turn', async () => {
    const [turn] = await running(1);
    const others = await running(3);
    if (turn === undefined) throw new Error('no turn');
    await enter(others);
    const stale = callerOf(turn, { epoch: 7 });
    expect(outcomes(await enterProvider(world.pool, 'p', { callers: [stale] }))).toEqual(['fenced']);
    expect(await world.statusOf(turn)).toBe('running');
    const [other] = others;
    if (other === undefined) throw new Error('no turn');
    await leaveProvider(world.pool, 'p', { turns: [callerOf(other, { epoch: 0 })], hasProved: false });
    expect(await listProviders(world.pool)).toMatchObject([{ in_use: 3 }]);
  });

  test('B4: of a worker that has lost its turn are refused, and the next holder keeps its place', async () => {
    const lapsed = await world.worker();
    const [turn] = await running(1, lapsed);
    if (turn === undefined) throw new Error('no turn');
    const old = callerOf(turn, { holderId: lapsed });
    await enterProvider(world.pool, 'p', { callers: [old] });
    await world.pool.query('update boxcar.workers set lease_until = now() where id = $1', [lapsed]);
    const [next] = await claimAgain(await takeOver(world.pool, { maxLosses: 10, limit: 10 }));
    if (next === undefined) throw new Error('not taken over');
    // The place of the old holder no longer counts, although the turn is held again.
    expect(await listProviders(world.pool)).toMatchObject([{ in_use: 0 }]);
    expect(outcomes(await enterProvider(world.pool, 'p', { callers: [next] }))).toEqual(['admitted']);
    await renewLease(world.pool, lapsed, { leaseMs: 60_000, hasLock: true });
    for (const isRepeated of [false, true]) {
      const entries = await enterProvider(world.pool, 'p', { callers: [old], isRepeated });
      expect(outcomes(entries)).toEqual(['fenced']);
    }
    expect(await world.rows('select epoch from boxcar.provider_slots')).toEqual([{ epoch: next.epoch }]);
  });

  test('of a batch are found by parts of the batch that are marked as repeated', async () => {
    const callers = (await running(5)).map((turn) => callerOf(turn));
    const first = await enterProvider(world.pool, 'p', { callers });
    const again = await Promise.all(
      callers.map((caller) => enterProvider(world.pool, 'p', { callers: [caller], isRepeated: true })),
    );
    expect(outcomes(again.flat())).toEqual(outcomes(first));
    expect(await listProviders(world.pool)).toMatchObject([{ in_use: 3, waiting: 2 }]);
  });

  test('wake each waiting turn once, however many processes look at the same time', async () => {
    const turns = await running(9);
    await enter(turns);
    const woken = await Promise.all([
      ...turns.slice(0, 3).map((turn) => leave([turn])),
      ...Array.from({ length: 5 }, () => wakeProvider(world.pool, 'p')),
    ]);
    const ids = idsOf(woken.flatMap(({ rings }) => rings));
    expect(ids.toSorted()).toEqual(idsOf(turns.slice(3, 6)).toSorted());
  });

  test('skip a locked turn, which is woken when it is free', async () => {
    const first = await running(3);
    const [locked, next] = await running(2);
    if (locked === undefined || next === undefined) throw new Error('no turns');
    await enter([...first, locked, next]);
    await using row = await lockTurn(locked);
    const { rings, lookAfterMs } = await leave(first.slice(0, 2));
    expect(idsOf(rings)).toEqual([next.turnId]);
    expect(lookAfterMs).toBeLessThan(5_000);
    expect((await wakeProvider(world.pool, 'p')).rings).toEqual([]);
    await row.unlock();
    expect(idsOf((await wakeProvider(world.pool, 'p')).rings)).toEqual([locked.turnId]);
  });

  test('are checked again soon for a locked turn, even if nothing limits the calls any more', async () => {
    const first = await running(3);
    const [locked] = await running(1);
    if (locked === undefined) throw new Error('no turn');
    await enter([...first, locked]);
    await setProviderLimits(world.pool, 'p', { maxConcurrent: null });
    await using row = await lockTurn(locked);
    const { lookAfterMs } = await wakeProvider(world.pool, 'p');
    expect(lookAfterMs).toBeGreaterThan(100);
    expect(lookAfterMs).toBeLessThan(5_000);
    await row.unlock();
    expect(idsOf((await wakeProvider(world.pool, 'p')).rings)).toEqual([locked.turnId]);
  });

  test('are given to others while a turn that finds no room is locked', async () => {
    const first = await running(3);
    const [locked, next] = await running(2);
    if (locked === undefined || next === undefined) throw new Error('no turns');
    await enter(first);
    await using row = await lockTurn(locked);
    const refused = enter([locked]);
    await waitFor(
      async () =>
        (
          await world.rows(
            "select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'",
          )
        ).length > 0,
      { message: 'it waits for its turn' },
    );
    const startedAt = performance.now();
    // One place for each, whichever of the two asks first.
    await leave(first.slice(0, 2));
    expect(outcomes(await enter([next]))).toEqual(['admitted']);
    // Less than one lock limit of the connection.
    expect(performance.now() - startedAt).toBeLessThan(3_000);
    await row.unlock();
    expect(outcomes(await refused)).toEqual(['admitted']);
  });

  test('do not wait for a turn that ended while it waited', async () => {
    const turns = await running(5);
    await enter(turns);
    const [, , , ended, next] = turns;
    if (ended === undefined || next === undefined) throw new Error('no turns');
    const end = await world.commit(ended, { step: 'none', end: 'timeout', holder: null });
    await commitSteps(world.pool, [end]);
    expect(await world.count('waits')).toBe(1);
    expect(idsOf((await leave(turns.slice(0, 1))).rings)).toEqual([next.turnId]);
  });

  test('do not wait for an entry in the line that an older build has left of an ended turn', async () => {
    const turns = await running(5);
    await enter(turns);
    const [, , , ended, next] = turns;
    if (ended === undefined || next === undefined) throw new Error('no turns');
    const [wait] = await world.rows('select * from boxcar.waits where turn_id = $1', [ended.turnId]);
    await commitSteps(world.pool, [
      await world.commit(ended, { step: 'none', end: 'timeout', holder: null }),
    ]);
    await world.pool.query(
      'insert into boxcar.waits select (jsonb_populate_record(null::boxcar.waits, $1)).*',
      [JSON.stringify(wait)],
    );
    expect(idsOf((await leave(turns.slice(0, 1))).rings)).toEqual([next.turnId]);
    expect(await world.count('waits')).toBe(0);
  });
});

describe('calls per minute', () => {
  test('are counted from the moment at which the call may begin, however long its provider was locked', async () => {
    await setProviderLimits(world.pool, 'p', { requestsPerMinute: 1 });
    const turns = await running(1);
    const client = await world.pool.connect();
    await client.query('begin');
    await client.query("select from boxcar.providers where name = 'p' for update");
    const entering = enter(turns);
    await waitFor(
      async () =>
        (
          await world.rows(
            "select from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()",
          )
        ).length === 1,
      { message: 'the caller waits for the lock' },
    );
    const [freed] = (await client.query<{ at: Date }>('select clock_timestamp() as at')).rows;
    await client.query('rollback');
    client.release();
    expect(outcomes(await entering)).toEqual(['admitted']);
    const [paced] = await world.rows<{ began: Date }>(
      "select paced_until - interval '1 minute' as began from boxcar.providers",
    );
    expect(paced?.began.getTime()).toBeGreaterThanOrEqual(freed?.at.getTime() ?? Number.NaN);
  });

  test('are exact when many ask at the same time, and waiting turns are woken at the pace', async () => {
    await setProviderLimits(world.pool, 'p', { requestsPerMinute: 20 });
    const turns = await running(8);
    const now = new Date();
    const asked = await Promise.all(turns.map((turn) => enter([turn], now)));
    expect(outcomes(asked.flat()).filter((outcome) => outcome === 'admitted')).toHaveLength(2);
    const waiting = asked.flat().flatMap((entry) => (entry.outcome === 'waiting' ? [entry.lookAfterMs] : []));
    const everyMs = 60_000 / 19;
    expect(Math.round(waiting[0] ?? 0)).toBe(Math.round(everyMs));
    const moment = (ms: number): Date => new Date(now.getTime() + ms);
    expect((await wakeProvider(world.pool, 'p', { now: moment(everyMs - 10) })).rings).toEqual([]);
    const one = await wakeProvider(world.pool, 'p', { now: moment(everyMs + 10) });
    expect(one.rings).toHaveLength(1);
    expect(one.lookAfterMs).toBeGreaterThan(everyMs - 100);
    // The rate has room for the kept place.
    const callers = await claimAgain(one.rings);
    expect(outcomes(await enterProvider(world.pool, 'p', { callers, now: moment(everyMs + 20) }))).toEqual([
      'admitted',
    ]);
    expect(await findOverdueProviders(world.pool, { now: moment(10_000) })).toEqual(['p']);
  });
});

describe('a provider that fails', () => {
  const fail = (options: { hasSucceeded?: boolean; now?: Date } = {}) =>
    noteProviderFailure(world.pool, 'p', { hasSucceeded: false, ...options });

  test('is not asked for a while, then by a single call, whose answer lets all turns continue', async () => {
    await setProviderLimits(world.pool, 'p', { breakerAfter: 3 });
    const told = await Promise.all([fail(), fail(), fail(), fail()]);
    expect(told.map(({ closedForMs }) => closedForMs !== null).toSorted()).toEqual([
      false,
      false,
      true,
      true,
    ]);
    expect(await findGatedProviders(world.pool)).toEqual(['p']);
    const turns = await running(4);
    expect(outcomes(await enter(turns))).toEqual(['waiting', 'waiting', 'waiting', 'waiting']);
    expect((await wakeProvider(world.pool, 'p', { now: at(9) })).rings).toEqual([]);
    const tries = await wakeProvider(world.pool, 'p', { now: at(11) });
    expect(idsOf(tries.rings)).toEqual(idsOf(turns.slice(0, 1)));
    const callers = await claimAgain(tries.rings);
    expect(await enterProvider(world.pool, 'p', { callers, now: at(12) })).toEqual([
      { outcome: 'admitted', isProbe: true },
    ]);
    expect((await wakeProvider(world.pool, 'p', { now: at(20) })).rings).toEqual([]);
    const after = await leaveProvider(world.pool, 'p', { turns: callers, hasProved: true, now: at(21) });
    expect(after.rings).toHaveLength(3);
    expect(await findGatedProviders(world.pool)).toEqual([]);
  });

  test('is tried by another call when the trying call never reports', async () => {
    await setProviderLimits(world.pool, 'p', { breakerAfter: 1 });
    await fail();
    const turns = await running(2);
    await enter(turns);
    const callers = await claimAgain((await wakeProvider(world.pool, 'p', { now: at(11) })).rings);
    expect(callers).toHaveLength(1);
    await enterProvider(world.pool, 'p', { callers, now: at(12) });
    expect((await wakeProvider(world.pool, 'p', { now: at(60) })).rings).toEqual([]);
    expect((await wakeProvider(world.pool, 'p', { now: at(75) })).rings).toHaveLength(1);
  });
});

describe('a place that was kept', () => {
  const moment = (from: Date, ms: number): Date => new Date(from.getTime() + ms);
  const enterAs = (callers: readonly Caller[], now: Date) =>
    enterProvider(world.pool, 'p', { callers, now }).then(outcomes);

  test('is void once the provider is closed off: then one call at a time tries, and one outage makes one pause', async () => {
    await setProviderLimits(world.pool, 'p', { maxConcurrent: 10, breakerAfter: 1 });
    const first = await running(10);
    await enter(first);
    const turns = await running(10);
    await enter(turns);
    const callers = await claimAgain((await leave(first)).rings);
    expect(callers).toHaveLength(10);
    const opened = await noteProviderFailure(world.pool, 'p', {
      hasSucceeded: false,
      caller: callerOf(first[0] as TestTurn),
    });
    expect(Math.round((opened.closedForMs ?? 0) / 1_000)).toBe(10);
    expect(await enterAs(callers.slice(0, 3), at(1))).toEqual(['waiting', 'waiting', 'waiting']);
    const others = callers.slice(3);
    expect(await enterAs(others, at(11))).toEqual([
      'waiting',
      'waiting',
      'waiting',
      'waiting',
      'waiting',
      'waiting',
      'waiting',
    ]);
    const tries = await claimAgain((await wakeProvider(world.pool, 'p', { now: at(12) })).rings);
    expect(tries.map(({ turnId }) => turnId)).toEqual(idsOf(turns.slice(0, 1)));
    expect(await enterProvider(world.pool, 'p', { callers: tries, now: at(12) })).toEqual([
      { outcome: 'admitted', isProbe: true },
    ]);
    expect((await wakeProvider(world.pool, 'p', { now: at(13) })).rings).toEqual([]);
  });

  test('passes to an earlier turn that arrives late, which does not go to the end of the line', async () => {
    await setProviderLimits(world.pool, 'p', { requestsPerMinute: 10 });
    const start = new Date();
    const turns = await running(12);
    expect((await enter(turns, start)).filter(({ outcome }) => outcome === 'admitted')).toHaveLength(1);
    // Each turn is claimed 12 seconds after it was woken, but its place is kept for 10 seconds only.
    const called: number[] = [];
    const coming: { caller: Caller; at: number }[] = [];
    for (let ms = 0; ms <= 90_000; ms += 1_000) {
      const now = moment(start, ms);
      while ((coming[0]?.at ?? Infinity) <= ms) {
        const caller = coming.shift()?.caller as Caller;
        const [outcome] = await enterAs([caller], now);
        if (outcome !== 'admitted') continue;
        called.push(ms);
        await leaveProvider(world.pool, 'p', { turns: [caller], hasProved: false, now });
      }
      const { rings } = await wakeProvider(world.pool, 'p', { now });
      for (const caller of await claimAgain(rings)) coming.push({ caller, at: ms + 12_000 });
    }
    // After the first 18 seconds, no pause is as long as a place is kept.
    expect(called.length).toBeGreaterThanOrEqual(9);
    for (const [index, ms] of called.entries())
      if (index > 0) expect(ms - (called[index - 1] ?? 0)).toBeGreaterThanOrEqual(6_000);
  });

  test('that is lost leaves the turn its position: the turn is woken before all later turns', async () => {
    await setProviderLimits(world.pool, 'p', { maxConcurrent: 1 });
    const [calling, late, next] = (await running(3)) as [TestTurn, TestTurn, TestTurn];
    await enter([calling]);
    await enter([late]);
    await enter([next]);
    const [ringed] = await claimAgain((await leave([calling])).rings);
    if (ringed === undefined) throw new Error('not woken');
    // Its place is passed on to the next turn, which calls.
    const passed = await claimAgain((await wakeProvider(world.pool, 'p', { now: at(11) })).rings);
    expect(idsOf(passed)).toEqual([next.turnId]);
    expect(await enterAs(passed, at(11))).toEqual(['admitted']);
    await enterProvider(world.pool, 'p', {
      callers: (await running(1)).map((turn) => callerOf(turn)),
      now: at(11),
    });
    expect(await enterAs([ringed], at(12))).toEqual(['waiting']);
    const after = await leaveProvider(world.pool, 'p', { turns: passed, hasProved: false, now: at(13) });
    expect(idsOf(after.rings)).toEqual([late.turnId]);
  });
});

describe('a call that tries a failing provider', () => {
  const closeOff = async (): Promise<void> => {
    await setProviderLimits(world.pool, 'p', { breakerAfter: 1 });
    await noteProviderFailure(world.pool, 'p', { hasSucceeded: false });
  };
  const probe = async (now: Date): Promise<Caller> => {
    const [caller] = await claimAgain((await wakeProvider(world.pool, 'p', { now })).rings);
    if (caller === undefined) throw new Error('nobody is woken');
    expect(await enterProvider(world.pool, 'p', { callers: [caller], now })).toEqual([
      { outcome: 'admitted', isProbe: true },
    ]);
    return caller;
  };

  test('passes its right to the next caller at once when it is canceled', async () => {
    await closeOff();
    const turns = await running(3);
    await enter(turns);
    const caller = await probe(at(11));
    const { rings } = await leaveProvider(world.pool, 'p', {
      turns: [caller],
      hasProved: false,
      now: at(12),
    });
    expect(idsOf(rings)).toEqual(idsOf(turns.slice(1, 2)));
    // The turn that may call now is canceled before it calls.
    const woken = turns[1] as TestTurn;
    await commitSteps(world.pool, [
      await world.commit(woken, { step: 'none', end: 'canceled', holder: null }),
    ]);
    expect(idsOf((await wakeProvider(world.pool, 'p', { now: at(13) })).rings)).toEqual(
      idsOf(turns.slice(2)),
    );
  });

  test('loses its right with the lease of its worker', async () => {
    await closeOff();
    const turns = await running(2);
    await enter(turns);
    const killed = await world.worker({ concurrency: 10 });
    const [caller] = await claimAgain((await wakeProvider(world.pool, 'p', { now: at(11) })).rings, killed);
    if (caller === undefined) throw new Error('nobody is woken');
    await enterProvider(world.pool, 'p', { callers: [caller], now: at(11) });
    await world.pool.query('update boxcar.workers set lease_until = now() where id = $1', [killed]);
    expect(idsOf((await wakeProvider(world.pool, 'p', { now: at(12) })).rings)).toEqual(
      idsOf(turns.slice(1)),
    );
  });

  test('starts the pause again once, whatever the calls that tried earlier report', async () => {
    await closeOff();
    const turns = await running(3);
    await enter(turns);
    const first = await probe(at(11));
    const second = await probe(at(72));
    const closedFor = async (caller: Caller, now: Date): Promise<number> =>
      Math.round(
        ((await noteProviderFailure(world.pool, 'p', { hasSucceeded: false, caller, now })).closedForMs ??
          0) / 1_000,
      );
    expect(await closedFor(first, at(80))).toBe(20);
    expect(await closedFor(second, at(90))).toBe(10);
    await leaveProvider(world.pool, 'p', { turns: [first, second], hasProved: false, now: at(90) });
    expect(await closedFor(await probe(at(101)), at(102))).toBe(40);
  });
});

describe('answers of other workers', () => {
  const fail = (caller: Partial<Caller> = {}, hasSucceeded = false) =>
    noteProviderFailure(world.pool, 'p', {
      hasSucceeded,
      caller: { turnId: callerOf(turn).turnId, epoch: 1, holderId: holder, ...caller },
    });
  let turn: TestTurn;
  let other: WorkerId;
  const beat = (answers: Readonly<Record<string, number>> = {}) =>
    renewLease(world.pool, other, { leaseMs: 60_000, hasLock: true, answers });

  beforeEach(async () => {
    await setProviderLimits(world.pool, 'p', { breakerAfter: 3 });
    [turn] = (await running(1)) as [TestTurn];
    other = await world.worker();
  });

  test('start the count again: a host with a broken network does not close a provider for other hosts', async () => {
    for (let n = 0; n < 12; n++) {
      expect(await fail()).toEqual({ closedForMs: null });
      if (n % 2 === 1) await beat({ p: 0 });
    }
  });

  test('are waited for: nothing is closed off before every worker has reported whether it had an answer', async () => {
    await beat();
    for (let n = 0; n < 12; n++) expect(await fail()).toEqual({ closedForMs: null });
    await beat({ q: 0 });
    expect((await fail()).closedForMs).toBeGreaterThan(0);
  });

  test('count only when they are later than the first failure', async () => {
    await fail();
    await fail();
    await beat({ p: 60_000 });
    expect((await fail()).closedForMs).toBeGreaterThan(0);
  });

  test('that pass through the gate count at once', async () => {
    await setProviderLimits(world.pool, 'p', { maxConcurrent: 5 });
    const callers = (await running(1, other)).map((one) => callerOf(one, { holderId: other }));
    await fail();
    await fail();
    await enterProvider(world.pool, 'p', { callers });
    await leaveProvider(world.pool, 'p', { turns: callers, hasProved: false, hasAnswered: true });
    expect(await world.rows('select failures from boxcar.providers')).toEqual([{ failures: 0 }]);
  });

  test('of a worker whose lease has expired are not waited for', async () => {
    await beat();
    for (let n = 0; n < 3; n++) await fail();
    await world.pool.query('update boxcar.workers set lease_until = now() where id = $1', [other]);
    expect((await fail()).closedForMs).toBeGreaterThan(0);
  });
});

test('entering, leaving and waking cost a constant number of statements', async () => {
  const counts: number[] = [];
  for (const size of [2, 20]) {
    await setProviderLimits(world.pool, 'p', { maxConcurrent: size });
    const turns = await running(size * 2);
    let n = 0;
    const pool = new Proxy(world.pool, {
      get: (target, key) => {
        if (key !== 'connect') return Reflect.get(target, key, target);
        return async () => {
          const client = await target.connect();
          return new Proxy(client, {
            get: (of, name) => {
              const value: unknown = Reflect.get(of, name, of);
              if (name === 'query') n++;
              return typeof value === 'function' ? value.bind(of) : value;
            },
          });
        };
      },
    });
    const callers = turns.map((turn) => callerOf(turn));
    await enterProvider(pool, 'p', { callers });
    await leaveProvider(pool, 'p', { turns: callers, hasProved: false });
    counts.push(n);
    await world.pool.query('delete from boxcar.provider_slots');
  }
  expect(counts[0]).toBe(counts[1]);
});
