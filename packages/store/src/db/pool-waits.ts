import type pg from 'pg';

/** Longer waits are reported. */
const LONG_MS = 1_000;
/** The shortest time between two reports. */
const TELL_EVERY_MS = 1_000;

/** A wait for a connection of a pool, or for the permission to take a connection. */
export interface PoolWait {
  /** By the monotonic clock. */
  readonly since: number;
  /** The primitive whose handler waits for that permission; undefined for a wait for a connection. */
  readonly primitive: string | undefined;
}

export type ToldWaits = (waits: readonly PoolWait[]) => void;

/** The waits for the connections of one pool. No cost while nothing waits. */
export class PoolWaits {
  /** In the order in which they began. */
  readonly #waits = new Set<PoolWait>();
  readonly #listeners = new Set<ToldWaits>();
  #timer: NodeJS.Timeout | undefined;
  #toldAt = Number.NEGATIVE_INFINITY;

  /** @returns A function that ends the wait. */
  begin(primitive?: string): () => void {
    const wait = { since: performance.now(), primitive };
    this.#waits.add(wait);
    this.#schedule();
    return () => {
      this.#waits.delete(wait);
      if (this.#waits.size > 0) return;
      clearTimeout(this.#timer);
      this.#timer = undefined;
    };
  }

  /**
   * @param told - Called with all waits, the longest first, when the longest exceeds a second; at most once a second.
   * @returns A function that removes the listener.
   */
  onLong(told: ToldWaits): () => void {
    this.#listeners.add(told);
    return () => void this.#listeners.delete(told);
  }

  #schedule(): void {
    const [oldest] = this.#waits;
    if (this.#timer !== undefined || oldest === undefined) return;
    const dueAt = Math.max(oldest.since + LONG_MS, this.#toldAt + TELL_EVERY_MS);
    this.#timer = setTimeout(() => this.#tell(), Math.max(Math.ceil(dueAt - performance.now()), 1));
    this.#timer.unref();
  }

  #tell(): void {
    this.#timer = undefined;
    const now = performance.now();
    const [oldest] = this.#waits;
    if (oldest !== undefined && now - oldest.since >= LONG_MS && now - this.#toldAt >= TELL_EVERY_MS) {
      this.#toldAt = now;
      for (const told of this.#listeners) told([...this.#waits]);
    }
    this.#schedule();
  }
}

const waitsOfPools = new WeakMap<pg.Pool, PoolWaits>();

export function poolWaits(pool: pg.Pool): PoolWaits {
  const waits = waitsOfPools.get(pool) ?? new PoolWaits();
  waitsOfPools.set(pool, waits);
  return waits;
}
