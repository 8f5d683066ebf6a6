/**
 * Detects dead workers through a peer: each worker waits for the session lock of one other worker, on its own connection. A free lock
 * is only a suspicion; the lease decides.
 *
 * L1  A worker is watched while its row says that it holds its lock (`locked_at`), and has said so since the watcher's connection
 *     began. A restart or crash that ends all sessions of the server also ends the watcher's session. So a lock that became free in
 *     this way convicts no worker.
 * L2  A suspicion is dropped when the suspect's row has changed since: by a renewal, a lock that was taken again, or a goodbye.
 * L3  Only one of several watchers ends the lease.
 * L4  A watcher asks a worker that has not confirmed its lock since the watcher's connection began. The worker confirms it by a renewal
 *     within milliseconds. So a watcher need not wait for the next heartbeat of its new peer.
 */
import { tryParseId, type WorkerId } from '@boxcar/kernel';
import { type Queryable, run, statement } from '../db/index.js';

const SAID_LOCKED = 'w.locked_at > (select a.backend_start from pg_stat_get_activity(pg_backend_pid()) a)';

const ASK = statement('select /* liveness.ask */ true as is_there');

/** A statement whose only purpose is to get an answer from the server. */
export async function askServer(db: Queryable): Promise<void> {
  await run(db, ASK, []);
}

/**
 * Notices between workers, on their direct connections. `joined <id>` tells the worker's predecessor in the circle to watch it at once.
 * By `beat <id>` a watcher asks a worker to confirm that it holds its lock (L4).
 */
export const WORKERS_CHANNEL = 'boxcar_workers';

export interface WorkerNotice {
  readonly kind: 'joined' | 'beat';
  readonly workerId: WorkerId;
}

/** Undefined for a notice that this build does not know. */
export function parseWorkerNotice(payload: string): WorkerNotice | undefined {
  const [, kind, id] = /^(joined|beat) (\S+)$/.exec(payload) ?? [];
  const workerId = tryParseId<'worker'>(id ?? '');
  if ((kind !== 'joined' && kind !== 'beat') || workerId === undefined) return undefined;
  return { kind, workerId };
}

const JOIN = statement(`select /* liveness.join */ pg_notify('${WORKERS_CHANNEL}', 'joined ' || $1::uuid)`);

/** Announces that a worker has its lock again, so that another worker watches it. `registerWorker` does this on its own. */
export async function announceWorker(db: Queryable, workerId: WorkerId): Promise<void> {
  await run(db, JOIN, [workerId]);
}

// The subquery chooses one row before the statement waits for the lock.
const WATCH = statement(`
  select /* liveness.watch */
    p.id,
    case when p.said then boxcar.is_lock_free(p.lock_key, $2) end as is_free,
    case when not p.said then pg_notify('${WORKERS_CHANNEL}', 'beat ' || p.id)::text end as asked
  from (
    select w.id, w.lock_key, ${SAID_LOCKED} as said
    from boxcar.workers w
    where w.id <> $1
      and w.lease_until > now()
      and w.locked_at is not null
      and w.id <> all ($3::uuid[])
    order by w.id < $1, w.id
    limit 1
    offset 0
  ) p`);

/**
 * Waits for the lock of the next living worker in the circle of ids.
 *
 * @param db - A connection with no other user: the statement occupies it while it waits.
 * @param options.without - Workers to pass over.
 * @returns `held`: the peer kept its lock during the whole wait. `free`: its lock was free. `asked`: the peer has not confirmed its
 *   lock since this connection began; it was asked to, without a wait. `none`: there is no worker to watch.
 */
export async function watchPeer(
  db: Queryable,
  workerId: WorkerId,
  options: { readonly waitMs: number; readonly without?: readonly WorkerId[] },
): Promise<
  { readonly outcome: 'held' | 'free' | 'asked'; readonly peerId: WorkerId } | { readonly outcome: 'none' }
> {
  const values = [workerId, Math.ceil(options.waitMs), options.without ?? []];
  const [row] = await run<{ id: WorkerId; is_free: boolean | null }>(db, WATCH, values);
  if (row === undefined) return { outcome: 'none' };
  if (row.is_free === null) return { outcome: 'asked', peerId: row.id };
  return { outcome: row.is_free ? 'free' : 'held', peerId: row.id };
}

const INTERRUPT = statement('select /* liveness.interrupt */ pg_cancel_backend($1)');

/** Ends the wait of a watching connection: its statement fails with 57014. Has no effect on an idle connection. */
export async function interruptWatch(db: Queryable, processId: number): Promise<void> {
  await run(db, INTERRUPT, [processId]);
}

/** The time at which a worker last confirmed that it holds its lock. A change of this time refutes a suspicion. */
export type LockSign = string & { readonly __lockSign: never };

// As text: a JavaScript date would lose the microseconds.
const READ_SIGN = statement(`
  select /* liveness.read_sign */ w.locked_at::text as sign
  from boxcar.workers w
  where w.id = $1 and w.lease_until > now() and ${SAID_LOCKED}`);

/** Sent on the connection of {@link watchPeer}. Undefined when the suspicion no longer applies. */
export async function readLockSign(db: Queryable, peerId: WorkerId): Promise<LockSign | undefined> {
  const [row] = await run<{ sign: LockSign }>(db, READ_SIGN, [peerId]);
  return row?.sign;
}

const END_LEASE = statement(`
  update /* liveness.end_lease */ boxcar.workers w
  set lease_until = now(), locked_at = null
  where w.id = $1
    and w.locked_at = $2::timestamptz
    and w.lease_until > now()
    and pg_try_advisory_xact_lock_shared(w.lock_key)
  returning w.id`);

/**
 * Ends the lease of a suspect whose row has not changed since the suspicion, so that its turns can be taken over.
 *
 * @returns False when the suspect has refuted the suspicion, or another watcher was faster.
 */
export async function endLease(db: Queryable, peerId: WorkerId, sign: LockSign): Promise<boolean> {
  return (await run(db, END_LEASE, [peerId, sign])).length > 0;
}
