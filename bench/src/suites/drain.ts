import { setTimeout as delay } from 'node:timers/promises';
import { newId } from '@boxcar/runtime';
import pg from 'pg';
import { forkBoxcarWorker, openCaller, PROFILE, submitTurn } from '../boxcar/system.js';
import { Cleanup } from '../cleanup.js';
import { openBell } from '../floor/doorbell.js';
import { insertTurn } from '../floor/rows.js';
import type { QueueName } from '../options.js';
import { openDatabase } from '../servers.js';
import type { Bench, Figures } from '../suite.js';
import { PROMPT, type Target } from '../system.js';
import { forkWorker, type WorkerProcess, type WorkerUsage } from '../worker-process.js';
import { settle, targetOf } from './pair.js';

const CONCURRENCY = 100;
const TURNS = 10_000;
const SUBMITTERS = 64;
/** A backlog that has not shrunk for this long is considered stuck. */
const PATIENCE_MS = 60_000;
const POLL_MS = 50;

interface Drained extends WorkerUsage {
  readonly rate: number;
}

/** A backlog that exists before its worker starts: the rate of its turns, and the memory of the worker's process meanwhile. */
export async function benchDrain(bench: Bench, queue: QueueName): Promise<Figures> {
  const { servers, options, say } = bench;
  await using database = await openDatabase(servers, `drain_${queue}`);
  const target = {
    ...targetOf(servers, queue, options.concurrency ?? CONCURRENCY),
    databaseUrl: database.url,
  };
  const turns = options.turns ?? TURNS;
  const floor = await drainFloor(target, turns);
  const boxcar = await drainBoxcar(target, turns);
  for (const [name, of] of Object.entries({ floor, boxcar }))
    say(`drain ${queue}: ${name} ${of.rate.toFixed(0)}/s, ${of.rssMiB.toFixed(0)} MiB at the end`);
  return {
    rate: { value: boxcar.rate, floor: floor.rate },
    'RSS at the end': { value: boxcar.rssMiB, floor: floor.rssMiB },
    'RSS at its peak': { value: boxcar.peakRssMiB, floor: floor.peakRssMiB },
  };
}

async function drainBoxcar(target: Target, turns: number): Promise<Drained> {
  await using cleanup = new Cleanup();
  const caller = openCaller(target);
  cleanup.defer(() => caller.close());
  await caller.runtime.applyProfile(PROFILE);
  await many(turns, () => submitTurn(caller.runtime, PROFILE.name));
  return await drain(cleanup, target, {
    turns,
    fork: () => forkBoxcarWorker(target),
    count: `select count(*)::int as ended, count(*) filter (where status = 'success')::int as succeeded
      from boxcar.turns where status not in ('queued', 'dispatched', 'running', 'suspended')`,
  });
}

async function drainFloor(target: Target, turns: number): Promise<Drained> {
  await using cleanup = new Cleanup();
  const pool = new pg.Pool({ connectionString: target.databaseUrl, max: 6 });
  cleanup.defer(() => pool.end());
  const bell = openBell({ databaseUrl: target.databaseUrl, redisUrl: target.redisUrl });
  cleanup.defer(() => bell.close());
  await many(turns, async () => {
    const id = newId();
    await insertTurn(pool, { id, promptCardId: newId(), prompt: PROMPT, joinId: null });
    await bell.ring({ turn_id: id, epoch: 1 });
  });
  return await drain(cleanup, target, {
    turns,
    fork: () => forkWorker(new URL('../floor/worker', import.meta.url), target),
    count:
      "select count(*)::int as ended, count(*)::int as succeeded from floor.turns where status = 'success'",
  });
}

async function many(count: number, work: () => Promise<unknown>): Promise<void> {
  let left = count;
  const submitter = async (): Promise<void> => {
    while (left > 0) {
      left -= 1;
      await work();
    }
  };
  await Promise.all(Array.from({ length: SUBMITTERS }, submitter));
}

/** The time from the start of the worker's process, for which a backlog must wait, to the last turn. */
async function drain(
  cleanup: Cleanup,
  target: Target,
  of: { readonly turns: number; readonly fork: () => Promise<WorkerProcess>; readonly count: string },
): Promise<Drained> {
  await settle(target.databaseUrl);
  const observer = new pg.Client({ connectionString: target.databaseUrl });
  await observer.connect();
  cleanup.defer(() => observer.end());
  const from = performance.now();
  const worker = await of.fork();
  cleanup.defer(() => worker.close());
  let before = 0;
  let deadline = performance.now() + PATIENCE_MS;
  for (;;) {
    const { rows } = await observer.query<{ ended: number; succeeded: number }>(of.count);
    const { ended = 0, succeeded = 0 } = rows[0] ?? {};
    if (succeeded < ended) throw new Error(`${ended - succeeded} turns of the backlog did not succeed`);
    if (ended === of.turns) break;
    if (ended > before) deadline = performance.now() + PATIENCE_MS;
    else if (performance.now() > deadline)
      throw new Error(`the backlog stands at ${of.turns - ended} turns for ${PATIENCE_MS / 1000} s`);
    before = ended;
    await delay(POLL_MS);
  }
  const rate = (of.turns * 1000) / (performance.now() - from);
  return { rate, ...(await worker.usage()) };
}
