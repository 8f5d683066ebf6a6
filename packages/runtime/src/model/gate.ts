/**
 * Before a model call, asks for room at providers that have limits or fail; after the call, reports its outcome. A provider
 * without a row costs no statement: the heartbeat brings the list of providers that have a row.
 */
import { errorText, isProviderAnswer, isProviderFailure, ModelError, type TurnId } from '@boxcar/kernel';
import {
  type Caller,
  enterProvider,
  findGatedProviders,
  type GateAnswer,
  isOverRowLimit,
  isTransient,
  type LockLimit,
  leaveProvider,
  noteProviderFailure,
  type Woken,
  wakeProvider,
} from '@boxcar/store';
import type { RuntimeCore } from '../core/index.js';
import type { Timers } from '../lib/index.js';
import { Batcher } from '../lib/index.js';

/** Room for one call. */
export interface ModelPass {
  /** Makes the call and gives the room back, whatever the outcome. Throws only the call's own errors. */
  ask<T>(call: () => Promise<T>): Promise<T>;
}

export type ModelEntry =
  | { readonly outcome: 'admitted'; readonly pass: ModelPass }
  /** The turn is suspended until there is room. */
  | { readonly outcome: 'suspended' }
  | { readonly outcome: 'fenced' };

interface Leaving {
  readonly caller: Caller;
  readonly hasProved: boolean;
  readonly hasAnswered: boolean;
}

interface ProviderBatchers {
  readonly enter: Batcher<Caller, GateAnswer>;
  readonly leave: Batcher<Leaving, true>;
  /** Calls that have ended but whose places could not be given back yet. */
  readonly unleft: Map<TurnId, Leaving>;
  /** Settles when no retry of giving them back is in progress. */
  leaving: Promise<void>;
}

/** Maximum time that an answer waits for its place to be given back: a provider's row may be locked for seconds. */
const LEAVE_LOCK_MS = 200;
/** Delay before a place that could not be given back is tried again. */
const LEAVE_AGAIN_MS = 500;

export class ModelGate {
  readonly #runtime: RuntimeCore;
  readonly #timers: Timers;
  #gated: ReadonlySet<string> = new Set();
  readonly #batchers = new Map<string, ProviderBatchers>();
  /** Providers that have answered since the last failure that was reported. */
  readonly #answered = new Set<string>();
  /** When each provider last answered, since the last report to the other workers. */
  readonly #untold = new Map<string, number>();

  constructor(runtime: RuntimeCore, timers: Timers) {
    this.#runtime = runtime;
    this.#timers = timers;
  }

  async start(): Promise<void> {
    this.setGated(await findGatedProviders(this.#runtime.pool));
  }

  /** Sets the providers whose calls must ask for room. */
  setGated(gated: readonly string[]): void {
    this.#gated = new Set(gated);
  }

  /**
   * How many milliseconds ago each provider last answered; every answer is returned once. The heartbeat reports it to the other
   * workers.
   */
  takeAnswers(): Readonly<Record<string, number>> {
    const now = performance.now();
    const ages = [...this.#untold].map(([provider, at]) => [provider, now - at]);
    this.#untold.clear();
    return Object.fromEntries(ages);
  }

  /** Puts back answers that could not be reported. Answers that arrived in the meantime are newer and stay. */
  keepAnswers(ages: Readonly<Record<string, number>>): void {
    const now = performance.now();
    for (const [provider, age] of Object.entries(ages))
      if (!this.#untold.has(provider)) this.#untold.set(provider, now - age);
  }

  async enter(provider: string, caller: Caller): Promise<ModelEntry> {
    if (!this.#gated.has(provider))
      return { outcome: 'admitted', pass: { ask: (call) => this.#ask(provider, caller, call) } };
    const batchers = this.#batchersOf(provider);
    if (batchers.unleft.has(caller.turnId)) await this.#leaveBefore(provider, batchers, caller);
    const entry = await batchers.enter.add(caller);
    switch (entry.outcome) {
      case 'fenced':
        return entry;
      case 'waiting':
        this.#lookSoon(provider, entry.lookAfterMs);
        return { outcome: 'suspended' };
      case 'admitted': {
        const { isProbe } = entry;
        return {
          outcome: 'admitted',
          pass: { ask: (call) => this.#ask(provider, caller, call, { isProbe }) },
        };
      }
      default:
        return entry satisfies never;
    }
  }

  async #ask<T>(
    provider: string,
    caller: Caller,
    call: () => Promise<T>,
    place?: { readonly isProbe: boolean },
  ): Promise<T> {
    let hasAnswered = false;
    try {
      const answer = await call();
      hasAnswered = true;
      this.#noteAnswer(provider);
      return answer;
    } catch (error) {
      if (error instanceof ModelError) {
        if (isProviderFailure(error)) await this.#noteFailure(provider, caller);
        else if (isProviderAnswer(error)) {
          hasAnswered = true;
          this.#noteAnswer(provider);
        }
      }
      throw error;
    } finally {
      if (place !== undefined) {
        const hasProved = hasAnswered && place.isProbe;
        await this.#leave(provider, { caller, hasProved, hasAnswered });
      }
    }
  }

  #noteAnswer(provider: string): void {
    this.#answered.add(provider);
    this.#untold.set(provider, performance.now());
  }

  /** Takes no longer than the lock limit: a place that cannot be given back now is given back later. */
  async #leave(provider: string, leaving: Leaving): Promise<void> {
    try {
      await this.#batchersOf(provider).leave.add(leaving);
    } catch (error) {
      this.#logLeaving(provider, [leaving], error);
    }
  }

  /** False: it failed for a transient reason, and is tried again later. */
  async #leaveNow(
    provider: string,
    batchers: ProviderBatchers,
    leavings: readonly Leaving[],
  ): Promise<boolean> {
    const turns = leavings.map(({ caller }) => caller);
    const hasProved = leavings.some((leaving) => leaving.hasProved);
    const hasAnswered = leavings.some((leaving) => leaving.hasAnswered);
    const { pool } = this.#runtime;
    try {
      this.#follow(
        provider,
        await leaveProvider(pool, provider, { turns, hasProved, hasAnswered, lockMs: LEAVE_LOCK_MS }),
      );
      return true;
    } catch (error) {
      if (!isOverRowLimit(error) && !isTransient(error)) throw error;
      this.#timers.set(`leave ${provider}`, LEAVE_AGAIN_MS, () => void this.#leaveAgain(provider, batchers));
      return false;
    }
  }

  /** Makes the retries one after another, so that a turn that calls again can wait for the retry in progress. */
  #leaveAgain(provider: string, batchers: ProviderBatchers): Promise<void> {
    batchers.leaving = batchers.leaving.then(async () => {
      const leavings = [...batchers.unleft.values()];
      if (leavings.length === 0) return;
      try {
        if (!(await this.#leaveNow(provider, batchers, leavings))) return;
      } catch (error) {
        this.#logLeaving(provider, leavings, error);
      }
      for (const { caller } of leavings) batchers.unleft.delete(caller.turnId);
    });
    return batchers.leaving;
  }

  /**
   * A later retry must not free the place of a new call of the same turn. If the place cannot be freed now either, the turn keeps
   * it.
   */
  async #leaveBefore(provider: string, batchers: ProviderBatchers, { turnId }: Caller): Promise<void> {
    await this.#leaveAgain(provider, batchers);
    batchers.unleft.delete(turnId);
  }

  #logLeaving(provider: string, leavings: readonly Leaving[], error: unknown): void {
    this.#runtime.log('warn', 'provider.not_left', {
      provider,
      turn_ids: leavings.map(({ caller }) => caller.turnId),
      error: errorText(error),
    });
  }

  async #noteFailure(provider: string, caller: Caller): Promise<void> {
    const hasSucceeded = this.#answered.delete(provider);
    try {
      const { closedForMs } = await noteProviderFailure(this.#runtime.pool, provider, {
        hasSucceeded,
        caller,
      });
      if (closedForMs === null) return;
      this.#gated = new Set([...this.#gated, provider]);
      this.#runtime.log('warn', 'provider.failing', { provider, pause_ms: Math.round(closedForMs) });
    } catch (error) {
      this.#runtime.log('warn', 'provider.failure_not_noted', {
        provider,
        error: errorText(error),
      });
    }
  }

  #batchersOf(provider: string): ProviderBatchers {
    const known = this.#batchers.get(provider);
    if (known !== undefined) return known;
    const { pool } = this.#runtime;
    const batchers: ProviderBatchers = {
      enter: new Batcher((callers, attempt) => enterProvider(pool, provider, { callers, ...attempt })),
      leave: new Batcher(async (leavings) => {
        if (!(await this.#leaveNow(provider, batchers, leavings)))
          for (const leaving of leavings) batchers.unleft.set(leaving.caller.turnId, leaving);
        return leavings.map(() => true as const);
      }),
      unleft: new Map(),
      leaving: Promise.resolve(),
    };
    this.#batchers.set(provider, batchers);
    return batchers;
  }

  #follow(provider: string, woken: Woken): void {
    this.#runtime.ring(woken.rings);
    if (woken.lookAfterMs !== null) this.#lookSoon(provider, woken.lookAfterMs);
  }

  /** Wakes the turns that wait for a provider, once time alone has made room. */
  #lookSoon(provider: string, afterMs: number): void {
    // At most once per 20 ms, however short the provider's pace is: each check wakes as many turns as there is room for.
    this.#timers.set(`provider ${provider}`, Math.max(afterMs, 20), () => void this.#wakeIfDue(provider));
  }

  /** Wakes the turns that there is room for. With `wakeOnly`, only these turns are woken. Throws when a turn cannot be woken. */
  async wake(
    provider: string,
    options: { readonly wakeOnly?: readonly TurnId[]; readonly now?: Date | undefined } & LockLimit = {},
  ): Promise<void> {
    this.#follow(provider, await wakeProvider(this.#runtime.pool, provider, options));
  }

  async #wakeIfDue(provider: string): Promise<void> {
    try {
      await this.wake(provider);
    } catch (error) {
      // The sweep checks as well.
      this.#runtime.log('warn', 'provider.not_looked_at', {
        provider,
        error: errorText(error),
      });
    }
  }
}
