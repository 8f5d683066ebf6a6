/** Turns that wait until a budget is raised. Rules of waits: waits.ts. */
import type { BudgetHit, ProjectId, Ring, RunId, TurnId } from '@boxcar/kernel';
import { type Queryable, run, statement } from '../db/index.js';
import { hasStatus, toRing } from '../turn/index.js';

const PAUSE = statement(`
  with /* budget-waits.pause */
  up as (
    update boxcar.turns t
    set status = 'suspended', holder_id = null, attempt = greatest(t.attempt - 1, 0)
    where t.id = $1 and ${hasStatus('running')}
    returning t.id, t.step_count, t.attempt
  ),
  -- no model was asked in it: it must not look like an attempt whose answer was lost
  closed as (
    delete from boxcar.steps s
    using up
    where s.turn_id = up.id
      and s.step = up.step_count + 1
      and s.attempt = up.attempt + 1
      and s.committed_at is null
  ),
  paused as (
    update boxcar.budgets b
    set paused_at = coalesce(b.paused_at, now())
    where b.id = $3
  )
  insert into boxcar.waits (turn_id, project_id, kind, detail)
  select up.id, $2, 'budget', $4::jsonb
  from up`);

/** Suspends a turn until an account is raised. The caller holds the turn, and has locked the run and the turn. */
export async function pauseForBudget(
  tx: Queryable,
  turn: { readonly turnId: TurnId; readonly projectId: ProjectId },
  hit: BudgetHit,
): Promise<void> {
  const detail = { budget_id: hit.accountId, limit: hit.kind, limit_value: hit.limit, needed: hit.needed };
  await run(tx, PAUSE, [turn.turnId, turn.projectId, hit.accountId, JSON.stringify(detail)]);
}

const WAKE = statement(`
  with /* budget-waits.wake */
  lk as (
    select t.id
    from boxcar.waits w
    join boxcar.turns t on t.id = w.turn_id
    where w.kind = 'budget'
      and w.detail->>'budget_id' = $2::uuid::text
      and t.run_id = $1
      and ${hasStatus('suspended')}
    order by t.id
    for update of t
  ),
  woken as (
    delete from boxcar.waits w
    using lk
    where w.turn_id = lk.id
    returning w.turn_id
  )
  update boxcar.turns t
  set status = 'dispatched', epoch = t.epoch + 1, dispatched_at = now()
  from woken
  where t.id = woken.turn_id and ${hasStatus('suspended')}
  returning t.id as turn_id, t.epoch, t.worker_target`);

/** Wakes the turns that wait for an account. The caller has locked the run, so no other turn can begin to wait meanwhile. */
export async function wakeForBudget(
  tx: Queryable,
  of: { readonly runId: RunId; readonly accountId: string },
): Promise<readonly Ring[]> {
  return (await run<Parameters<typeof toRing>[0]>(tx, WAKE, [of.runId, of.accountId])).map(toRing);
}
