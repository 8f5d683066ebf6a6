import type { Doorbell, DoorbellSubscription, Ring } from '@boxcar/kernel';

interface Listener {
  readonly workerTarget: string;
  readonly concurrency: number;
  readonly handle: (ring: Ring) => Promise<void>;
  readonly onError: (error: unknown) => void;
  readonly running: Set<Promise<void>>;
  isOpen: boolean;
}

const keyOf = (ring: Pick<Ring, 'turnId' | 'epoch'>): string => `${ring.turnId}-${ring.epoch}`;

/** A doorbell without a queue, for one process: tests, and programs that submit and work in one place. */
export class InProcessDoorbell implements Doorbell {
  readonly #waiting = new Map<string, Ring>();
  readonly #active = new Set<string>();
  readonly #listeners = new Set<Listener>();
  #isClosed = false;

  async ring(rings: readonly Ring[]): Promise<void> {
    if (this.#isClosed) return;
    for (const ring of rings) {
      // A ring that is being answered is not rung a second time.
      if (!this.#active.has(keyOf(ring))) this.#waiting.set(keyOf(ring), ring);
    }
    for (const listener of this.#listeners) this.#deliver(listener);
  }

  async findLost(rings: readonly Ring[]): Promise<readonly Ring[]> {
    return rings.filter((ring) => !this.#waiting.has(keyOf(ring)) && !this.#active.has(keyOf(ring)));
  }

  /** Jobs stand in a queue that this doorbell does not know, so it cannot say of any that it is gone. */
  async knock(): Promise<readonly string[]> {
    return [];
  }

  async listen(options: Parameters<Doorbell['listen']>[0]): Promise<DoorbellSubscription> {
    const listener: Listener = { ...options, running: new Set(), isOpen: true };
    this.#listeners.add(listener);
    this.#deliver(listener);
    return { close: () => this.#closeListener(listener) };
  }

  async #closeListener(listener: Listener): Promise<void> {
    listener.isOpen = false;
    this.#listeners.delete(listener);
    await Promise.all(listener.running);
  }

  #deliver(listener: Listener): void {
    if (!listener.isOpen) return;
    for (const [key, ring] of this.#waiting) {
      if (listener.running.size >= listener.concurrency) return;
      if (ring.workerTarget !== listener.workerTarget) continue;
      this.#waiting.delete(key);
      this.#active.add(key);
      const work: Promise<void> = Promise.resolve()
        .then(() => listener.handle(ring))
        .catch(listener.onError)
        .finally(() => {
          this.#active.delete(key);
          listener.running.delete(work);
          this.#deliver(listener);
        });
      listener.running.add(work);
    }
  }

  async close(): Promise<void> {
    this.#isClosed = true;
    await Promise.all([...this.#listeners].map((listener) => this.#closeListener(listener)));
    this.#waiting.clear();
  }
}
