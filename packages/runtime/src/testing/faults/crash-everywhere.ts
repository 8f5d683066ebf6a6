/**
 * Cuts a scenario at the statements that it sends, and compares what comes of it with a run without faults.
 *
 * C1  Every statement of the run counts, from the start of the worker to its goodbye, whoever sends it: the submitter, the
 *     worker, its sweep. Each is cut before it reaches the server, and after it took effect but before anybody knows.
 * C2  `connection`: that one breaks and the process goes on. `process`: nothing of the process gets through any more; its
 *     code goes on, which is harder to survive than its death.
 * C3  Nothing is waited for that a clock decides: another worker sweeps as if it were later.
 * C4  A process that survives its case is used for the next: what it sends then is what one sends that has run for a while.
 *     What only a fresh one sends is cut in a fresh one.
 */
import { setTimeout as delay } from 'node:timers/promises';
import type { Doorbell } from '@boxcar/kernel';
import { type StatementProxy, statementProxy, waitFor } from '@boxcar/testkit';
import type { ToolQueue } from '../../tool-queue.js';
import { persistentClient } from './client.js';
import { countUnfinished, findFault, watcherOf } from './conclude.js';
import { everyFault, type Fault, type Sent } from './crash-points.js';
import { Lane, RECOVERY_AHEAD_MS } from './lane.js';
import type { Outcome } from './outcome.js';
import type { Scenario } from './scenario.js';
import { prepareScene } from './scene.js';
import { openStage, type Stage, type StageOptions } from './stage.js';

/** Longer than what is tried again by itself waits in between. */
const QUIET_MS = 30;
/** The same where rings come by a queue, which takes its time while others work on this machine. */
const QUEUE_QUIET_MS = 400;
/** No statement is under way, probably. */
const PAUSE_MS = 3;
/** The worker under fault sweeps so far ahead: rings count as lost, its own lease does not. */
const NEAR_MS = 20_000;
const LEASE_MS = 30_000;
/** The process that goes on after a death sweeps later than the dead one's lease, and its own lasts longer. */
const SECOND_LEASE_MS = 80_000;
const SECOND_RECOVERY_AHEAD_MS = 100_000;
const SWEEPS = 4;
const STARTS = 5;
const RECOVERY = { deadlineMs: 20_000, intervalMs: 2 };
/** What runs side by side now and then takes one statement fewer: then the case is run again. */
const TRIES = 3;

export interface CrashOptions {
  /** Cases at once. */
  readonly concurrency?: number;
  /** For scenarios with queue tools. */
  readonly toolQueue?: ToolQueue;
  /** How the process under fault is rung; by default within itself. The one that helps it out hears its own sweep alone. */
  readonly doorbell?: () => Doorbell;
  /** Where to cut, of all that a run without faults has sent. Default: everywhere. */
  readonly choose?: (sent: Sent) => Fault[];
  /** A process has died there before: what is cut is the one that goes on with its work. */
  readonly afterDeathAt?: (sent: Sent) => Fault;
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

interface Run extends Sent {
  readonly outcome: Outcome;
  readonly struck: string | undefined;
  readonly isRescued: boolean;
}

/** A process under fault. */
interface Victim {
  readonly proxy: StatementProxy;
  readonly stage: Stage;
}

const countOf = (statements: readonly string[], text: string): number =>
  statements.filter((other) => other === text).length;

export async function crashEverywhere(scenario: Scenario, options: CrashOptions = {}): Promise<CrashReport> {
  const { concurrency = 2, choose = everyFault, afterDeathAt } = options;
  const scene = await prepareScene(scenario);
  const lanes = await Promise.all(
    Array.from(
      { length: concurrency },
      async () => new Track(scenario, options, await Lane.open(scene, { scenario, ...pickQueue(options) })),
    ),
  );
  const [first] = lanes;
  if (first === undefined) throw new Error('concurrency must be at least 1');
  const failures: string[] = [];
  let struck = 0;
  let absent = 0;
  let rescued = 0;
  const whole = await first.run();
  const wrong = findFault(scenario, whole.outcome, whole.outcome);
  if (wrong !== undefined) throw new Error(`${scenario.name}, without faults: ${wrong}`);
  const death = afterDeathAt?.(whole);
  for (const lane of lanes) lane.death = death;
  const calm = death === undefined ? whole : await first.run();
  const queue = choose(calm);
  const cases = queue.length;
  const work = async (lane: Track): Promise<void> => {
    for (let fault = queue.shift(); fault !== undefined; fault = queue.shift()) {
      const { at } = fault;
      try {
        const faulty = await lane.strike(fault);
        if (faulty.struck !== undefined) struck += 1;
        else if (countOf(faulty.statements, at.text) < at.nth) absent += 1;
        else throw new Error('the fault did not strike');
        if (faulty.isRescued) rescued += 1;
        const difference = findFault(scenario, whole.outcome, faulty.outcome);
        if (difference !== undefined) throw new Error(difference);
      } catch (error) {
        failures.push(describeCase(scenario, fault, error));
      }
    }
  };
  await Promise.all(lanes.map(work));
  for (const lane of lanes) await lane[Symbol.asyncDispose]();
  await scene.close();
  return { statements: calm.statements, cases, struck, absent, rescued, failures };
}

const pickQueue = ({ toolQueue }: CrashOptions): Pick<StageOptions, 'toolQueue'> =>
  toolQueue === undefined ? {} : { toolQueue };

/** Runs case after case on the rows of one lane. */
class Track implements AsyncDisposable {
  /** Where a first process dies, when it is the second one that is cut. */
  death: Fault | undefined;
  readonly #lane: Lane;
  readonly #scenario: Scenario;
  readonly #options: CrashOptions;
  /** What need not be waited for now. */
  readonly #closing: Promise<void>[] = [];
  #warm: Victim | undefined;
  #warmSends: readonly string[] = [];

  constructor(scenario: Scenario, options: CrashOptions, lane: Lane) {
    this.#scenario = scenario;
    this.#options = options;
    this.#lane = lane;
  }

  async strike(fault: Fault): Promise<Run> {
    for (let tries = 1; ; tries += 1) {
      const faulty = await this.run(fault);
      if (faulty.struck !== undefined || tries === TRIES) return faulty;
    }
  }

  async run(fault?: Fault): Promise<Run> {
    if (fault?.scope !== 'connection' || this.death !== undefined) return this.#runFresh(fault);
    if (this.#warm === undefined) {
      this.#warm = await this.#open();
      this.#warmSends = (await this.#runWarm(this.#warm)).statements;
    }
    return countOf(this.#warmSends, fault.at.text) < fault.at.nth
      ? this.#runFresh(fault)
      : this.#runWarm(this.#warm, fault);
  }

  async #open(fault?: Fault, leaseMs = LEASE_MS): Promise<Victim> {
    const { database } = this.#lane;
    const { doorbell } = this.#options;
    const proxy = await statementProxy(database.url, fault);
    const stage = openStage({
      scenario: this.#scenario,
      ...pickQueue(this.#options),
      ...(doorbell === undefined ? {} : { doorbell: doorbell() }),
      databaseUrl: proxy.url,
      effects: database.pool,
      leaseMs,
    });
    return { proxy, stage };
  }

  async #runWarm(victim: Victim, fault?: Fault): Promise<Run> {
    try {
      await this.#lane.reset();
      victim.proxy.arm(fault);
      const run = await this.#play(victim);
      // What it does in the background still belongs to this case.
      await waitFor(() => victim.proxy.quietMs > PAUSE_MS, {
        message: 'the process is at rest',
        intervalMs: 1,
      });
      return run;
    } catch (error) {
      this.#warm = undefined;
      this.#closing.push(this.#bury(victim));
      throw error;
    }
  }

  async #runFresh(fault?: Fault): Promise<Run> {
    await this.#lane.reset();
    const { death } = this;
    const dead = death === undefined ? undefined : await this.#open(death);
    const victim = await this.#open(fault, dead === undefined ? LEASE_MS : SECOND_LEASE_MS);
    try {
      return await this.#play(victim, dead);
    } finally {
      const buried = this.#bury(victim);
      if (victim.proxy.isDead) this.#closing.push(buried);
      else await buried;
      if (dead !== undefined) this.#closing.push(this.#bury(dead));
    }
  }

  async #bury({ stage, proxy }: Victim): Promise<void> {
    await stage.close();
    await proxy[Symbol.asyncDispose]();
  }

  async #play(victim: Victim, dead?: Victim): Promise<Run> {
    const { database, rescuer } = this.#lane;
    const { stage, proxy } = victim;
    let isDriven = false;
    const current = (): Stage => {
      if (dead?.proxy.isDead === false) return dead.stage;
      return proxy.isDead ? rescuer : stage;
    };
    const driven = start(dead ?? victim)
      .then(() => this.#scenario.drive(persistentClient(current), watcherOf(database.pool)))
      .finally(() => {
        isDriven = true;
      });
    // Who waits for it is told; until then it is nobody's.
    driven.catch(() => undefined);
    if (dead !== undefined) {
      await waitFor(() => dead.proxy.isDead, { message: 'the first process is dead', ...RECOVERY });
      await start(victim);
    }
    const isOver = async (): Promise<boolean> => isDriven && (await countUnfinished(database.pool)) === 0;
    await goOn(victim, {
      aheadMs: dead === undefined ? NEAR_MS : RECOVERY_AHEAD_MS,
      quietMs: this.#options.doorbell === undefined ? QUIET_MS : QUEUE_QUIET_MS,
      isOver,
    });
    const isRescued = !(await isOver());
    if (isRescued) {
      await waitFor(
        async () => {
          await rescuer.sweep(dead === undefined ? RECOVERY_AHEAD_MS : SECOND_RECOVERY_AHEAD_MS);
          return isOver();
        },
        { message: 'another worker has ended all turns', ...RECOVERY },
      );
    }
    const answer = await driven;
    // The goodbye is part of the run: it is cut like the rest, and must not undo anything.
    if (!proxy.isDead) await stage.rest();
    const outcome = await this.#lane.conclude(answer ?? null);
    const { statements, places, isWithin, struck } = proxy;
    return { outcome, statements, places, isWithin, struck, isRescued };
  }

  async [Symbol.asyncDispose](): Promise<void> {
    if (this.#warm !== undefined) await this.#bury(this.#warm);
    await Promise.all(this.#closing);
    await this.#lane[Symbol.asyncDispose]();
  }
}

/** Whoever starts a worker starts it again when it could not. */
async function start({ stage, proxy }: Victim): Promise<void> {
  for (let attempt = 1; !proxy.isDead; attempt += 1) {
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
  { stage, proxy }: Victim,
  {
    aheadMs,
    quietMs,
    isOver,
  }: { readonly aheadMs: number; readonly quietMs: number; readonly isOver: () => Promise<boolean> },
): Promise<void> {
  for (let sweeps = 0; !proxy.isDead; ) {
    await delay(PAUSE_MS);
    if (proxy.quietMs < PAUSE_MS) continue;
    if (await isOver()) return;
    if (proxy.quietMs < quietMs) continue;
    if (sweeps === SWEEPS) return;
    sweeps += 1;
    await stage.sweep(aheadMs).catch(() => undefined);
  }
}

function describeCase(scenario: Scenario, fault: Fault, error: unknown): string {
  const text = fault.at.text.replace(/\s+/g, ' ').trim().slice(0, 200);
  const message = error instanceof Error ? error.message : String(error);
  return `${scenario.name}: the ${fault.scope} is cut ${fault.when} time ${fault.at.nth} of (${text}):\n${message}`;
}
