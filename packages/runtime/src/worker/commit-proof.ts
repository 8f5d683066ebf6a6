/**
 * Checks whether a worker can still commit. Work is written on the pool, so a lease renewal on the direct connection proves nothing.
 *
 * P1  Any answer on any connection of the pool is a proof. A pool that was quiet for 20 % of the lease is asked. A pool whose
 *     connections are all in use is not asked, because the question would only wait for a connection; this never costs the lease.
 * P2  A pool that has not answered the question for 30 % of the lease, and at least a second, may be silent. The worker asks on its
 *     direct connection for which of the pool's connections the server is working. These connections stay; the others are closed,
 *     and work that waits on them fails as `database_unavailable` and is tried again. Then the pool is asked again. If the server
 *     works for none of the connections, or cannot be asked, the pool counts as silent. While the server works for the pool, this
 *     check repeats after each lease. The server's own time limit ends such work.
 * P3  If a silent pool has not answered for 95 % of the lease, the proof is lost, and the lease is not renewed. A process that was
 *     stopped loses nothing at once: after it wakes up it asks the pool first.
 * P4  The proof is also lost while the server is unreachable, and is restored by its first answer. A worker must leave only if the
 *     direct connection has had answers for half a lease and the pool has had none.
 *
 * Every process closes a single silent connection on its own (`silent-connections.ts`).
 */
import { askServer, dropConnections, dropIdle, isExhausted, silentFor } from '@boxcar/store';
import type pg from 'pg';
import type { Log } from '../lib/index.js';
import { withinTime } from '../lib/index.js';

export class CommitProof {
  readonly #pool: pg.Pool;
  readonly #direct: () => pg.Client | undefined;
  readonly #leaseMs: number;
  readonly #log: Log;
  /** On the monotonic clock. */
  #askedAt: number | undefined;
  #hasDropped = false;
  /** P2: no check before this time, because the server works for the pool. */
  #sparedUntil = Number.NEGATIVE_INFINITY;
  #isDropping = false;
  #reachedSince: number | undefined;

  constructor(options: {
    readonly pool: pg.Pool;
    /** The worker's own connection, outside the pool. */
    readonly direct: () => pg.Client | undefined;
    readonly leaseMs: number;
    readonly log: Log;
  }) {
    this.#pool = options.pool;
    this.#direct = options.direct;
    this.#leaseMs = options.leaseMs;
    this.#log = options.log;
  }

  /** Checks the pool and takes the next step if it is due. Called several times in each lease. */
  check(): void {
    const now = performance.now();
    const silentMs = silentFor(this.#pool);
    // Any answer after the question counts, not only the answer to it.
    if (this.#askedAt !== undefined && now - silentMs > this.#askedAt) this.#forget();
    // P1
    if (isExhausted(this.#pool)) {
      this.#forget();
      return;
    }
    if (this.#askedAt === undefined) {
      if (silentMs >= this.#leaseMs * 0.2) this.#ask();
      return;
    }
    if (this.#hasDropped || this.#isDropping || now < this.#sparedUntil) return;
    if (now - this.#askedAt < Math.max(this.#leaseMs * 0.3, 1_000)) return;
    this.#isDropping = true;
    void this.#drop(this.#askedAt).finally(() => {
      this.#isDropping = false;
    });
  }

  /** Records whether the server has just answered the direct connection. */
  reached(isReached: boolean): void {
    this.#reachedSince = isReached ? (this.#reachedSince ?? performance.now()) : undefined;
  }

  get isLost(): boolean {
    return (
      this.#hasDropped &&
      this.#askedAt !== undefined &&
      performance.now() - this.#askedAt >= this.#leaseMs * 0.2 &&
      silentFor(this.#pool) >= this.#leaseMs * 0.95
    );
  }

  /** P4 */
  get mustLeave(): boolean {
    return (
      this.isLost &&
      this.#reachedSince !== undefined &&
      performance.now() - this.#reachedSince >= this.#leaseMs / 2
    );
  }

  /** P2 */
  async #drop(askedAt: number): Promise<void> {
    const { dropped, active } = await this.#dropIdle();
    if (dropped > 0)
      this.#log('warn', 'pool.silent', {
        silent_ms: Math.round(silentFor(this.#pool)),
        connections: dropped,
        ...(active === 0 ? {} : { active }),
      });
    // The pool has answered in the meantime.
    if (this.#askedAt !== askedAt) return;
    this.#ask();
    if (active === 0) this.#hasDropped = true;
    else this.#sparedUntil = performance.now() + this.#leaseMs;
  }

  async #dropIdle(): Promise<{ readonly dropped: number; readonly active: number }> {
    const direct = this.#direct();
    try {
      if (direct !== undefined)
        return await withinTime(
          dropIdle(this.#pool, direct),
          this.#leaseMs * 0.1,
          'asking which connections the server works for',
        );
    } catch {
      // The server cannot be asked.
    }
    return { dropped: dropConnections(this.#pool), active: 0 };
  }

  #ask(): void {
    this.#askedAt = performance.now();
    // The pool records the time of the answer. A failure does not count.
    askServer(this.#pool).catch(() => undefined);
  }

  #forget(): void {
    this.#askedAt = undefined;
    this.#hasDropped = false;
    this.#sparedUntil = Number.NEGATIVE_INFINITY;
  }
}
