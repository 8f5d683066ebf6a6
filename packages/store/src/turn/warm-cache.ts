/**
 * Children that share a prompt cache (`warm_cache` of `fork_join`): the first child starts alone, and the others stay queued until its
 * first model call has an outcome. The provider then writes the shared prefix once, and the others read it.
 *
 * W1  Each reader derives from the row of the first child and from the clock whether a turn is held back. No process has to release the
 *     other children, so a lost process cannot leave them held back.
 * W2  A turn that was let in is never held back again: the columns that are read only grow, and a final status never changes.
 * W3  The process that changes the first child looks at the queue afterwards (`promote`), or else a sweep does.
 */
import type { TurnId } from '@boxcar/kernel';
import type pg from 'pg';
import { runRetrying, statement } from '../db/index.js';

/** The longest time for which a turn is held back. */
const LONGEST = "interval '10 seconds'";

export const heldBackUntil = (turn: string): string => `${turn}.created_at + ${LONGEST}`;

/**
 * True while a queued turn is held back. The first child holds the others back during its first attempt at its first step. Another
 * status, epoch or attempt ends this. A child has one of these after it was suspended (also when it continues), handed back, taken
 * over, or tried again.
 */
export const isHeldBack = (turn: string): string => `
  (
    ${turn}.warm_turn_id <> ${turn}.id
    and ${heldBackUntil(turn)} > now()
    and (
      select f.status in ('queued', 'dispatched', 'running') and f.epoch <= 1 and f.attempt <= 1 and f.step_count = 0
      from boxcar.turns f
      where f.id = ${turn}.warm_turn_id
    )
  )`;

const TARGETS = statement(`
  select /* warm-cache.targets */ distinct t.worker_target
  from boxcar.turns f
  cross join lateral unnest(f.batch_ids) as u(batch_id)
  join boxcar.batches b on b.id = u.batch_id
  cross join lateral unnest(b.turn_ids) as m(id)
  cross join lateral (
    select x.worker_target, x.status, x.warm_turn_id
    from boxcar.turns x
    where x.id = m.id
    offset 0
  ) t
  where f.id = $1 and t.status = 'queued' and t.warm_turn_id = f.id`);

/** The targets of the queued turns that wait or waited for this turn. */
export async function findWarmedTargets(pool: pg.Pool, turnId: TurnId): Promise<readonly string[]> {
  return (await runRetrying<{ worker_target: string }>(pool, TARGETS, [turnId])).map(
    (row) => row.worker_target,
  );
}
