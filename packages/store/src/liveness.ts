/**
 * Who lives, seen by a peer: each worker waits for the session lock of one other, on a connection of its own. Getting the
 * lock is a suspicion, no proof; the lease decides.
 *
 * L1  A worker is watched while its row says that it holds its lock (`locked_at`), and has said so since the connection of the
 *     watcher began: whatever ends all sessions of the server at once, a restart or a crash, ends the watcher's too, so a
 *     lock that came free by that convicts nobody.
 * L2  A suspect whose row has changed since the suspicion, by a renewal, a lock taken again or a goodbye, is none.
 * L3  Of several watchers one ends the lease.
 */
import type { WorkerId } from '@boxcar/kernel';
import { type Queryable, run, statement } from './db.js';

const SAID_LOCKED = 'w.locked_at > (select a.backend_start from pg_stat_get_activity(pg_backend_pid()) a)';

// The subquery chooses one row before the lock is waited for.
const WATCH = statement(`
  select p.id, boxcar.is_lock_free(p.lock_key, $2) as is_free from (
    select w.id, w.lock_key from boxcar.workers w where w.id <> $1 and w.lease_until > now() and ${SAID_LOCKED}
    order by w.id < $1, w.id limit 1 offset 0
  ) p`);

/**
 * Waits for the lock of the next living worker in the circle of ids.
 *
 * @param db - A connection that nobody else uses; the statement occupies it while it waits.
 * @returns `held`: it lived all the time. `none`: there is nobody to watch.
 */
export async function watchPeer(
  db: Queryable,
  workerId: WorkerId,
  waitMs: number,
): Promise<{ readonly outcome: 'held' | 'free'; readonly peerId: WorkerId } | { readonly outcome: 'none' }> {
  const [row] = await run<{ id: WorkerId; is_free: boolean }>(db, WATCH, [workerId, Math.ceil(waitMs)]);
  if (row === undefined) return { outcome: 'none' };
  return { outcome: row.is_free ? 'free' : 'held', peerId: row.id };
}

/** When a worker last said that it holds its lock: what a refutation changes. */
export type LockSign = string & { readonly __lockSign: never };

// As text: a date of JavaScript would lose the microseconds.
const READ_SIGN = statement(`
  select w.locked_at::text as sign from boxcar.workers w where w.id = $1 and w.lease_until > now() and ${SAID_LOCKED}`);

/** On the connection of {@link watchPeer}. Undefined: there is nothing to suspect any more. */
export async function readLockSign(db: Queryable, peerId: WorkerId): Promise<LockSign | undefined> {
  const [row] = await run<{ sign: LockSign }>(db, READ_SIGN, [peerId]);
  return row?.sign;
}

const END_LEASE = statement(`
  update boxcar.workers w set lease_until = now(), locked_at = null
  where w.id = $1 and w.locked_at = $2::timestamptz and w.lease_until > now() and pg_try_advisory_xact_lock_shared(w.lock_key)
  returning w.id`);

/**
 * Ends the lease of a suspect that has not stirred since: its turns may be taken over.
 *
 * @returns False: it has refuted the suspicion, or somebody else was faster.
 */
export async function endLease(db: Queryable, peerId: WorkerId, sign: LockSign): Promise<boolean> {
  return (await run(db, END_LEASE, [peerId, sign])).length > 0;
}
