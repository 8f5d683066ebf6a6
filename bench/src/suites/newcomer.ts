/** How long an idle project waits for its first turn while another project occupies every place. */
import { setTimeout as delay } from 'node:timers/promises';
import { newId, type Runtime } from '@boxcar/runtime';
import pg from 'pg';
import { forkBoxcarWorker, openCaller, PROFILE, readReceipt } from '../boxcar/system.js';
import { Cleanup } from '../cleanup.js';
import { listen, openBell } from '../floor/doorbell.js';
import { openDatabase } from '../servers.js';
import type { Bench } from '../suite.js';
import { ANSWER, type Target } from '../system.js';
import { targetOf } from './pair.js';

const CONCURRENCY = 30;
const TURNS = 300;
const NEWCOMERS = 5;
const THINKING_MS = 1_000;
const POLL_MS = 20;
const PATIENCE_MS = 60_000;
/** Each with twice the turns of the previous one. */
const MAX_RUSHES = 5;

/** The common procedure of both sides: one project fills the worker, then newcomers arrive one after the other, at equal intervals. */
interface Rush {
  readonly turns: number;
  readonly newcomers: number;
  readonly everyMs: number;
}

/**
 * @returns For each newcomer, the milliseconds from the second end of another turn after its submission to its own end; 0 if it ended
 *   before. The longest of them for Boxcar, and for a bare first-in, first-out queue.
 */
export async function measureNewcomer({
  servers,
  options,
  say,
}: Bench): Promise<{ readonly value: number; readonly floor: number }> {
  const concurrency = options.concurrency ?? CONCURRENCY;
  const turns = Math.max(Math.min(options.turns ?? TURNS, TURNS), 2 * concurrency);
  const newcomers = Math.min(options.rounds, NEWCOMERS);
  // The last newcomer arrives during the last wave but one, so that turns of others still end after its arrival.
  const everyMs = ((turns / concurrency - 1) * THINKING_MS) / (newcomers + 1);
  await using cleanup = new Cleanup();
  const database = await openDatabase(servers, 'newcomer');
  cleanup.defer(() => database[Symbol.asyncDispose]());
  const target: Target = { ...targetOf(servers, 'redis', concurrency), databaseUrl: database.url };
  const rush: Rush = { turns, newcomers, everyMs };
  const bare = await untilMeasured(rush, (wide) => rushQueue(target, wide));
  const own = await untilMeasured(rush, (wide) => rushBoxcar(target, wide));
  say(
    `newcomer: ${newcomers} beside ${turns} turns of ${THINKING_MS / 1000} s, ${concurrency} at once; ms after two ends: ${own.map(Math.round).join(', ')}; first in, first out: ${bare.map(Math.round).join(', ')}`,
  );
  return { value: Math.max(...own), floor: Math.max(...bare) };
}

/** On a busy machine a newcomer may arrive when fewer than two turns are left to end: then it gives no measurement. */
async function untilMeasured(
  rush: Rush,
  measure: (rush: Rush) => Promise<readonly (number | null)[]>,
): Promise<readonly number[]> {
  for (let attempt = 0; attempt < MAX_RUSHES; attempt += 1) {
    const measured = await measure({ ...rush, turns: rush.turns * 2 ** attempt });
    const found = measured.filter((ms) => ms !== null);
    if (found.length === measured.length) return found.map((ms) => Math.max(0, ms));
  }
  throw new Error('newcomer: the turns of the busy project ended too early every time');
}

async function rushBoxcar(target: Target, rush: Rush): Promise<readonly (number | null)[]> {
  await using cleanup = new Cleanup();
  const { runtime, close } = openCaller(target);
  cleanup.defer(close);
  const pool = new pg.Pool({ connectionString: target.databaseUrl, max: 1 });
  cleanup.defer(() => pool.end());
  const busy = await createProject(pool, runtime, THINKING_MS);
  const arrivals: string[] = [];
  for (let at = 0; at < rush.newcomers; at += 1) arrivals.push(await createProject(pool, runtime, 0));
  const worker = await forkBoxcarWorker(target);
  cleanup.defer(() => worker.close());
  await Promise.all(Array.from({ length: rush.turns }, () => submitTo(runtime, busy)));
  await untilBusy(pool, target.concurrency);
  const turnIds: string[] = [];
  for (const projectId of arrivals) {
    await delay(rush.everyMs);
    turnIds.push(await submitTo(runtime, projectId));
  }
  for (const [at, turnId] of turnIds.entries()) {
    const { status } = await runtime.waitForTurn(turnId, { projectId: arrivals[at] ?? '' });
    if (status !== 'success') throw new Error(`newcomer: turn ${turnId} ended as ${status}`);
  }
  const { rows } = await pool.query<{ ms: number | null }>(
    `select extract(epoch from turn.ended_at - (
       select ended_at from boxcar.turns where project_id = $2 and ended_at > turn.created_at order by ended_at offset 1 limit 1
     ))::float8 * 1000 as ms from boxcar.turns turn where turn.id = any($1::uuid[])`,
    [turnIds, busy],
  );
  return rows.map(({ ms }) => ms);
}

/** @returns The id of a new project with a profile that thinks for `delayMs`. */
async function createProject(pool: pg.Pool, runtime: Runtime, delayMs: number): Promise<string> {
  const [projectId, operatorId] = [newId<'project'>(), newId<'agent'>()];
  await pool.query(
    `with operator as (insert into boxcar.agents (id, project_id, name) values ($2, $1, 'operator'))
     insert into boxcar.projects (id, name, operator_agent_id, bootstrap_card_id) select $1::uuid, $1::text, $2, bootstrap_card_id from boxcar.projects limit 1`,
    [projectId, operatorId],
  );
  await runtime.applyProfile({ ...PROFILE, script: [{ say: ANSWER, delayMs }] }, { projectId });
  return projectId;
}

async function submitTo(runtime: Runtime, projectId: string): Promise<string> {
  const receipt = await runtime.submit(
    'launch_principal',
    { profile_name: PROFILE.name, instruction: 'Count.' },
    { projectId },
  );
  return readReceipt(receipt).turn_id;
}

async function untilBusy(pool: pg.Pool, count: number): Promise<void> {
  const deadline = performance.now() + PATIENCE_MS;
  for (;;) {
    const { rows } = await pool.query<{ running: number }>(
      "select count(*)::int as running from boxcar.turns where status = 'running'",
    );
    if ((rows[0]?.running ?? 0) >= count) return;
    if (performance.now() > deadline) throw new Error('newcomer: the worker never had all its places busy');
    await delay(POLL_MS);
  }
}

/** The same with only a queue. */
async function rushQueue(target: Target, rush: Rush): Promise<readonly (number | null)[]> {
  await using cleanup = new Cleanup();
  const bell = openBell({ databaseUrl: target.databaseUrl, redisUrl: target.redisUrl });
  cleanup.defer(() => bell.close());
  const ids = Array.from({ length: rush.turns }, () => newId());
  const arrivals = Array.from({ length: rush.newcomers }, () => ({ id: newId(), at: 0 }));
  const busy = new Set<string>(ids);
  // The queue may still have jobs of an earlier suite.
  const own = new Set<string>([...ids, ...arrivals.map(({ id }) => id)]);
  const ends = new Map<string, number>();
  let announceEnd: () => void;
  const allEnded = new Promise<void>((settle) => {
    announceEnd = settle;
  });
  const worker = listen(
    { databaseUrl: target.databaseUrl, redisUrl: target.redisUrl },
    {
      concurrency: target.concurrency,
      handle: async ({ turn_id }) => {
        if (!own.has(turn_id)) return;
        if (busy.has(turn_id)) await delay(THINKING_MS);
        ends.set(turn_id, performance.now());
        if (ends.size === own.size) announceEnd();
      },
    },
  );
  cleanup.defer(() => worker.close());
  await bell.ringAll(ids.map((turn_id) => ({ turn_id, epoch: 1 })));
  for (const arrival of arrivals) {
    await delay(rush.everyMs);
    arrival.at = performance.now();
    await bell.ring({ turn_id: arrival.id, epoch: 1 });
  }
  await allEnded;
  const endsOfOthers = ids.map((id) => ends.get(id) ?? 0).sort((a, b) => a - b);
  return arrivals.map(({ id, at }) => {
    const second = endsOfOthers.filter((end) => end > at)[1];
    return second === undefined ? null : (ends.get(id) ?? 0) - second;
  });
}
