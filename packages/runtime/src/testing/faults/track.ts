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

/** Longer than the pauses between automatic retries. */
const QUIET_MS = 30;
/** The same when rings are sent through a queue, which is slow while this machine is busy. */
const QUEUE_QUIET_MS = 400;
/** After this time of silence, probably no statement is under way. */
const PAUSE_MS = 3;
/** How far ahead the worker under fault sweeps: rings count as lost, but its own lease has not expired. */
const NEAR_MS = 20_000;
const LEASE_MS = 30_000;
/** The process that continues after a death sweeps later than the end of the dead process's lease, and its own lease is longer. */
const SECOND_LEASE_MS = 80_000;
const SECOND_RECOVERY_AHEAD_MS = 100_000;
const SWEEPS = 4;
/** Twice `awayMs`, the time limit for one record of a result: a process that lost a connection finishes by itself within this time. */
const ALIVE_MS = 10_000;
const STARTS = 5;
const RECOVERY = { deadlineMs: 20_000, intervalMs: 2 };
/** Concurrent work sometimes sends one statement fewer. In that case the case is run again. */
const TRIES = 3;

export interface TrackOptions {
  /** For scenarios with queue tools. */
  readonly toolQueue?: ToolQueue;
  /** The doorbell of the process under fault; by default an in-process doorbell. The rescuing process reacts only to its own sweep. */
  readonly doorbell?: () => Doorbell;
}

export interface Run extends Sent {
  readonly outcome: Outcome;
  readonly struck: string | undefined;
  readonly isRescued: boolean;
}

/** The input of one run. */
export interface Case {
  readonly scenario: Scenario;
  readonly fault?: Fault;
  /** The place where a first process dies, when the second process is cut. */
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
  /** For each scenario, the run of a process that has run for a while. */
  readonly #calm: Map<Scenario, Run>;
  /** Closings that need not be awaited now. */
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

  /** @param scenarios - All scenarios that will be run on the tracks. */
  static async open(
    scenarios: readonly Scenario[],
    { count, ...options }: TrackOptions & { readonly count: number },
  ): Promise<readonly Track[]> {
    const of = { cast: castOf(scenarios), options, calm: new Map<Scenario, Run>() };
    const open = async (): Promise<Track> =>
      new Track(await Lane.open({ cast: of.cast, ...pickQueue(options) }), of);
    return Promise.all(Array.from({ length: count }, open));
  }

  /** A run without faults: of a fresh process, or of a process that has run for a while. */
  async calm(scenario: Scenario, process: 'fresh' | 'warm'): Promise<Run> {
    if (process === 'fresh') return this.#runFresh({ scenario });
    const known = this.#calm.get(scenario) ?? (await this.#runWarm({ scenario }));
    this.#calm.set(scenario, known);
    return known;
  }

  /** The next run without faults records the statements again. */
  forget(scenario: Scenario): void {
    this.#calm.delete(scenario);
  }

  /**
   * A run with a fault. It uses a process that has run for a while if that process survives the fault and sends the statement; otherwise a
   * fresh process.
   */
  async strike(of: Case & { readonly fault: Fault }): Promise<Run> {
    const { scenario, fault, death } = of;
    const canSurvive = fault.scope === 'connection' && death === undefined;
    const isWarm = canSurvive && isSent(await this.calm(scenario, 'warm'), fault);
    for (let tries = 1; ; tries += 1) {
      const faulty = await (isWarm && tries < TRIES ? this.#runWarm(of) : this.#runFresh(of));
      if (faulty.struck !== undefined || tries === TRIES) return faulty;
    }
  }

  /** The run of the second of two processes, the first of which dies. */
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
      // Work of the process in the background still belongs to this case.
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
      // Before another process continues: a retry must not have to repair a broken invariant.
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
    // The error is reported where `driven` is awaited. Until then it must not count as unhandled.
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
    // The end of the process is part of the run: its statements are cut like the others, and must not undo anything.
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

/** A worker that could not start is started again. */
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

/** Lets the process under fault do what it can by itself, including its sweep. */
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
