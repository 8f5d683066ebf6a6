/** Checks that turns of other processes end in time while one process is stopped, killed or cut off. */
import { setTimeout as delay } from 'node:timers/promises';
import { errorText, KernelError } from '@boxcar/kernel';
import type { Runtime } from '../../runtime.js';
import type { Pace } from '../stops/pace.js';
import { turnIdOf } from './load.js';

const EVERY_MS = 500;
/** A turn within this time means that all is well. `learn` raises the limit if turns take longer without faults. */
const CALM_MS = 2_000;
const FIRST_TURNS = 3;
/** All is well again within this time after a fault that affects all processes. */
const RECOVERY_MS = 60_000;

export class Others {
  /** Messages about turns that did not end in time. */
  readonly broken: string[] = [];
  /** The longest time of a turn while a fault affected one process, by the name of the fault. */
  readonly longestMs: Record<string, number> = {};
  readonly #runtime: Runtime;
  readonly #pace: Pace;
  #count = 0;
  #calmMs = CALM_MS;

  /** @param runtime - Not affected by faults that affect one process. */
  constructor(runtime: Runtime, pace: Pace) {
    this.#runtime = runtime;
    this.#pace = pace;
  }

  /** How long a turn takes, without the time that this machine lost. */
  async #measure(): Promise<number> {
    const startedAt = performance.now();
    const lostBefore = this.#pace.lostByNowMs;
    this.#count += 1;
    const receipt = await this.#runtime.submit(
      'launch_principal',
      { profile_name: 'plain', instruction: `beside ${this.#count}` },
      { idempotencyKey: `beside-${this.#count}` },
    );
    // It may have been purged before its end was seen.
    await this.#runtime.waitForTurn(turnIdOf(receipt), { timeoutMs: RECOVERY_MS }).catch((error: unknown) => {
      if (!(error instanceof KernelError) || error.code !== 'not_found') throw error;
    });
    return performance.now() - startedAt - (this.#pace.lostByNowMs - lostBefore);
  }

  /** Measures how long turns take on this machine under the load of this soak, before the first fault. */
  async learn(): Promise<void> {
    for (let count = 0; count < FIRST_TURNS; count += 1)
      this.#calmMs = Math.max(this.#calmMs, 2 * (await this.#measure()));
  }

  /**
   * Waits until the effects of earlier faults are over.
   *
   * @returns How long a turn takes then; undefined when `isOn` returns false or turns stay slow for too long.
   */
  async untilCalm(isOn: () => boolean): Promise<number | undefined> {
    const startedAt = performance.now();
    while (isOn()) {
      const tookMs = await this.#measure().catch(() => Number.POSITIVE_INFINITY);
      if (tookMs < this.#calmMs) return tookMs;
      if (performance.now() - startedAt > 2 * RECOVERY_MS) {
        this.broken.push(
          `turns still take longer than ${Math.round(this.#calmMs)} ms, ${2 * RECOVERY_MS} ms after the last fault`,
        );
        return undefined;
      }
    }
    return undefined;
  }

  /** Submits turn after turn while `fault` lasts. Each must end within `limitMs` plus twice `usualMs`. */
  async watch(
    fault: Promise<void>,
    { name, limitMs, usualMs }: { readonly name: string; readonly limitMs: number; readonly usualMs: number },
  ): Promise<void> {
    let isOver = false;
    const over = fault.finally(() => {
      isOver = true;
    });
    const allowedMs = limitMs + 2 * usualMs;
    const turns: Promise<void>[] = [];
    const probe = async (): Promise<void> => {
      try {
        const tookMs = Math.round(await this.#measure());
        this.longestMs[name] = Math.max(this.longestMs[name] ?? 0, tookMs);
        if (tookMs > allowedMs)
          this.broken.push(
            `${name}: a turn beside it took ${tookMs} ms instead of ${Math.round(allowedMs)} ms at most`,
          );
      } catch (error) {
        this.broken.push(`${name}: a turn beside it: ${errorText(error)}`);
      }
    };
    do {
      turns.push(probe());
      await Promise.race([over.catch(() => undefined), delay(EVERY_MS)]);
    } while (!isOver);
    await over;
    await Promise.all(turns);
  }
}
