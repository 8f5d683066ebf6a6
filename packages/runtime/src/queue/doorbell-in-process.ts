import { AsyncLocalStorage } from 'node:async_hooks';
import type { Doorbell, DoorbellSubscription, Ring } from '@boxcar/kernel';
import { TakenRings } from './taken-rings.js';
import { keyOf, WaitingRings } from './waiting-rings.js';

interface Listener {
  readonly workerTarget: string;
  readonly concurrency: number;
  readonly admit?: (ring: Ring) => boolean;
  readonly onEmpty?: () => void;
  readonly handle: (ring: Ring) => Promise<void>;
  readonly onError: (error: unknown) => void;
  readonly running: Set<Promise<void>>;
  /** Runs a function in the asynchronous context in which the listener was added, not in that of the code that rings. */
  readonly inContext: <T>(run: () => T) => T;
  isOpen: boolean;
  isPaused: boolean;
}

/** A doorbell without a queue, for one process: tests, and programs that submit and work in one place. */
export class InProcessDoorbell implements Doorbell {
  readonly #waiting: WaitingRings;
  readonly #active = new Set<string>();
  readonly #taken = new TakenRings();
  readonly #listeners = new Set<Listener>();
  #isClosed = false;

  /** @param now - Clock for tests, in milliseconds. */
  constructor(now: () => number = Date.now) {
    this.#waiting = new WaitingRings(now);
  }

  async ring(rings: readonly Ring[]): Promise<void> {
    if (this.#isClosed) return;
    for (const ring of rings) {
      // A ring whose listener is still at work is not added a second time.
      if (!this.#active.has(keyOf(ring))) this.#waiting.add(ring);
    }
    for (const listener of this.#listeners) this.#deliver(listener);
  }

  /** The number of rings that no listener has. */
  get waiting(): number {
    return this.#waiting.size;
  }

  /** Removes the rings that no listener has, in the order of their delivery, and returns them. */
  takeWaiting(): readonly Ring[] {
    return this.#waiting.takeAll();
  }

  async findLost(
    rings: readonly Ring[],
    { takenMs = Number.POSITIVE_INFINITY }: { readonly takenMs?: number } = {},
  ): Promise<readonly Ring[]> {
    const asked = rings.map(keyOf);
    const taken = new Set(asked.filter((key) => this.#active.has(key)));
    const overdue = this.#taken.record({ asked, taken }, takenMs);
    return rings.filter((ring) => {
      const key = keyOf(ring);
      return taken.has(key) ? overdue.has(key) : !this.#waiting.has(ring);
    });
  }

  async raise(rings: readonly Ring[]): Promise<void> {
    for (const ring of rings) this.#waiting.raise(ring);
  }

  /** Jobs are in a queue that this doorbell does not know, so it cannot report any of them as gone. */
  async knock(): Promise<readonly string[]> {
    return [];
  }

  async listen(options: Parameters<Doorbell['listen']>[0]): Promise<DoorbellSubscription> {
    const listener: Listener = {
      ...options,
      running: new Set(),
      inContext: AsyncLocalStorage.snapshot(),
      isOpen: true,
      isPaused: false,
    };
    this.#listeners.add(listener);
    this.#deliver(listener);
    return {
      pause: () => {
        listener.isPaused = true;
      },
      resume: () => {
        listener.isPaused = false;
        this.#deliver(listener);
      },
      close: () => this.#closeListener(listener),
    };
  }

  async #closeListener(listener: Listener): Promise<void> {
    listener.isOpen = false;
    this.#listeners.delete(listener);
    await Promise.all(listener.running);
  }

  #deliver(listener: Listener): void {
    while (listener.isOpen && !listener.isPaused && listener.running.size < listener.concurrency) {
      const ring = this.#waiting.first(listener.workerTarget);
      if (ring === undefined) {
        listener.onEmpty?.();
        return;
      }
      if (listener.admit?.(ring) === false) {
        listener.isPaused = true;
        return;
      }
      const key = keyOf(ring);
      this.#waiting.delete(ring);
      this.#active.add(key);
      const work: Promise<void> = listener.inContext(() =>
        Promise.resolve()
          .then(() => listener.handle(ring))
          .catch(listener.onError)
          .finally(() => {
            this.#active.delete(key);
            listener.running.delete(work);
            this.#deliver(listener);
          }),
      );
      listener.running.add(work);
    }
  }

  async close(): Promise<void> {
    this.#isClosed = true;
    await Promise.all([...this.#listeners].map((listener) => this.#closeListener(listener)));
    this.#waiting.takeAll();
  }
}
