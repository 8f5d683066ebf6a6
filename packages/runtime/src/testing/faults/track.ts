import { setTimeout as delay } from 'node:timers/promises';
import type { Doorbell } from '@boxcar/kernel';
import { type StatementProxy, statementProxy, waitFor } from '@boxcar/testkit';
import type { ToolQueue } from '../../tool-queue/tool-queue.js';
import { checkInvariants } from '../invariants.js';
import { describeBlockers } from '../stops/blockers.js';
import { persistentClient, untilAborted } from './client.js';
import { concludeScene, countUnfinished, watcherOf } from './conclude.js';
import { type Fault, isSent, type Sent } from './crash-points.js';
import { Lane, RECOVERY_AHEAD_MS } from './lane.js';
import type { Outcome } from './outcome.js';
import { type Cast, castOf, type Scenario } from './scenario.js';
import { openStage, type Stage } from './stage.js';

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
/**
 * Twice `awayMs`, the time limit for one record of a result: a process that lost a connection finishes by itself within
 * this time.
 */
const ALIVE_MS = 10_000;
const STARTS = 5;
const RECOVERY = { deadlineMs: 20_000, intervalMs: 2 };
/** What runs side by side now and then takes one statement fewer: then the case is run again. */
const TRIES = 3;

export interface TrackOptions {
  /** For scenarios with queue tools. */
  readonly toolQueue?: ToolQueue;
  /** How the process under fault is rung; by default within itself. The one that helps it out hears its own sweep alone. */
  readonly doorbell?: () => Doorbell;
}

export interface Run extends Sent {
  readonly outcome: Outcome;
  readonly struck: string | undefined;
  readonly isRescued: boolean;
}

/** What one run is of. */
export interface Case {
  readonly scenario: Scenario;
  readonly fault?: Fault;
  /** Where a first process dies, when it is the second one that is cut. */
  readonly death?: Fault | undefined;
}

/** A process under fault. */
interface Victim {
  readonly proxy: StatementProxy;
  readonly stage: Stage;
}

/** Runs case after case on the rows of one lane. */
export class Track implements AsyncDisposable {
  readonly #lane: Lane;
  readonly #cast: Cast;
  readonly #options: TrackOptions;
  /** What a process that has run for a while sends for each scenario. */
  readonly #calm: Map<Scenario, Run>;
  /** What need not be waited for now. */
  readonly #closing: Promise<void>[] = [];
  #warm: Victim | undefined;

  private constructor(
    lane: Lane,
    of: { readonly cast: Cast; readonly options: TrackOptions; readonly calm: Map<Scenario, Run> },
  ) {
    this.#lane = lane;
    this.#cast = of.cast;
    this.#options = of.options;
    this.#calm = of.calm;
  }

  /** @param scenarios - All that will be run on them. */
  static async open(
    scenarios: readonly Scenario[],
    { count, ...options }: TrackOptions & { readonly count: number },
  ): Promise<readonly Track[]> {
    const of = { cast: castOf(scenarios), options, calm: new Map<Scenario, Run>() };
    const open = async (): Promise<Track> =>
      new Track(await Lane.open({ cast: of.cast, ...pickQueue(options) }), of);
    return Promise.all(Array.from({ length: count }, open));
  }

  /** A run without faults: of a fresh process, or of one that has run for a while. */
  async calm(scenario: Scenario, process: 'fresh' | 'warm'): Promise<Run> {
    if (process === 'fresh') return this.#runFresh({ scenario });
    const known = this.#calm.get(scenario) ?? (await this.#runWarm({ scenario }));
    this.#calm.set(scenario, known);
    return known;
  }

  /** Another run without faults records the statements again. */
  forget(scenario: Scenario): void {
    this.#calm.delete(scenario);
  }

  /** A run that is to be struck: in a process that has run for a while when it survives and sends the statement, else in a fresh one. */
  async strike(of: Case & { readonly fault: Fault }): Promise<Run> {
    const { scenario, fault, death } = of;
    const canSurvive = fault.scope === 'connection' && death === undefined;
    const isWarm = canSurvive && isSent(await this.calm(scenario, 'warm'), fault);
    for (let tries = 1; ; tries += 1) {
      const faulty = await (isWarm && tries < TRIES ? this.#runWarm(of) : this.#runFresh(of));
      if (faulty.struck !== undefined || tries === TRIES) return faulty;
    }
  }

  /** The second of two processes, the first of which dies. */
  runAfter(scenario: Scenario, death: Fault): Promise<Run> {
    return this.#runFresh({ scenario, death });
  }

  async #open(fault?: Fault, leaseMs = LEASE_MS): Promise<Victim> {
    const { database } = this.#lane;
    const { doorbell } = this.#options;
    const proxy = await statementProxy(database.url, fault, { waits: isPeerWatch });
    const stage = openStage({
      cast: this.#cast,
      ...pickQueue(this.#options),
      ...(doorbell === undefined ? {} : { doorbell: doorbell() }),
      databaseUrl: proxy.url,
      effects: database.pool,
      leaseMs,
    });
    return { proxy, stage };
  }

  async #runWarm(of: Case): Promise<Run> {
    this.#warm ??= await this.#open();
    const victim = this.#warm;
    try {
      await this.#lane.reset(of.scenario);
      victim.proxy.arm(of.fault);
      const run = await this.#play(victim, of);
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

  async #runFresh(of: Case): Promise<Run> {
    await this.#lane.reset(of.scenario);
    const dead = of.death === undefined ? undefined : await this.#open(of.death);
    const victim = await this.#open(of.fault, dead === undefined ? LEASE_MS : SECOND_LEASE_MS);
    try {
      return await this.#play(victim, of, dead);
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

  async #play(victim: Victim, { scenario, fault }: Case, dead?: Victim): Promise<Run> {
    const { database, rescuer } = this.#lane;
    const { stage, proxy } = victim;
    let isDriven = false;
    let examined: Promise<void> | undefined;
    const current = async (): Promise<Stage> => {
      if (dead?.proxy.isDead === false) return dead.stage;
      if (!proxy.isDead) return stage;
      // Before anybody goes on: what a retry puts right must not have been wrong in between.
      examined ??= checkInvariants(database.pool, { isSettled: false });
      await examined;
      return rescuer;
    };
    const life = (): AbortSignal | undefined =>
      [dead, victim].find((one) => one?.proxy.isDead === false)?.proxy.life;
    const driven = start(dead ?? victim)
      .then(() => scenario.drive(persistentClient(current, life), watcherOf(database.pool)))
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
      patienceMs: fault?.scope === 'connection' && dead === undefined ? ALIVE_MS : 0,
      quietMs: this.#options.doorbell === undefined ? QUIET_MS : QUEUE_QUIET_MS,
      isOver,
    });
    await current();
    const isRescued = !(await isOver());
    if (isRescued) {
      await waitFor(
        async () => {
          await rescuer.sweep(dead === undefined ? RECOVERY_AHEAD_MS : SECOND_RECOVERY_AHEAD_MS);
          return isOver();
        },
        { message: 'another worker has ended all turns', ...RECOVERY },
      ).catch(async (error: Error) => {
        throw new Error(`${error.message}\n${await describeBlockers(database.pool, proxy.serverPorts)}`);
      });
    }
    const answer = await driven;
    // The goodbye is part of the run: it is cut like the rest, and must not undo anything.
    const leaveAt = proxy.statements.length;
    if (!proxy.isDead) await untilAborted(stage.rest(), proxy.life).catch(() => undefined);
    const outcome = await concludeScene(database.pool, scenario, answer ?? null);
    const { statements, places, transactions, struck } = proxy;
    return { outcome, statements, places, transactions, leaveAt, struck, isRescued };
  }

  async [Symbol.asyncDispose](): Promise<void> {
    if (this.#warm !== undefined) await this.#bury(this.#warm);
    await Promise.all(this.#closing);
    await this.#lane[Symbol.asyncDispose]();
  }
}

/** The wait for the lock of another worker lasts until that worker ends. */
const isPeerWatch = (text: string): boolean => text.includes('is_lock_free');

const pickQueue = ({ toolQueue }: TrackOptions): Pick<TrackOptions, 'toolQueue'> =>
  toolQueue === undefined ? {} : { toolQueue };

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
    patienceMs,
    isOver,
  }: {
    readonly aheadMs: number;
    readonly quietMs: number;
    readonly patienceMs: number;
    readonly isOver: () => Promise<boolean>;
  },
): Promise<void> {
  const startedAt = performance.now();
  for (let sweeps = 0; !proxy.isDead; ) {
    await delay(PAUSE_MS);
    if (proxy.quietMs < PAUSE_MS) continue;
    if (await isOver()) return;
    if (proxy.quietMs < quietMs) continue;
    if (sweeps >= SWEEPS && performance.now() - startedAt >= patienceMs) return;
    sweeps += 1;
    await stage.sweep(aheadMs).catch(() => undefined);
  }
}
