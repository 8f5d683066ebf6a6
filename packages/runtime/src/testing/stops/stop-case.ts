/**
 * One process stops at one statement, and wakes when the others have done their work.
 *
 * C1  After the stop other processes finish the scenario. They also do unrelated work: one turn is submitted and ends, another
 *     turn is canceled.
 * C2  They have the promised time plus twice the time of a run without a stop. Time that the machine lost (`Pace`) does not count.
 * C3  Then the process wakes and ends, and the rows are the same as without the stop.
 */

import { setTimeout as delay } from 'node:timers/promises';
import type { JsonValue } from '@boxcar/kernel';
import { errorText } from '@boxcar/kernel';
import { waitFor } from '@boxcar/testkit';
import { persistentClient } from '../faults/client.js';
import { concludeScene, countUnfinished, watcherOf } from '../faults/conclude.js';
import type { Fault, Sent } from '../faults/crash-points.js';
import type { Outcome } from '../faults/outcome.js';
import type { Client } from '../faults/scenario.js';
import { describeBlockers } from './blockers.js';
import type { Pace } from './pace.js';
import { LEASE_MS, type StopLane, type Victim, type VictimHome } from './stop-lane.js';
import type { Beside, StopPlan } from './stop-plan.js';

/** The promised time for the others to continue after a worker or a caller has stopped. */
const LIMITS_MS = { worker: LEASE_MS + 2_000, caller: 12_000 } as const;
/** The time for everything to end after the wake-up. */
const WAKE = { deadlineMs: 30_000, intervalMs: 10 };
const LOOK_MS = 10;

export const BYSTANDERS = [
  { name: 'bystander', script: [{ say: 'was not held up' }] },
  { name: 'idler', script: [{ say: 'never', delayMs: 86_400_000 }] },
];

/** The pace of the machine, and the time of a run without a stop. */
export interface StopBounds {
  readonly pace: Pace;
  readonly calmMs: number;
}

export interface StopRun extends Sent {
  readonly outcome: Outcome;
  readonly struck: string | undefined;
  /** From the stop, or from the start, to the end of everything. */
  readonly tookMs: number;
  /** `tookMs` without the time that the machine lost. */
  readonly heldUpMs: number;
}

/** Work without relation to the scenario, by another caller. */
async function standBy({ client, watcher }: Beside, lane: StopLane): Promise<void> {
  const launch = (profile_name: string) =>
    client.submit('launch_principal', { profile_name, instruction: 'go' }) as Promise<{ turn_id: string }>;
  const cancelIdle = async ({ turn_id }: { readonly turn_id: string }): Promise<void> => {
    // Canceled while it runs: a turn that has not been claimed leaves other rows.
    await watcher.until(`select 1 as one from boxcar.turns where id = '${turn_id}' and status = 'running'`);
    await client.submit('cancel', { turn_id });
  };
  const [plain, idle] = await Promise.all([launch('bystander'), launch('idler')]);
  await Promise.all([
    lane.caller.runtime.waitForTurn(plain.turn_id, { timeoutMs: WAKE.deadlineMs }),
    cancelIdle(idle),
  ]);
}

/** Reports the broken promise, and which session waited for which. */
export class StopFailure extends Error {
  /** The statement at which the process stopped, if it did. */
  readonly struck: string | undefined;
  /** The others were delayed for too long, and there was no other failure. */
  readonly isLate: boolean;

  constructor(message: string, of: Pick<StopFailure, 'struck' | 'isLate'>) {
    super(message);
    this.struck = of.struck;
    this.isLate = of.isLate;
  }
}

/** Something took longer than promised. */
class LateError extends Error {}

/** @throws StopFailure */
export async function runStop(
  { lane, plan, home }: { readonly lane: StopLane; readonly plan: StopPlan; readonly home: VictimHome },
  fault: Fault | undefined,
  bounds: StopBounds | undefined,
): Promise<StopRun> {
  const { pool } = lane.backend.database;
  const { scenario, role } = plan;
  await lane.reset(scenario);
  const watcher = watcherOf(pool);
  const clientOf = (name: string): Client => persistentClient(() => lane.caller, undefined, name);
  const beside = (name: string): Beside => ({ client: clientOf(name), watcher });
  const victim = await lane.openVictim(fault, home);
  const { proxy, stage = lane.caller } = victim;
  const failures: string[] = [];
  let isOnlyLate = true;
  const isStopped = (): boolean => proxy.strike.aborted;
  try {
    await plan.before?.({ ...beside('before'), helper: lane.helper, backend: lane.backend });
    if (role === 'caller') await lane.helper.work();
    const starting = role === 'worker' ? start(victim) : Promise.resolve();
    await Promise.race([starting, untilStopped(proxy.strike)]);
    const startedAt = performance.now();
    const lostBefore = bounds?.pace.lostByNowMs ?? 0;
    const others = plan.beside;
    let isDriven = false;
    const own =
      role === 'worker'
        ? clientOf('submission')
        : persistentClient(
            () => (isStopped() && others === undefined ? lane.caller : stage),
            () => (isStopped() || others !== undefined ? undefined : proxy.strike),
          );
    const driven = Promise.resolve(scenario.drive(own, watcher)).finally(() => {
      isDriven = true;
    });
    driven.catch(() => undefined);
    const isOver = async (): Promise<boolean> => isDriven && (await countUnfinished(pool)) === 0;
    while (!isStopped() && !(await isOver())) await delay(LOOK_MS);
    let stoppedAt = startedAt;
    let lostAtStop = lostBefore;
    const help = (): void => {
      stoppedAt = performance.now();
      lostAtStop = bounds?.pace.lostByNowMs ?? 0;
      void lane.helper.work();
    };
    const allowedMs = bounds === undefined ? WAKE.deadlineMs : LIMITS_MS[role] + 2 * bounds.calmMs;
    const heldUpMs = (): number =>
      performance.now() - stoppedAt - ((bounds?.pace.lostByNowMs ?? 0) - lostAtStop);
    // C1.
    if (isStopped()) help();
    // The process may also stop at the work beside the scenario.
    else proxy.strike.addEventListener('abort', help, { once: true });
    const done: { what: string; isDone: boolean }[] = [];
    const follow = (what: string, work: Promise<unknown>): void => {
      const item = { what, isDone: false };
      done.push(item);
      work.then(
        () => {
          item.isDone = true;
        },
        (error: unknown) => {
          failures.push(`${what}: ${errorText(error)}`);
          isOnlyLate = false;
          item.isDone = true;
        },
      );
    };
    follow('work beside it', standBy(beside('bystander'), lane));
    if (others !== undefined && isStopped()) follow('work on the same rows', others(beside('beside')));
    const goesOn = async (): Promise<boolean> => {
      if (!done.every(({ isDone }) => isDone)) return false;
      return (isStopped() && others !== undefined) || isOver();
    };
    let isLate = false;
    while (!(await goesOn())) {
      if (heldUpMs() > allowedMs) {
        isLate = true;
        break;
      }
      await delay(LOOK_MS);
    }
    const tookMs = performance.now() - stoppedAt;
    const held = heldUpMs();
    if (isLate) {
      const missing = done.filter(({ isDone }) => !isDone).map(({ what }) => what);
      if (!(await isOver())) missing.unshift('the scenario');
      failures.push(
        `${missing.join(' and ')} did not continue within ${Math.round(allowedMs)} ms of the stop\n${await describeBlockers(pool, proxy.serverPorts)}`,
      );
    }
    // C3.
    await victim.wake();
    // A process that stops while it is ending is woken at once: the others have no work left.
    proxy.strike.addEventListener('abort', () => void victim.wake(), { once: true });
    await waitFor(async () => done.every(({ isDone }) => isDone) && (await isOver()), {
      message: 'everything has ended after the wake-up',
      ...WAKE,
    }).catch(async (error: Error) => {
      throw new LateError(`${error.message}\n${await describeBlockers(pool, proxy.serverPorts)}`);
    });
    const answer: JsonValue | undefined = await driven;
    const leaveAt = proxy.statements.length;
    await inTime('the process that had stopped ends', async () => {
      await starting;
      await victim.rest();
    });
    await inTime('the worker beside it ends', () => lane.helper.rest());
    const outcome = await concludeScene(pool, scenario, answer ?? null);
    if (failures.length > 0) throw new LateError(failures.join('\n'));
    const { statements, places, transactions, struck } = proxy;
    return { outcome, statements, places, transactions, leaveAt, struck, tookMs, heldUpMs: held };
  } catch (error) {
    failures.push(errorText(error));
    await victim.wake();
    const isLate = isOnlyLate && error instanceof LateError;
    throw new StopFailure([...new Set(failures)].join('\n'), { struck: proxy.struck, isLate });
  } finally {
    await inTime('what had stopped is closed', () => victim.close()).finally(() => victim.bury());
  }
}

const untilStopped = (strike: AbortSignal): Promise<void> =>
  new Promise((settle) => {
    if (strike.aborted) settle();
    else strike.addEventListener('abort', () => settle(), { once: true });
  });

/** A worker that could not start is started again. */
async function start(victim: Victim): Promise<void> {
  for (let attempt = 1; attempt <= 5; attempt += 1) {
    try {
      await victim.start();
      return;
    } catch {
      await delay(LOOK_MS);
    }
  }
}

/** @throws LateError after `WAKE.deadlineMs`. */
async function inTime(what: string, work: () => Promise<unknown>): Promise<void> {
  const limit = new AbortController();
  const late = delay(WAKE.deadlineMs, 'late' as const, { signal: limit.signal }).catch(() => 'done' as const);
  const outcome = await Promise.race([work().then(() => 'done' as const), late]);
  limit.abort();
  if (outcome === 'late') throw new LateError(`${what}: not within ${WAKE.deadlineMs} ms`);
}
