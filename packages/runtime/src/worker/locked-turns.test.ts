/** Turns whose rows another session has locked do not delay the other turns of their worker. */
import type { TurnId } from '@boxcar/kernel';
import { createModelRouter } from '@boxcar/llm';
import { registerWorker } from '@boxcar/store';
import { waitFor } from '@boxcar/testkit';
import pg from 'pg';
import { describe, expect, test, vi } from 'vitest';
import { z } from 'zod';
import { newId } from '../lib/new-id.js';
import { type Harness, harness } from '../testing/harness.js';
import { LockedClaims } from './locked-claims.js';

const NEVER_MS = 3_600_000;
/** How long a statement waits for a lock under the lease of these tests. */
const LOCK_MS = 800;
const LEASE_MS = 2_000;

async function launch(h: Harness): Promise<TurnId> {
  const answer = await h.runtime.submit('launch_principal', { profile_name: 'writer', instruction: 'go' });
  return (answer as { turn_id: TurnId }).turn_id;
}

const succeeded = async (h: Harness): Promise<number> =>
  (await h.rows("select from boxcar.turns where status = 'success'")).length;

async function lock(h: Harness, turnIds: readonly TurnId[]): Promise<pg.Client> {
  const stranger = new pg.Client({ connectionString: h.database.url });
  await stranger.connect();
  await stranger.query('begin');
  await stranger.query('select from boxcar.turns where id = any ($1) for update', [turnIds]);
  return stranger;
}

/** Waits until this many turns have ended, and returns how long that took. */
async function timeOf(h: Harness, count: number): Promise<number> {
  const startedAt = performance.now();
  await waitFor(async () => (await succeeded(h)) === count, {
    message: `${count} have ended`,
    deadlineMs: 60_000,
    intervalMs: 20,
  });
  return performance.now() - startedAt;
}

test('a turn is claimed after one lock limit although many others of its batch are locked', async () => {
  await using h = await harness();
  await h.profile('writer', [{ say: 'done' }]);
  // Makes room in the window, and claims nothing.
  await registerWorker(h.database.pool, {
    id: newId<'worker'>(),
    lockKey: '4712',
    targets: [''],
    concurrency: 10,
    leaseMs: NEVER_MS,
    info: {},
  });
  const ids: TurnId[] = [];
  for (let n = 0; n < 9; n += 1) ids.push(await launch(h));
  const stranger = await lock(h, ids.slice(0, 8));
  await h.worker({ concurrency: 20, sweepMs: NEVER_MS, leaseMs: LEASE_MS });
  expect(await timeOf(h, 1)).toBeLessThan(LOCK_MS * 2.5);
  await stranger.end();
  await timeOf(h, 9);
});

test('a turn is committed although more turns are locked than there are places for batches', async () => {
  const gates = new Map<string, () => void>();
  const router = createModelRouter({});
  await using h = await harness({
    model: {
      ...router,
      generate: async (request, options) => {
        await new Promise<void>((settle) => gates.set(request.turn.turnId, settle));
        return router.generate(request, options);
      },
    },
  });
  await h.profile('writer', [{ say: 'done' }]);
  await h.worker({ sweepMs: NEVER_MS, leaseMs: LEASE_MS });
  const ids: TurnId[] = [];
  for (let n = 0; n < 6; n += 1) ids.push(await launch(h));
  const [free, ...locked] = ids as [TurnId, ...TurnId[]];
  await waitFor(() => gates.size === 6, { message: 'all models are asked', deadlineMs: 60_000 });
  const stranger = await lock(h, locked);
  const waiting = () =>
    h.rows(
      'select from pg_locks l join pg_stat_activity a on a.pid = l.pid where not l.granted and a.datname = current_database()',
    );
  for (const id of locked) {
    gates.get(id)?.();
    // Longer than the patience of a batch, so each turn has a batch of its own while there are slots.
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
  gates.get(free)?.();
  expect(await timeOf(h, 1)).toBeLessThan(LOCK_MS * 3.5);
  // Turns that wait for locks hold at most two connections: one reads, the other waits in line.
  await waitFor(async () => (await waiting()).length <= 2, {
    message: 'they have left their places',
    intervalMs: 5,
  });
  const seen: number[] = [];
  for (let n = 0; n < 20; n += 1) {
    seen.push((await waiting()).length);
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
  expect(Math.max(...seen)).toBeLessThanOrEqual(2);
  await stranger.end();
  await timeOf(h, 6);
});

/** Records the waiting statements that are sent meanwhile, with the number of turns whose tapes each waits for. */
function watchWaits(): { readonly sizes: number[] } & Disposable {
  const sizes: number[] = [];
  const query = pg.Client.prototype.query;
  const spy = vi.spyOn(pg.Client.prototype, 'query').mockImplementation(function (this: pg.Client, ...args) {
    const [config] = args as unknown as [pg.QueryConfig | string];
    if (typeof config !== 'string' && /no key update of b(?! skip locked)/.test(config.text)) {
      const [turnIds] = (config.values ?? []).filter((value) => Array.isArray(value));
      sizes.push((turnIds as unknown[] | undefined)?.length ?? 1);
    }
    return query.apply(this, args);
  });
  return { sizes, [Symbol.dispose]: () => spy.mockRestore() };
}

/** A worker whose models and tools wait until `open`, and the turns that it holds. */
async function gated(profile: { readonly script: readonly object[]; readonly tools?: readonly string[] }) {
  const gates = new Map<string, () => void>();
  const wait = (turnId: string): Promise<void> => new Promise((settle) => gates.set(turnId, settle));
  const router = createModelRouter({});
  const h = await harness({
    model: {
      ...router,
      generate: async (request, options) => {
        if (request.turn.step === profile.script.length) await wait(request.turn.turnId);
        return router.generate(request, options);
      },
    },
  });
  h.runtime.registerTool({
    name: 'look',
    description: 'Looks.',
    input: z.strictObject({}),
    run: async (_input, { turnId }) => wait(turnId),
  });
  const { script, ...rest } = profile;
  await h.profile('writer', script as never, rest);
  return {
    h,
    gates,
    allWait: (n: number) => waitFor(() => gates.size === n, { message: 'all wait', deadlineMs: 60_000 }),
    open: () => {
      for (const [turnId, settle] of gates) {
        gates.delete(turnId);
        settle();
      }
    },
  };
}

async function lockTapes(h: Harness, turnIds: readonly TurnId[]): Promise<pg.Client> {
  const stranger = new pg.Client({ connectionString: h.database.url });
  await stranger.connect();
  await stranger.query('begin');
  await stranger.query(
    'select from boxcar.boxes where id in (select output_box_id from boxcar.turns where id = any ($1)) for no key update',
    [turnIds],
  );
  return stranger;
}

const launchMany = async (h: Harness, n: number): Promise<TurnId[]> => {
  const ids: TurnId[] = [];
  for (let index = 0; index < n; index += 1) ids.push(await launch(h));
  return ids;
};

test('turns are claimed and committed while the tapes of others of their batch are locked, and wait for none of them', async () => {
  const { h, allWait, open } = await gated({ script: [{ say: 'done' }] });
  await using _ended = h;
  // Makes room in the window, and claims nothing.
  await registerWorker(h.database.pool, {
    id: newId<'worker'>(),
    lockKey: '4713',
    targets: [''],
    concurrency: 10,
    leaseMs: NEVER_MS,
    info: {},
  });
  const ids = await launchMany(h, 15);
  const unclaimed = await lockTapes(h, ids.slice(0, 1));
  using waits = watchWaits();
  await h.worker({ concurrency: 20, sweepMs: NEVER_MS });
  await allWait(14);
  const uncommitted = await lockTapes(h, ids.slice(1, 2));
  open();
  await timeOf(h, 13);
  expect(waits.sizes.filter((turns) => turns > 1)).toEqual([]);
  await unclaimed.end();
  await allWait(1);
  await uncommitted.end();
  open();
  await timeOf(h, 15);
});

test('the calls of turns are answered while the tapes of others of their batch are locked', async () => {
  const { h, allWait, open } = await gated({
    script: [{ calls: [{ tool: 'look', arguments: {} }] }, { say: 'done' }],
    tools: ['look'],
  });
  await using _ended = h;
  await h.worker({ concurrency: 20, sweepMs: NEVER_MS });
  const ids = await launchMany(h, 10);
  await allWait(10);
  const stranger = await lockTapes(h, ids.slice(0, 2));
  using waits = watchWaits();
  open();
  await allWait(8);
  expect(waits.sizes.filter((turns) => turns > 1)).toEqual([]);
  await stranger.end();
  await allWait(10);
  open();
  await timeOf(h, 10);
});

/** Longer than all tries of a batch take, and shorter than a statement waits for a lock under the default lease. */
const SOON_MS = 3_500;

describe('while the row of one turn is locked, the others of its batch end', () => {
  /** Runs turns that all ask their model, locks a row, and lets all models answer at the same moment. */
  async function endTogether(
    h: Harness,
    { open, locked, others }: { open: () => void; locked: TurnId; others: readonly TurnId[] },
  ): Promise<void> {
    const stranger = await lock(h, [locked]);
    const startedAt = performance.now();
    open();
    await waitFor(
      async () => {
        const rows = await h.rows("select from boxcar.turns where id = any ($1) and status = 'success'", [
          others,
        ]);
        return rows.length === others.length;
      },
      { message: 'the others have ended', deadlineMs: 60_000, intervalMs: 20 },
    );
    expect(performance.now() - startedAt).toBeLessThan(SOON_MS);
    await stranger.end();
  }
  const allEnded = (h: Harness, keepOpen: () => void) =>
    waitFor(
      async () => {
        keepOpen();
        return (await h.rows('select from boxcar.turns where ended_at is null')).length === 0;
      },
      { message: 'all have ended', deadlineMs: 60_000 },
    );

  test.each(['expert', 'parent'] as const)(
    'with an end that answers its parent, and a lock on the row of the %s',
    async (whose) => {
      const { h, allWait, open } = await gated({ script: [{ say: 'done' }] });
      await using _ended = h;
      const question = { expert_profile: 'writer', question: 'why?' };
      await h.profile(
        'boss',
        [{ calls: [{ tool: 'ask_expert', arguments: question }] }, { say: 'done' }] as never,
        { tools: ['ask_expert'], delegation_policy: { target_profiles: null } },
      );
      await h.worker({ concurrency: 30, sweepMs: NEVER_MS });
      const boss = (await h.runtime.submit('launch_principal', {
        profile_name: 'boss',
        instruction: 'go',
      })) as {
        turn_id: TurnId;
      };
      // The gate of `boss` is its first step; it then waits for the expert.
      await allWait(1);
      open();
      const expert = async () =>
        (
          await h.rows<{ id: TurnId }>('select id from boxcar.turns where parent_turn_id = $1', [
            boss.turn_id,
          ])
        )[0]?.id;
      await waitFor(async () => (await expert()) !== undefined, { message: 'the expert is asked' });
      await allWait(1);
      const others = await launchMany(h, 12);
      await allWait(13);
      const locked = whose === 'parent' ? boss.turn_id : ((await expert()) as TurnId);
      await endTogether(h, { open, locked, others });
      await allEnded(h, open);
    },
  );
});

test('locked turns give their slots back: a worker with as many slots as locked turns runs the others', async () => {
  const { h, allWait, open } = await gated({ script: [{ say: 'done' }] });
  await using _ended = h;
  await registerWorker(h.database.pool, {
    id: newId<'worker'>(),
    lockKey: '4714',
    targets: [''],
    concurrency: 10,
    leaseMs: NEVER_MS,
    info: {},
  });
  const ids = await launchMany(h, 6);
  const stranger = await lockTapes(h, ids.slice(0, 2));
  await h.worker({ concurrency: 2, sweepMs: 200 });
  const startedAt = performance.now();
  for (const n of [2, 4]) {
    await allWait(2);
    open();
    await timeOf(h, n);
  }
  // A claim that keeps its slot waits for its lock 15 seconds.
  expect(performance.now() - startedAt).toBeLessThan(8_000);
  // Their rings return, and do not hold slots for long either.
  const more = await launchMany(h, 2);
  await allWait(2);
  open();
  await timeOf(h, 6);
  expect(
    await h.rows("select from boxcar.turns where id = any ($1) and status = 'success'", [more]),
  ).toHaveLength(2);
  await stranger.end();
  await allWait(2);
  open();
  await timeOf(h, 8);
  expect(await h.rows('select from boxcar.sweep_failures')).toEqual([]);
  expect(await h.rows('select from boxcar.turns where losses > 0')).toEqual([]);
});

test('a turn that has met a lock is forgotten after its time, although slots are always free', () => {
  const locked = new LockedClaims();
  let now = 0;
  const clock = vi.spyOn(performance, 'now').mockImplementation(() => now);
  const additions = vi.spyOn(Map.prototype, 'set');
  for (let n = 0; n < 100; n += 1) {
    const turnId = newId<'turn'>();
    locked.patienceFor(turnId, true);
    locked.record(turnId);
    now += 60_000;
  }
  const remembered = additions.mock.contexts.at(-1) as Map<TurnId, number>;
  additions.mockRestore();
  clock.mockRestore();
  expect(remembered.size).toBe(1);
});
