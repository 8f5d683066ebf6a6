/**
 * The marks of a purge (`boxcar.purging`): nothing new can refer to a marked box.
 *
 * M1  A mark belongs to the purge that has set it last, and only that purge removes it. A later purge takes marks over, so a killed purge
 *     does not delay other purges. The earlier purge keeps the boxes whose marks it has lost.
 * M2  A mark is short, and is renewed while its purge lives. An expired mark is not renewed.
 * M3  A batch holds its marks: nothing removes them before the batch ends.
 */
import { randomUUID } from 'node:crypto';
import { KernelError } from '@boxcar/kernel';
import type pg from 'pg';
import { run, runRetrying, sqlStateOf, statement, type Tx, transaction } from '../db/index.js';

/** How long the marks of a killed purge prevent new references. */
export const MARK_MS = 120_000;
/** How often a mark is renewed within its time. */
const RENEWALS = 4;
const BARRIER_LOCK = 7_205_129_002;
const BARRIER_TIMEOUT_MS = 200;

// In the order of ids, like every lock here.
const MARK = statement(`
  insert /* purge-marks.mark */ into boxcar.purging (box_id, purge_id, until)
  select u.id, $2, clock_timestamp() + $3::float8 * interval '1 millisecond'
  from unnest($1::uuid[]) as u(id)
  order by u.id
  on conflict (box_id) do update set purge_id = excluded.purge_id, until = excluded.until`);
// Includes marks that another purge has taken over, because a batch may still rely on them.
const RENEW = statement(`
  update /* purge-marks.renew */ boxcar.purging p
  set until = greatest(p.until, clock_timestamp() + $2::float8 * interval '1 millisecond')
  from (
    select o.box_id
    from boxcar.purging o
    where o.box_id = any ($1::uuid[]) and o.until > clock_timestamp()
    order by o.box_id
    for no key update
  ) x
  where p.box_id = x.box_id`);
// Skips marks that a batch of another purge holds: they are removed with their boxes, or expire.
const UNMARK = statement(`
  delete /* purge-marks.unmark */ from boxcar.purging p
  using (
    select o.box_id
    from boxcar.purging o
    where o.purge_id = $1 or o.until < clock_timestamp()
    order by o.box_id
    for update skip locked
  ) x
  where p.box_id = x.box_id`);
// This lock still allows a mark to be renewed or taken over.
const HOLD = statement(`
  select /* purge-marks.hold */ count(*)::int as n
  from (
    select p.box_id
    from boxcar.purging p
    where p.box_id = any ($1::uuid[]) and p.purge_id = $2 and p.until > clock_timestamp()
    order by p.box_id
    for key share
  ) h`);

/** The marks of one page of a purge. */
export class PurgeMarks {
  readonly #pool: pg.Pool;
  readonly #purgeId = randomUUID();
  readonly #boxIds: readonly string[];
  readonly #lifetimeMs: number;
  #renewedAt = 0;
  #timer: NodeJS.Timeout | undefined;
  #renewing: Promise<void> | undefined;

  constructor(pool: pg.Pool, boxIds: readonly string[], lifetimeMs: number) {
    this.#pool = pool;
    this.#boxIds = boxIds;
    this.#lifetimeMs = lifetimeMs;
  }

  /** Sets the marks, and waits until all transactions that began to refer to a box before have ended. */
  async set(signal: AbortSignal | undefined): Promise<void> {
    const at = performance.now();
    await runRetrying(this.#pool, MARK, [this.#boxIds, this.#purgeId, this.#lifetimeMs]);
    this.#renewedAt = at;
    this.#timer = setInterval(() => {
      this.#renewing ??= this.#renew().finally(() => {
        this.#renewing = undefined;
      });
    }, this.#lifetimeMs / RENEWALS);
    await passBarrier(this.#pool, signal);
  }

  async #renew(): Promise<void> {
    const at = performance.now();
    try {
      await run(this.#pool, RENEW, [this.#boxIds, this.#lifetimeMs]);
      this.#renewedAt = at;
    } catch {
      // The next renewal may succeed; if none does, `checkTime` throws.
    }
  }

  /** M3, in the transaction of a batch. @returns False when another purge has taken a mark over, or a mark has expired. */
  async hold(tx: Tx, boxIds: readonly string[]): Promise<boolean> {
    const [held] = await run<{ n: number }>(tx, HOLD, [boxIds, this.#purgeId]);
    return held?.n === boxIds.length;
  }

  /** Call before a batch is committed. @throws KernelError `database_unavailable` when the marks were not renewed in time. */
  checkTime(): void {
    if (performance.now() - this.#renewedAt < this.#lifetimeMs * (1 - 1 / (2 * RENEWALS))) return;
    throw new KernelError('database_unavailable', {
      message:
        'A purge could not renew its marks in time: it has waited for a connection, or was stopped meanwhile.',
    });
  }

  /** Removes the marks that this purge still owns. If this fails, they expire. */
  async clear(): Promise<void> {
    clearInterval(this.#timer);
    await this.#renewing;
    await runRetrying(this.#pool, UNMARK, [this.#purgeId]);
  }
}

async function passBarrier(pool: pg.Pool, signal: AbortSignal | undefined): Promise<void> {
  for (;;) {
    signal?.throwIfAborted();
    try {
      // The lock is released as soon as it is granted. Other transactions queue while this one waits for it, so it gives up soon.
      await transaction(
        pool,
        async (tx) => {
          await tx.query({ text: `set local lock_timeout = ${BARRIER_TIMEOUT_MS}` });
          await tx.query({ text: `select pg_advisory_xact_lock(${BARRIER_LOCK})` });
        },
        { ownLimit: '55P03' },
      );
      return;
    } catch (error) {
      if (sqlStateOf(error) !== '55P03') throw error;
    }
  }
}
