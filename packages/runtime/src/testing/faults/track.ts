import { setTimeout as delay } from 'node:timers/promises';
import type { Doorbell } from '@boxcar/kernel';
import { type StatementProxy, statementProxy, waitFor } from '@boxcar/testkit';
import type { ToolQueue } from '../../tool-queue.js';
import { persistentClient } from './client.js';
import { concludeScene, countUnfinished, watcherOf } from './conclude.js';
import type { Fault, Sent } from './crash-points.js';
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

const countOf = (statements: readonly string[], text: string): number =>
  statements.filter((other) => other === text).length;

/** Was it sent at all? */
export const isSent = ({ statements }: Sent, { at }: Fault): boolean =>
  countOf(statements, at.text) >= at.nth;

/** Runs case after case on the rows of one lane. */
export class Track implements AsyncDisposable {
  readonly #lane: Lane;
  readonly #cast: Cast;
  readonly #options: TrackOptions;
  /** What need not be waited for now. */
  readonly #closing: Promise<void>[] = [];
  #warm: Victim | undefined;
  /** What the process that is used again sends for each scenario. */
  readonly #warmSends = new Map<Scenario, Sent>();

  private constructor(lane: Lane, cast: Cast, options: TrackOptions) {
    this.#lane = lane;
    this.#cast = cast;
    this.#options = options;
  }

  /** @param scenarios - All that will be run on it. */
  static async open(scenarios: readonly Scenario[], options: TrackOptions = {}): Promise<Track> {
    const cast = castOf(scenarios);
    return new Track(await Lane.open({ cast, ...pickQueue(options) }), cast, options);
  }

  /** A run that is to be struck. */
  async strike(of: Case & { readonly fault: Fault }): Promise<Run> {
    for (let tries = 1; ; tries += 1) {
      const faulty = await this.run(of);
      if (faulty.struck !== undefined || tries === TRIES) return faulty;
    }
  }

  /** In a fresh process, unless it survives: then in one that has run for a while, if that sends the statement. */
  async run(of: Case): Promise<Run> {
    const { scenario, fault, death } = of;
    if (fault?.scope !== 'connection' || death !== undefined) return this.#runFresh(of);
    let sends = this.#warmSends.get(scenario);
    if (sends === undefined) {
      this.#warm ??= await this.#open();
      sends = await this.#runWarm(this.#warm, { scenario });
      this.#warmSends.set(scenario, sends);
    }
    if (!isSent(sends, fault)) return this.#runFresh(of);
    this.#warm ??= await this.#open();
    return this.#runWarm(this.#warm, of);
  }

  async #open(fault?: Fault, leaseMs = LEASE_MS): Promise<Victim> {
    const { database } = this.#lane;
    const { doorbell } = this.#options;
    const proxy = await statementProxy(database.url, fault);
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

  async #runWarm(victim: Victim, of: Case): Promise<Run> {
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

  async #play(victim: Victim, { scenario }: Case, dead?: Victim): Promise<Run> {
    const { database, rescuer } = this.#lane;
    const { stage, proxy } = victim;
    let isDriven = false;
    const current = (): Stage => {
      if (dead?.proxy.isDead === false) return dead.stage;
      return proxy.isDead ? rescuer : stage;
    };
    const driven = start(dead ?? victim)
      .then(() => scenario.drive(persistentClient(current), watcherOf(database.pool)))
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
    const outcome = await concludeScene(database.pool, scenario, answer ?? null);
    const { statements, places, transactions, struck } = proxy;
    return { outcome, statements, places, transactions, struck, isRescued };
  }

  async [Symbol.asyncDispose](): Promise<void> {
    if (this.#warm !== undefined) await this.#bury(this.#warm);
    await Promise.all(this.#closing);
    await this.#lane[Symbol.asyncDispose]();
  }
}

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
