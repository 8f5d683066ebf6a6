/** Turns whose rows another session has locked do not hold up the other turns of their worker. */
import type { TurnId } from '@boxcar/kernel';
import { createModelRouter } from '@boxcar/llm';
import { registerWorker } from '@boxcar/store';
import { waitFor } from '@boxcar/testkit';
import pg from 'pg';
import { expect, test } from 'vitest';
import { newId } from '../packer.js';
import { type Harness, harness } from '../testing/harness.js';

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

/** Returns once it has ended, and how long that took. */
async function timeOf(h: Harness, count: number): Promise<number> {
  const startedAt = performance.now();
  await waitFor(async () => (await succeeded(h)) === count, {
    message: `${count} have ended`,
    deadlineMs: 40_000,
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
  await waitFor(() => gates.size === 6, { message: 'all models are asked', deadlineMs: 20_000 });
  const stranger = await lock(h, locked);
  const waiting = () =>
    h.rows(
      'select from pg_locks l join pg_stat_activity a on a.pid = l.pid where not l.granted and a.datname = current_database()',
    );
  for (const id of locked) {
    gates.get(id)?.();
    // Longer than the patience of a batch: each has a batch of its own, as long as there are places.
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
  gates.get(free)?.();
  expect(await timeOf(h, 1)).toBeLessThan(LOCK_MS * 3.5);
  // What waits for locks holds two connections at most.
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
