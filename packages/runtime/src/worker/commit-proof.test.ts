/** A worker that can no longer commit does not keep its turns from other workers. */
import { createModelRouter } from '@boxcar/llm';
import { createPool, endPool } from '@boxcar/store';
import { type TcpProxy, tcpProxy, waitFor } from '@boxcar/testkit';
import type pg from 'pg';
import { expect, test } from 'vitest';
import type { Log } from '../lib/log.js';
import { InProcessDoorbell } from '../queue/doorbell-in-process.js';
import { Runtime } from '../runtime.js';
import { createFaultyModel } from '../testing/faulty.js';
import { type Harness, harness } from '../testing/harness.js';
import { checkInvariants } from '../testing/invariants.js';
import { createLeaseClock } from './lease-clock.js';
import { createWorker, type Worker, type WorkerOptions } from './worker.js';

const LEASE_MS = 3_000;
const OPTIONS: WorkerOptions = { leaseMs: LEASE_MS, sweepMs: 200, lostRingMs: 300, graceMs: 0 };
const BY_ITSELF = { deadlineMs: 60_000 };

interface Cut extends AsyncDisposable {
  readonly h: Harness;
  readonly proxy: TcpProxy;
  readonly pool: pg.Pool;
  readonly worker: Worker;
  readonly turnId: string;
  readonly events: string[];
  /** Lets the model of the worker answer. */
  release(): void;
}

/**
 * A worker whose pool connects through a proxy, with a turn whose model does not answer. `isDirectCut`: the direct
 * connection uses the proxy too.
 */
async function heldTurn(options: { readonly isDirectCut?: boolean } = {}): Promise<Cut> {
  const h = await harness();
  const proxy = await tcpProxy(h.database.url);
  const pool: pg.Pool = createPool({ connectionString: proxy.url, max: 5 });
  const events: string[] = [];
  const log: Log = (_level, event) => void events.push(event);
  let release = (): void => undefined;
  let isAsked = false;
  const gate = new Promise<void>((resolve) => {
    release = resolve;
  });
  const runtime = new Runtime({
    pool,
    directUrl: options.isDirectCut === true ? proxy.url : h.database.url,
    doorbell: new InProcessDoorbell(),
    model: createFaultyModel(() => undefined, {
      held: () => {
        isAsked = true;
        return gate.then(() => ({ text: 'late' }));
      },
    }),
    log,
  });
  await runtime.applyProfile({ name: 'held', instructions: 'Wait.', model: 'scripted:held' });
  const worker = await createWorker(runtime, OPTIONS);
  const { turn_id: turnId } = (await runtime.submit('launch_principal', {
    profile_name: 'held',
    instruction: 'go',
  })) as { turn_id: string };
  // Before this moment the turn still reads rows, and a failed read would hand it back.
  await waitFor(() => isAsked, { message: 'the model is asked', ...BY_ITSELF });
  return {
    h,
    proxy,
    pool,
    worker,
    turnId,
    events,
    release,
    [Symbol.asyncDispose]: async () => {
      release();
      await proxy.restore();
      await worker.close({ graceMs: 0 }).catch(() => undefined);
      await runtime.close();
      await endPool(pool);
      await proxy.close();
      await h[Symbol.asyncDispose]();
    },
  };
}

const takenAt = async (h: Harness): Promise<number | undefined> => {
  const [row] = await h.rows<{ epoch: number }>('select epoch from boxcar.turns');
  return (row?.epoch ?? 0) > 1 ? performance.now() : undefined;
};

/** Another worker, whose model answers at once. */
async function healthy(h: Harness): Promise<AsyncDisposable> {
  const runtime = new Runtime({
    pool: h.database.pool,
    directUrl: h.database.url,
    doorbell: new InProcessDoorbell(),
    model: createFaultyModel(() => undefined, { held: () => ({ text: 'by another' }) }),
  });
  const worker = await createWorker(runtime, OPTIONS);
  return {
    [Symbol.asyncDispose]: async () => {
      await worker.close({ graceMs: 0 });
      await runtime.close();
    },
  };
}

test('a worker whose pool is silent gives up its lease and ends, and another worker continues its turns', async () => {
  await using cut = await heldTurn();
  await using _other = await healthy(cut.h);
  cut.proxy.stall();
  const startedAt = performance.now();
  const at = await waitFor(() => takenAt(cut.h), { message: 'the turn is taken over', ...BY_ITSELF });
  // A lease, two seconds, and two more seconds for a busy machine.
  expect(at - startedAt).toBeLessThan(LEASE_MS + 2_000 + 2_000);
  expect(cut.events).toContain('pool.silent');
  expect(await cut.worker.outdated).toMatchObject({ code: 'database_unavailable' });
  expect(cut.events).toContain('worker.cut_off');
  expect(await cut.h.runtime.waitForTurn(cut.turnId, { timeoutMs: 60_000 })).toMatchObject({
    status: 'success',
    result: 'by another',
  });
  await waitFor(() => cut.events.includes('worker.stopped'), { message: 'it ends', ...BY_ITSELF });
  await checkInvariants(cut.h.database.pool);
});

test('a worker whose connections are silent, but whose server answers, replaces them and keeps its turns', async () => {
  await using cut = await heldTurn();
  cut.proxy.stall();
  await waitFor(() => cut.events.includes('pool.silent'), { message: 'it drops them', ...BY_ITSELF });
  await cut.proxy.restore();
  const before = cut.events.length;
  cut.release();
  expect(await cut.h.runtime.waitForTurn(cut.turnId, { timeoutMs: 60_000 })).toMatchObject({
    status: 'success',
    result: 'late',
  });
  expect(cut.events.slice(before)).not.toContain('worker.cut_off');
  expect(await cut.h.rows('select epoch, losses from boxcar.turns')).toEqual([{ epoch: 1, losses: 0 }]);
});

test('a pool for which the server works is not cut off, however long the work takes', async () => {
  await using cut = await heldTurn();
  const working = Array.from({ length: cut.pool.options.max }, () =>
    cut.pool.query(`select pg_sleep(${(1.5 * LEASE_MS) / 1_000})`),
  );
  expect(await Promise.all(working)).toHaveLength(working.length);
  expect(cut.events).not.toContain('pool.silent');
  expect(cut.events).not.toContain('pool.connection_silent');
  cut.release();
  expect(await cut.h.runtime.waitForTurn(cut.turnId, { timeoutMs: 60_000 })).toMatchObject({
    status: 'success',
    result: 'late',
  });
  expect(await cut.h.rows('select epoch, losses from boxcar.turns')).toEqual([{ epoch: 1, losses: 0 }]);
});

test('a worker that is completely cut off from the server stays, and works again when the server is back', async () => {
  await using cut = await heldTurn({ isDirectCut: true });
  cut.proxy.stall();
  await waitFor(() => cut.events.includes('pool.silent'), { message: 'it drops them', ...BY_ITSELF });
  const lapsed = async (): Promise<boolean> =>
    (await cut.h.rows('select from boxcar.workers where lease_until > now()')).length === 0;
  await waitFor(lapsed, { message: 'its lease lapses', ...BY_ITSELF });
  await cut.proxy.restore();
  cut.release();
  await waitFor(async () => !(await lapsed()), { message: 'it has a lease again', ...BY_ITSELF });
  expect(cut.events).not.toContain('worker.cut_off');
  expect(await cut.h.runtime.waitForTurn(cut.turnId, { timeoutMs: 60_000 })).toMatchObject({
    status: 'success',
  });
});

test('a worker starts no model call on a lease that has lapsed while the machine was suspended', async () => {
  await using h = await harness();
  let suspendedMs = 0;
  const clock = createLeaseClock(
    () => performance.now(),
    () => Date.now() + suspendedMs,
  );
  const asked: string[] = [];
  const runtime = new Runtime({
    pool: h.database.pool,
    directUrl: h.database.url,
    doorbell: new InProcessDoorbell(),
    model: createModelRouter({
      scripted: {
        functions: {
          twice: (request) => {
            asked.push(request.model);
            // The machine is suspended during the first call.
            if (asked.length === 1) suspendedMs = 3_600_000;
            return asked.length === 1 ? { calls: [{ tool: 'tape.info', arguments: {} }] } : { text: 'done' };
          },
        },
      },
    }),
  });
  try {
    await runtime.applyProfile({
      name: 'twice',
      instructions: 'Go.',
      model: 'scripted:twice',
      tools: ['tape.info'],
    });
    // No heartbeat during the test.
    await using worker = await createWorker(
      runtime,
      { leaseMs: 600_000, sweepMs: 60_000, graceMs: 0 },
      clock,
    );
    await runtime.submit('launch_principal', { profile_name: 'twice', instruction: 'go' });
    await waitFor(() => asked.length === 1 && worker.activeCount === 0, {
      message: 'the turn is left',
      ...BY_ITSELF,
    });
    expect(asked).toHaveLength(1);
  } finally {
    await runtime.close();
  }
});
