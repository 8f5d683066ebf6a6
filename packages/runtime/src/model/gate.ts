/**
 * Asks for room at providers that have limits or fail, before a model is called, and tells what became of the call. A provider
 * without a row costs nothing: which ones have one comes with the heartbeat.
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
  /** Makes the call and gives the room back, whatever comes of it. Throws what the call throws, and nothing else. */
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
  /** Calls that are over and whose places could not be given back yet. */
  readonly unleft: Map<TurnId, Leaving>;
  /** Settles when no later try to give them back is under way. */
  leaving: Promise<void>;
}

/** How long an answer waits until its place is given back: a provider's row may be locked for seconds. */
const LEAVE_LOCK_MS = 200;
/** How soon a place that could not be given back is tried again. */
const LEAVE_AGAIN_MS = 500;

export class ModelGate {
  readonly #runtime: RuntimeCore;
  readonly #timers: Timers;
  #gated: ReadonlySet<string> = new Set();
  readonly #batchers = new Map<string, ProviderBatchers>();
  /** Providers that answered since the failure that was told last. */
  readonly #answered = new Set<string>();
  /** When providers answered last, since the other workers were told. */
  readonly #untold = new Map<string, number>();

  constructor(runtime: RuntimeCore, timers: Timers) {
    this.#runtime = runtime;
    this.#timers = timers;
  }

  async start(): Promise<void> {
    this.setGated(await findGatedProviders(this.#runtime.pool));
  }

  /** Providers whose calls have to ask. */
  setGated(gated: readonly string[]): void {
    this.#gated = new Set(gated);
  }

  /** How many milliseconds ago providers answered last, each answer once. The heartbeat tells the other workers. */
  takeAnswers(): Readonly<Record<string, number>> {
    const now = performance.now();
    const ages = [...this.#untold].map(([provider, at]) => [provider, now - at]);
    this.#untold.clear();
    return Object.fromEntries(ages);
  }

  /** Answers that could not be told. Those that came meanwhile are later. */
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

  /** Takes no longer than a lock may: a place that cannot be given back now is given back later. */
  async #leave(provider: string, leaving: Leaving): Promise<void> {
    try {
      await this.#batchersOf(provider).leave.add(leaving);
    } catch (error) {
      this.#logLeaving(provider, [leaving], error);
    }
  }

  /** False: it failed for a reason that passes, and is tried again later. */
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

  /** One try after the other, so that a turn that calls again can wait for the one that is under way. */
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

  /** A later try must not take the place of a new call of the same turn. If it cannot be left now either, the turn has it still. */
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

  /** Wakes who waits for a provider once there is room by time alone. */
  #lookSoon(provider: string, afterMs: number): void {
    // Not more often than this, however short the provider's pace is: each look wakes all there is room for.
    this.#timers.set(`provider ${provider}`, Math.max(afterMs, 20), () => void this.#wakeIfDue(provider));
  }

  /** Wakes who there is room for; `wakeOnly`: nobody else. Fails when one of them cannot be woken. */
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
      // The sweep looks as well.
      this.#runtime.log('warn', 'provider.not_looked_at', {
        provider,
        error: errorText(error),
      });
    }
  }
}
