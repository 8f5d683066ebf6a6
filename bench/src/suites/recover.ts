import { setTimeout as delay } from 'node:timers/promises';
import pg from 'pg';
import { forkBoxcarWorker, openCaller, PROFILE, submitTurn } from '../boxcar/system.js';
import { Cleanup } from '../cleanup.js';
import { LOCK_KEY } from '../floor/lock-key.js';
import type { QueueName } from '../options.js';
import { quantile } from '../report.js';
import type { Bench, Figures } from '../suite.js';
import { ANSWER, type Target } from '../system.js';
import { forkWorker } from '../worker-process.js';
import { targetOf } from './pair.js';

const CONCURRENCY = 10;
const SAMPLES = 8;
/** Long enough to kill the worker in, short enough to wait for. */
const THINKING_MS = 2_000;
const POLL_MS = 2;
const PATIENCE_MS = 60_000;

/**
 * kill -9 of a worker with a turn in a model call, while another worker is alive: the time until the other worker has the turn. The floor
 * is the time until Postgres gives the lock of a killed process to a process that waits for it.
 */
export async function benchRecover(bench: Bench, queue: QueueName): Promise<Figures> {
  const { servers, options, say } = bench;
  const samples = Math.min(options.samples ?? SAMPLES, SAMPLES);
  const target = targetOf(servers, queue, options.concurrency ?? CONCURRENCY);
  const own = await killWorkers(target, samples);
  const floor: number[] = [];
  for (let at = 0; at < samples; at += 1) floor.push(await freeLock(target));
  say(`recover ${queue}: ${samples} workers killed`);
  return {
    p50: { value: quantile(own, 0.5), floor: quantile(floor, 0.5) },
    max: { value: Math.max(...own), floor: Math.max(...floor) },
  };
}

async function killWorkers(target: Target, samples: number): Promise<number[]> {
  await using cleanup = new Cleanup();
  const caller = openCaller(target);
  cleanup.defer(() => caller.close());
  const profile = { ...PROFILE, name: 'thinking', script: [{ say: ANSWER, delayMs: THINKING_MS }] };
  await caller.runtime.applyProfile(profile);
  const observer = new pg.Client({ connectionString: target.databaseUrl });
  await observer.connect();
  cleanup.defer(() => observer.end());
  const holderOf = async (turnId: string): Promise<number | undefined> => {
    const { rows } = await observer.query<{ pid: number }>(
      `select (w.info->>'pid')::int as pid from boxcar.turns t join boxcar.workers w on w.id = t.holder_id
       where t.id = $1 and t.status = 'running'`,
      [turnId],
    );
    return rows[0]?.pid;
  };
  const until = async (what: string, holds: () => Promise<boolean>): Promise<void> => {
    const deadline = performance.now() + PATIENCE_MS;
    while (!(await holds())) {
      if (performance.now() > deadline)
        throw new Error(`recover: waited ${PATIENCE_MS / 1000} s in vain until ${what}`);
      await delay(POLL_MS);
    }
  };
  const alive = new Map<number, () => Promise<void>>();
  cleanup.defer(() => Promise.all([...alive.values()].map((close) => close())));
  // Starts all at once, and one more than are killed: a worker that has just started is not yet watched.
  await Promise.all(
    Array.from({ length: samples + 1 }, async () => {
      const worker = await forkBoxcarWorker(target);
      alive.set(worker.pid, () => worker.close());
    }),
  );
  const isEachWatched = async (): Promise<boolean> => {
    const { rows } = await observer.query<{ watched: number }>(
      `select count(distinct objid)::int as watched from pg_locks
       where locktype = 'advisory' and not granted and database = (select oid from pg_database where datname = current_database())`,
    );
    return rows[0]?.watched === alive.size;
  };
  const turnIds: string[] = [];
  const times: number[] = [];
  for (let at = 0; at < samples; at += 1) {
    if (alive.size > 1) await until('each worker is watched by another', isEachWatched);
    const turnId = await submitTurn(caller.runtime, profile.name);
    turnIds.push(turnId);
    let victim: number | undefined;
    await until('a worker has the turn', async () => {
      victim = await holderOf(turnId);
      return victim !== undefined;
    });
    if (victim === undefined) throw new Error('recover: nobody has the turn');
    // Within the model call, at a random point between two heartbeats.
    await delay(200 + Math.random() * 1_000);
    alive.delete(victim);
    process.kill(victim, 'SIGKILL');
    const from = performance.now();
    await until('another worker has the turn', async () => {
      const pid = await holderOf(turnId);
      return pid !== undefined && pid !== victim;
    });
    times.push(performance.now() - from);
  }
  for (const turnId of turnIds) {
    const { status } = await caller.runtime.waitForTurn(turnId);
    if (status !== 'success') throw new Error(`recover: turn ${turnId} ended as ${status}`);
  }
  return times;
}

async function freeLock(target: Target): Promise<number> {
  const holder = await forkWorker(new URL('../floor/lock-holder', import.meta.url), target);
  const client = new pg.Client({ connectionString: target.databaseUrl });
  await client.connect();
  try {
    const waiting = client.query('select pg_advisory_lock($1)', [LOCK_KEY]);
    await delay(50);
    process.kill(holder.pid, 'SIGKILL');
    const from = performance.now();
    await waiting;
    return performance.now() - from;
  } finally {
    await client.end();
  }
}
