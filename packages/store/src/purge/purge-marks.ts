/**
 * The marks of a purge (`boxcar.purging`): nothing new can refer to a box that is marked.
 *
 * M1  A mark belongs to the purge that has set it last, which alone takes it back. A later purge takes marks over, so one that was
 *     killed delays no other; the earlier one keeps what it has lost.
 * M2  A mark is short, and is renewed while its purge lives. A mark that has run out is not renewed.
 * M3  A batch holds its marks: nothing takes them back before it ends.
 */
import { randomUUID } from 'node:crypto';
import { KernelError } from '@boxcar/kernel';
import type pg from 'pg';
import { run, runRetrying, sqlStateOf, statement, type Tx, transaction } from '../db/index.js';

/** For so long nobody can refer to what a purge has marked when that is killed. */
export const MARK_MS = 120_000;
/** A mark is renewed so often within its time. */
const RENEWALS = 4;
const BARRIER_LOCK = 7_205_129_002;
const BARRIER_TIMEOUT_MS = 200;

// By id, as every lock here.
const MARK = statement(`
  insert /* purge-marks.mark */ into boxcar.purging (box_id, purge_id, until)
  select u.id, $2, clock_timestamp() + $3::float8 * interval '1 millisecond' from unnest($1::uuid[]) as u(id) order by u.id
  on conflict (box_id) do update set purge_id = excluded.purge_id, until = excluded.until`);
// Also those that another purge has taken over: a batch may still rely on them.
const RENEW = statement(`
  update /* purge-marks.renew */ boxcar.purging p set until = greatest(p.until, clock_timestamp() + $2::float8 * interval '1 millisecond')
  from (select o.box_id from boxcar.purging o where o.box_id = any ($1::uuid[]) and o.until > clock_timestamp() order by o.box_id for no key update) x
  where p.box_id = x.box_id`);
// Marks that a batch of another purge holds are left: they go with their boxes, or run out.
const UNMARK = statement(`
  delete /* purge-marks.unmark */ from boxcar.purging p using (
    select o.box_id from boxcar.purging o where o.purge_id = $1 or o.until < clock_timestamp() order by o.box_id for update skip locked) x
  where p.box_id = x.box_id`);
// Renewing a mark and taking it over are updates that this lock lets pass.
const HOLD = statement(`
  select /* purge-marks.hold */ count(*)::int as n from (
    select p.box_id from boxcar.purging p where p.box_id = any ($1::uuid[]) and p.purge_id = $2 and p.until > clock_timestamp() order by p.box_id for key share) h`);

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

  /** Sets the marks, and waits until everyone who had begun to refer to a box before has come to its end. */
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
      // The next one may succeed; if none does, `checkTime` says so.
    }
  }

  /** M3, in a transaction of a batch. @returns False when another purge has taken one of them over, or it has run out. */
  async hold(tx: Tx, boxIds: readonly string[]): Promise<boolean> {
    const [held] = await run<{ n: number }>(tx, HOLD, [boxIds, this.#purgeId]);
    return held?.n === boxIds.length;
  }

  /** Before a batch is committed. @throws KernelError `database_unavailable` when the marks were not renewed in time. */
  checkTime(): void {
    if (performance.now() - this.#renewedAt < this.#lifetimeMs * (1 - 1 / (2 * RENEWALS))) return;
    throw new KernelError('database_unavailable', {
      message:
        'A purge could not renew its marks in time: it has waited for a connection, or was stopped meanwhile.',
    });
  }

  /** Takes the marks back that are still its own. Should this fail, they run out. */
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
      // It holds the lock for no longer than it takes to get it. Others queue behind it meanwhile, so it gives way soon.
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
