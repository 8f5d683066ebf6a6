import { startTimer, type Timer } from '@boxcar/kernel';

/**
 * Timers by name, all of which end with their owner. When a running timer is set again, the earlier of the two times applies; the
 * work of that timer runs.
 */
export class Timers {
  readonly #running = new Map<string, { readonly at: number; readonly timer: Timer }>();
  #isClosed = false;

  set(name: string, afterMs: number, work: () => void): void {
    if (this.#isClosed) return;
    const at = performance.now() + afterMs;
    const known = this.#running.get(name);
    if (known !== undefined && known.at <= at) return;
    known?.timer.clear();
    const timer = startTimer(afterMs, () => {
      this.#running.delete(name);
      work();
    });
    this.#running.set(name, { at, timer });
  }

  close(): void {
    this.#isClosed = true;
    for (const { timer } of this.#running.values()) timer.clear();
    this.#running.clear();
  }
}
