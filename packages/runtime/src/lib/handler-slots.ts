/** Limits how many handlers hold connections of a pool, and reports the holders while others wait. */
import { type PoolWait, poolWaits, refuseNested } from '@boxcar/store';
import type pg from 'pg';
import type { Log } from './log.js';

/** The right of one handler to a connection. */
export interface Slot {
  /** Rejects when the slot is given up before it was granted. */
  readonly granted: Promise<void>;
  /** Gives the slot up, whether it was granted or not. Safe to call again. */
  leave(): void;
}

interface Holder {
  readonly primitive: string;
  readonly since: Date;
}

interface Waiter {
  grant(): void;
}

/**
 * Handlers hold at most half of the connections of a pool, rounded up. The other half is reserved for submissions, claims, commits
 * and heartbeats, which hold no connection while they wait for something else. Slots are granted in the order of requests.
 */
export class HandlerSlots {
  readonly max: number;
  readonly #pool: pg.Pool;
  readonly #held = new Set<Holder>();
  readonly #waiting = new Set<Waiter>();

  constructor(pool: pg.Pool) {
    this.#pool = pool;
    this.max = Math.ceil(pool.options.max / 2);
  }

  /** Holders in the order in which they got their slots. */
  get holders(): readonly Holder[] {
    return [...this.#held];
  }

  take(primitive: string): Slot {
    if (this.#held.size < this.max) return { granted: Promise.resolve(), leave: this.#hold(primitive) };
    let leave = (): void => undefined;
    const endWait = poolWaits(this.#pool).begin(primitive);
    const granted = new Promise<void>((resolve, reject) => {
      const waiter: Waiter = {
        grant: () => {
          endWait();
          leave = this.#hold(primitive);
          resolve();
        },
      };
      this.#waiting.add(waiter);
      leave = () => {
        endWait();
        this.#waiting.delete(waiter);
        reject(new Error('the wait for a connection was given up'));
      };
    });
    return { granted, leave: () => leave() };
  }

  #hold(primitive: string): () => void {
    const holder = { primitive, since: new Date() };
    this.#held.add(holder);
    return () => {
      if (!this.#held.delete(holder)) return;
      const [next] = this.#waiting;
      if (next === undefined) return;
      this.#waiting.delete(next);
      next.grant();
    };
  }
}

const slotsOfPools = new WeakMap<pg.Pool, HandlerSlots>();

/** The slots of a pool. All runtimes that use the pool share them. */
export function handlerSlots(pool: pg.Pool): HandlerSlots {
  const slots = slotsOfPools.get(pool) ?? new HandlerSlots(pool);
  slotsOfPools.set(pool, slots);
  return slots;
}

/** Runs work that, like a handler, holds a connection while it waits for outside code. */
export async function withHandlerSlot<T>(pool: pg.Pool, name: string, work: () => Promise<T>): Promise<T> {
  refuseNested(pool);
  const slot = handlerSlots(pool).take(name);
  try {
    await slot.granted;
    return await work();
  } finally {
    slot.leave();
  }
}

/**
 * Logs the holders of a pool's connections while a wait for a connection has lasted longer than a second, at most once a second.
 *
 * @returns A function that stops the logging.
 */
export function logPoolWaits(pool: pg.Pool, log: Log): () => void {
  const tell = (waits: readonly PoolWait[]): void => {
    const { holders, max } = handlerSlots(pool);
    log('warn', 'pool.waiting', {
      waited_ms: Math.round(performance.now() - (waits[0]?.since ?? 0)),
      waiting_for_connection: waits.filter(({ primitive }) => primitive === undefined).length,
      waiting_handlers: waits.flatMap(({ primitive }) => primitive ?? []),
      handlers: holders.map(({ primitive, since }) => ({ primitive, since: since.toISOString() })),
      held_by_kernel: Math.max(pool.totalCount - pool.idleCount - holders.length, 0),
      max_connections: pool.options.max,
      max_handlers: max,
    });
  };
  return poolWaits(pool).onLong(tell);
}
