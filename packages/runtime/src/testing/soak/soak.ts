/**
 * Applies load and faults to real processes for a given time, and reports the faults and the promises that held.
 *
 * S1  Every accepted turn ends, whatever faults occur. Turns that succeed have the expected result.
 * S2  A tool that may run once runs at most once. The invariants hold. No worker ends by itself.
 * S3  While one process is killed, stopped or cut off, the others continue: turns that are submitted in the meantime end within the lease
 *     plus 2 s, or within 12 s if that process is a caller.
 * S4  All cards of ended runs are erased under load. Immediately afterwards, and after everything has ended, no table contains their words.
 * S5  Runs are purged under load, a while after their end. Their results are checked before.
 * S6  The same seed chooses the same load and the same faults; their effects depend on the machine.
 */
import { setTimeout as delay } from 'node:timers/promises';
import { tryParseId } from '@boxcar/kernel';
import { createModelRouter } from '@boxcar/llm';
import { createPool, loadTurnStates } from '@boxcar/store';
import { inspectInvariants } from '@boxcar/store/report';
import { tcpProxy, waitFor } from '@boxcar/testkit/standalone';
import type pg from 'pg';
import { deliverableOf } from '../../lib/deliverable.js';
import { openRuntime } from '../../open.js';
import { openQueues } from '../../queue/queues.js';
import { EFFECTS_TABLE } from '../faulty.js';
import { Pace } from '../stops/pace.js';
import { Callers } from './callers.js';
import { Erasures } from './erasures.js';
import { faultsOf } from './faults.js';
import { Fleet } from './fleet.js';
import { type Accepted, Load } from './load.js';
import { Others } from './others.js';
import type { SoakPlace } from './place.js';
import { Purger } from './purger.js';
import { createRandom } from './random.js';

const WORKERS = 3;
const CALLERS = 2;
/** The number of open turns that the load maintains. */
const MAX_OPEN = 60;
const SUBMITTERS = 4;
const PAUSES_MS = [100, 800] as const;
/** The time by which the soak is extended, repeatedly, while an erasure is still missing. */
const A_WHILE_MS = 1_000;
/** After the last fault no process is disturbed anymore, so nothing may take long. */
const END_DEADLINE_MS = 120_000;

export interface SoakOptions {
  /** The longest time during which faults strike. */
  readonly seconds: number;
  /** No more faults are started after this many turns have been accepted. */
  readonly turns?: number;
  readonly seed: number;
  /**
   * After that, continues until the cards of a run have been erased and searched for, because a busy machine may not get to that in time.
   */
  readonly untilErased?: boolean;
  /** Called from time to time with one line about the progress. */
  readonly progress?: (line: string) => void;
}

export interface SoakReport {
  readonly seed: number;
  readonly seconds: number;
  /** How often each fault occurred. */
  readonly struck: Readonly<Record<string, number>>;
  /** The longest time of a turn that another caller submitted while one process was under fault, in milliseconds. */
  readonly longestMs: Readonly<Record<string, number>>;
  readonly accepted: number;
  /** Submissions that were repeated because the database was unavailable. */
  readonly repeated: number;
  /** Runs whose cards were erased. */
  readonly erased: number;
  /** Erased cards whose words were searched for in all tables. */
  readonly checked: number;
  /** Runs that were purged. */
  readonly purged: number;
  /** Turns that were not purged, including children, by status. */
  readonly ended: Readonly<Record<string, number>>;
  /** The promises, each with the observations that broke it. An empty list means that the promise held. */
  readonly promises: readonly { readonly promise: string; readonly broken: readonly string[] }[];
  readonly ok: boolean;
}

export async function soak(place: SoakPlace, options: SoakOptions): Promise<SoakReport> {
  const random = createRandom(options.seed);
  const postgres = await tcpProxy(place.databaseUrl);
  const redis = place.redis === undefined ? undefined : await tcpProxy(place.redis.url);
  const urls = { databaseUrl: postgres.url, ...(redis === undefined ? {} : { redisUrl: redis.url }) };
  // Connections for checks, and for the writes of tools, are not affected by faults.
  const observer = createPool({ connectionString: place.databaseUrl, max: 2, applicationName: 'observer' });
  // The connection of the purger is affected by faults of all processes, but not by faults of one process.
  const purging = createPool({ connectionString: place.databaseUrl, max: 2, applicationName: 'purger' });
  const purger = new Purger(purging, (accepted) => findWrong(observer, accepted, erasures.turnIds));
  const opened = openRuntime({ ...urls, model: createModelRouter({}) });
  const outside = serveOutside(place);
  const fleet = new Fleet({ ...urls, effectsUrl: place.databaseUrl });
  const watch = createPool({ connectionString: place.databaseUrl, max: 1, applicationName: 'pace' });
  const pace = new Pace(watch);
  const others = new Others(opened.runtime, pace);
  const erasures = new Erasures(opened.runtime.pool, observer);
  let callers: Callers | undefined;
  const struck: Record<string, number> = {};
  const failures: string[] = [];
  let endsAt = 0;
  let load: Load | undefined;
  const isOn = (): boolean =>
    performance.now() < endsAt && (load?.accepted.length ?? 0) < (options.turns ?? Number.POSITIVE_INFINITY);
  // No fault lasts beyond the end.
  const wait = (ms: number): Promise<void> =>
    delay(Math.max(0, Math.min(ms, endsAt - performance.now()))).then(() => undefined);
  try {
    await observer.query(EFFECTS_TABLE);
    await Load.prepare(opened.runtime);
    await fleet.start(WORKERS);
    const submitters = await Callers.open(CALLERS, urls);
    callers = submitters;
    const running = new Load((request) => submitters.submit(request), createRandom(options.seed + 1));
    load = running;
    const startedAt = performance.now();
    endsAt = startedAt + options.seconds * 1_000;
    const submit = async (): Promise<void> => {
      while (isOn()) {
        if (options.untilErased === true && erasures.checked === 0)
          endsAt = Math.max(endsAt, performance.now() + A_WHILE_MS);
        if ((await countOpen(observer)) < MAX_OPEN) await running.submitOne();
        else await delay(20);
      }
    };
    const strike = async (): Promise<void> => {
      const faults = [...faultsOf(place)];
      const learnsAt = performance.now();
      await others.learn();
      // No fault could start until now.
      endsAt += performance.now() - learnsAt;
      while (isOn()) {
        await wait(random.between(...PAUSES_MS));
        const [name, fault] = random.pick(faults) ?? [];
        if (name === undefined || fault === undefined || !isOn()) continue;
        const struckNow = { fleet, callers: submitters, place, postgres, redis, random, wait };
        const { strike: begin, limitMs } = fault;
        if (limitMs === undefined) await begin(struckNow);
        else {
          const usualMs = await others.untilCalm(isOn);
          if (usualMs === undefined) continue;
          await others.watch(begin(struckNow), { name, limitMs, usualMs });
        }
        struck[name] = (struck[name] ?? 0) + 1;
        options.progress?.(
          `${running.accepted.length} accepted, ${await countOpen(observer)} under way, ${sum(struck)} faults; last: ${name}`,
        );
      }
    };
    await Promise.all([
      strike(),
      erasures.run(() => running.accepted, isOn),
      purger.run(() => running.accepted, isOn),
      ...Array.from({ length: SUBMITTERS }, submit),
    ]);
    const faultsEndedAt = performance.now();
    await postgres.restore();
    await redis?.restore();
    options.progress?.('no more faults; waiting for the rest to end');
    await fleet.isWhole();
    await waitFor(async () => (await countOpen(observer)) === 0, {
      message: 'all turns have ended',
      deadlineMs: END_DEADLINE_MS,
      intervalMs: 50,
    }).catch(async (error: Error) => failures.push(error.message, ...(await describeOpen(observer))));
    const promises = [
      { promise: 'every accepted turn has ended', broken: failures },
      { promise: 'no worker has ended by itself, unless it was cut off', broken: fleet.deaths },
      {
        promise: 'while one process is killed, stopped or cut off, the others continue',
        broken: others.broken,
      },
      {
        promise: 'each turn that succeeded has the requested result',
        broken: await findWrong(observer, purger.unchecked(running.accepted), erasures.turnIds),
      },
      {
        promise: 'a purge that runs meanwhile purges ended runs, and removes nothing else',
        broken: purger.broken,
      },
      { promise: 'erased content is in no row', broken: await erasures.findLeft() },
      { promise: 'a tool that must not be repeated ran at most once', broken: await findRepeated(observer) },
      ...(await inspectInvariants(observer, { isSettled: failures.length === 0 })).map(
        ({ name, rule, broken }) => ({
          promise: `${name}: ${rule}`,
          broken: broken.map(({ id, what }) => `${id} ${what}`),
        }),
      ),
    ];
    return {
      seed: options.seed,
      seconds: Math.round((faultsEndedAt - startedAt) / 1_000),
      struck,
      longestMs: others.longestMs,
      accepted: running.accepted.length,
      repeated: submitters.repeated,
      erased: erasures.turnIds.size,
      checked: erasures.checked,
      purged: purger.removed,
      ended: await countEnds(observer),
      promises,
      ok: promises.every(({ broken }) => broken.length === 0),
    };
  } finally {
    await callers?.close();
    await fleet.close();
    await pace[Symbol.asyncDispose]();
    await watch.end();
    await outside.close();
    await opened.close();
    await purging.end();
    await observer.end();
    await postgres.close();
    await redis?.close();
  }
}

/** A worker outside, for the tools that use a queue. */
function serveOutside(place: SoakPlace): { close(): Promise<void> } {
  const queues = openQueues(
    place.redis === undefined
      ? { kind: 'postgres', url: place.databaseUrl }
      : { kind: 'redis', url: place.redis.url },
  );
  const worker = queues.worker('boxcar-tools-soak', async () => ({ answered: true }), {
    concurrency: 5,
    keepCompleted: true,
    onError: () => undefined,
  });
  return {
    close: async () => {
      await worker.close();
      await queues.close();
    },
  };
}

const sum = (counts: Readonly<Record<string, number>>): number =>
  Object.values(counts).reduce((total, n) => total + n, 0);

/** Repeats the query while the server is unavailable. */
async function ask<R extends pg.QueryResultRow>(pool: pg.Pool, text: string): Promise<R[]> {
  for (;;) {
    try {
      return (await pool.query<R>(text)).rows;
    } catch {
      await delay(50);
    }
  }
}

async function countOpen(pool: pg.Pool): Promise<number> {
  const [row] = await ask<{ n: number }>(
    pool,
    'select count(*)::int as n from boxcar.turns where ended_at is null',
  );
  return row?.n ?? 0;
}

/** The open turns, and what they wait for according to their rows. */
async function describeOpen(pool: pg.Pool): Promise<string[]> {
  const rows = await ask<{ what: string }>(
    pool,
    `
      select 'turn ' || t.id || ' is ' || t.status || ' at epoch ' || t.epoch || ', step ' || t.step_count
        || ', attempt ' || t.attempt || ', dispatched ' || coalesce(t.dispatched_at::text, 'never')
        || ', held by ' || coalesce(t.holder_id::text, 'nobody')
        || ', waits for ' || coalesce((
          select string_agg(k.name || ' ' || k.id, ', ')
          from boxcar.tool_calls k
          where k.turn_id = t.id and k.status = 'pending'
        ), 'no call') as what
      from boxcar.turns t
      where t.ended_at is null
      order by t.id
      limit 20`,
  );
  return rows.map(({ what }) => what);
}

async function countEnds(pool: pg.Pool): Promise<Record<string, number>> {
  const rows = await ask<{ status: string; n: number }>(
    pool,
    'select status, count(*)::int as n from boxcar.turns group by status order by status',
  );
  return Object.fromEntries(rows.map(({ status, n }) => [status, n]));
}

async function findWrong(
  pool: pg.Pool,
  accepted: readonly Accepted[],
  erased: ReadonlySet<string>,
): Promise<string[]> {
  const ids = accepted.flatMap(({ turnId }) => tryParseId<'turn'>(turnId) ?? []);
  const states = new Map((await loadTurnStates(pool, ids)).map((state) => [String(state.turn_id), state]));
  return accepted.flatMap(({ turnId, expected }) => {
    const state = states.get(turnId);
    if (state === undefined) return [`turn ${turnId} was accepted and does not exist`];
    const result = deliverableOf(state.content);
    // The turn may be in the middle of an erasure. A complete erasure is checked at the end.
    const isErased = erased.has(turnId) && result === '(erased)';
    return state.status === 'success' && result !== expected && !isErased
      ? [`turn ${turnId} ended with ${JSON.stringify(result)} instead of ${JSON.stringify(expected)}`]
      : [];
  });
}

async function findRepeated(pool: pg.Pool): Promise<string[]> {
  const rows = await ask<{ what: string }>(
    pool,
    `
      select 'call ' || tool_call_id || ' of ' || name || ' ran ' || count(*) || ' times' as what
      from public.effects
      where name = 'note'
      group by tool_call_id, name
      having count(*) > 1`,
  );
  return rows.map(({ what }) => what);
}
