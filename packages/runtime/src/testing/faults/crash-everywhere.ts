/**
 * Cuts a scenario at every statement that it sends, and compares what comes of it with a run without faults.
 *
 * C1  Every statement of the run counts, from the start of the worker to its goodbye, whoever sends it: the submitter, the
 *     worker, its sweep. Each is cut before it reaches the server, and after it took effect but before anybody knows.
 * C2  `connection`: that one breaks and the process goes on. `process`: nothing of the process gets through any more; its
 *     code goes on, which is harder to survive than its death. Only `after`: before the next one is the same moment.
 * C3  Nothing is waited for that a clock decides: another worker sweeps as if it were later.
 */
import { setTimeout as delay } from 'node:timers/promises';
import { type StatementFault, type StatementProxy, statementProxy, waitFor } from '@boxcar/testkit';
import type { ToolQueue } from '../../tool-queue.js';
import { persistentClient } from './client.js';
import { countUnfinished, describeDifference } from './conclude.js';
import { Lane, RECOVERY_AHEAD_MS } from './lane.js';
import type { Outcome } from './outcome.js';
import type { Scenario } from './scenario.js';
import { prepareScene } from './scene.js';
import { openStage, type Stage } from './stage.js';

/** Longer than what is tried again by itself waits in between. */
const QUIET_MS = 30;
/** No statement is under way, probably. */
const PAUSE_MS = 3;
/** The worker under fault sweeps so far ahead: rings count as lost, its own lease does not. */
const NEAR_MS = 20_000;
const LEASE_MS = 30_000;
const SWEEPS = 3;
const STARTS = 5;
const RECOVERY = { deadlineMs: 20_000, intervalMs: 2 };
/** What runs side by side now and then takes one statement fewer: then the case is run again. */
const TRIES = 3;

export interface CrashOptions {
  /** Cases at once. */
  readonly concurrency?: number;
  /** For scenarios with queue tools. */
  readonly toolQueue?: ToolQueue;
}

export interface CrashReport {
  /** What a run without faults sends. */
  readonly statements: readonly string[];
  readonly cases: number;
  /** Cases whose fault struck. */
  readonly struck: number;
  /** Cases whose runs ended before the statement: it was one of those that come and go with the timing. */
  readonly absent: number;
  /** Cases that another worker had to finish. */
  readonly rescued: number;
  /** Each names scenario, statement and moment. */
  readonly failures: readonly string[];
}

interface Run {
  readonly outcome: Outcome;
  readonly statements: readonly string[];
  readonly struck: string | undefined;
  readonly isRescued: boolean;
}

interface Fault extends StatementFault {
  readonly at: { readonly text: string; readonly nth: number };
}

const countOf = (statements: readonly string[], text: string): number =>
  statements.filter((other) => other === text).length;

/** Which one of its text it is: what runs side by side changes places from run to run, and its number with it. */
const occurrence = (statements: readonly string[], index: number): Fault['at'] => {
  const text = statements[index] ?? '';
  return { text, nth: countOf(statements.slice(0, index + 1), text) };
};

const MOMENTS: readonly Omit<StatementFault, 'at'>[] = [
  { scope: 'connection', when: 'before' },
  { scope: 'connection', when: 'after' },
  { scope: 'process', when: 'after' },
];

export async function crashEverywhere(scenario: Scenario, options: CrashOptions = {}): Promise<CrashReport> {
  const { concurrency = 2, toolQueue } = options;
  const scene = await prepareScene(scenario);
  const shared = { scenario, ...(toolQueue === undefined ? {} : { toolQueue }) };
  const lanes = await Promise.all(Array.from({ length: concurrency }, () => Lane.open(scene, shared)));
  const [first] = lanes;
  if (first === undefined) throw new Error('concurrency must be at least 1');
  const closing: Promise<void>[] = [];
  const run = (lane: Lane, fault?: StatementFault) => runOnce(lane, { ...shared, fault, closing });
  const calm = await run(first);
  const queue = calm.statements.flatMap((_text, index) =>
    MOMENTS.map((moment): Fault => ({ at: occurrence(calm.statements, index), ...moment })),
  );
  const cases = queue.length;
  const failures: string[] = [];
  let struck = 0;
  let absent = 0;
  let rescued = 0;
  const work = async (lane: Lane): Promise<void> => {
    for (let fault = queue.shift(); fault !== undefined; fault = queue.shift()) {
      try {
        const faulty = await untilStruck(() => run(lane, fault));
        if (faulty.struck !== undefined) struck += 1;
        else if (countOf(faulty.statements, fault.at.text) < fault.at.nth) absent += 1;
        else throw new Error('the fault did not strike');
        if (faulty.isRescued) rescued += 1;
        const difference = describeDifference(calm.outcome, faulty.outcome);
        if (difference !== undefined) throw new Error(difference);
      } catch (error) {
        failures.push(describeCase(scenario, fault, error));
      }
    }
  };
  await Promise.all(lanes.map(work));
  await Promise.all(closing);
  for (const lane of lanes) await lane[Symbol.asyncDispose]();
  await scene.close();
  return { statements: calm.statements, cases, struck, absent, rescued, failures };
}

async function untilStruck(run: () => Promise<Run>): Promise<Run> {
  for (let tries = 1; ; tries += 1) {
    const faulty = await run();
    if (faulty.struck !== undefined || tries === TRIES) return faulty;
  }
}

interface RunOptions extends Pick<CrashOptions, 'toolQueue'> {
  readonly scenario: Scenario;
  readonly fault: StatementFault | undefined;
  /** Gets what need not be waited for now. */
  readonly closing: Promise<void>[];
}

async function runOnce(lane: Lane, { fault, closing, ...shared }: RunOptions): Promise<Run> {
  const { database, rescuer } = lane;
  await lane.reset();
  const proxy = await statementProxy(database.url, fault);
  const stage = openStage({
    ...shared,
    databaseUrl: proxy.url,
    effects: database.pool,
    leaseMs: LEASE_MS,
  });
  const isDead = (): boolean => fault?.scope === 'process' && proxy.struck !== undefined;
  const countOpen = (): Promise<number> => countUnfinished(database.pool);
  let isDriven = false;
  try {
    const client = persistentClient(() => (isDead() ? rescuer : stage));
    const driven = start(stage, isDead)
      .then(() => shared.scenario.drive(client))
      .finally(() => {
        isDriven = true;
      });
    // Who waits for it is told; until then it is nobody's.
    driven.catch(() => undefined);
    const isOver = async (): Promise<boolean> => isDriven && (await countOpen()) === 0;
    await goOn(stage, { proxy, isDead, isOver });
    const isRescued = !(await isOver());
    if (isRescued) {
      await waitFor(
        async () => {
          await rescuer.sweep(RECOVERY_AHEAD_MS);
          return isOver();
        },
        { message: 'another worker has ended all turns', ...RECOVERY },
      );
    }
    await driven;
    // The goodbye is part of the run: it is cut like the rest, and must not undo anything.
    if (!isDead()) await stage.close();
    const outcome = await lane.conclude();
    return { outcome, statements: [...proxy.statements], struck: proxy.struck, isRescued };
  } finally {
    const closed = stage.close().then(() => proxy[Symbol.asyncDispose]());
    if (isDead()) closing.push(closed);
    else await closed;
  }
}

/** Whoever starts a worker starts it again when it could not. */
async function start(stage: Stage, isDead: () => boolean): Promise<void> {
  for (let attempt = 1; !isDead(); attempt += 1) {
    try {
      await stage.work();
      return;
    } catch (error) {
      if (attempt === STARTS) throw error;
    }
  }
}

/** Lets the process under fault do what it can by itself, its sweep included. */
async function goOn(
  stage: Stage,
  watched: {
    readonly proxy: StatementProxy;
    readonly isDead: () => boolean;
    readonly isOver: () => Promise<boolean>;
  },
): Promise<void> {
  const { proxy, isDead, isOver } = watched;
  for (let sweeps = 0; !isDead(); ) {
    await delay(PAUSE_MS);
    if (proxy.quietMs < PAUSE_MS) continue;
    if (await isOver()) return;
    if (proxy.quietMs < QUIET_MS) continue;
    if (sweeps === SWEEPS) return;
    sweeps += 1;
    await stage.sweep(NEAR_MS).catch(() => undefined);
  }
}

function describeCase(scenario: Scenario, fault: Fault, error: unknown): string {
  const start = fault.at.text.replace(/\s+/g, ' ').trim().slice(0, 200);
  const message = error instanceof Error ? error.message : String(error);
  return `${scenario.name}: the ${fault.scope} is cut ${fault.when} time ${fault.at.nth} of (${start}):\n${message}`;
}
