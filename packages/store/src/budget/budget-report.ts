/** The accounts of a run, as reports show them. */
import type { BudgetLimits, RunId } from '@boxcar/kernel';
import type pg from 'pg';
import { type Queryable, run, statement } from '../db/index.js';
import { IS_LOST } from './budgets.js';

/** The usage of a turn, also before the turn is settled. */
const used = (spent: string, allotted: string): string =>
  `case when not t.is_settled and ${IS_LOST} then greatest(t.${spent}, t.${allotted}) else t.${spent} end`;

// Takes no locks, also not the lock of the run: the numbers are of one snapshot. They are summed over turns, settled or not, so they do not
// wait for a settlement.
const REPORT = statement(`
  with recursive /* budget-report.report */
  own as (
    select
      t.budget_id, count(*)::int as turns,
      count(*) filter (where t.ended_at is null)::int as open_turns,
      sum(t.step_count)::int as steps,
      sum(case when t.ended_at is null then greatest(t.allotted_steps - t.step_count, 0) end)::int as steps_held,
      sum(${used('spent_tokens', 'allotted_tokens')})::float8 as tokens,
      sum(
        case when t.ended_at is null then greatest(t.allotted_tokens - t.spent_tokens, 0) end
      )::float8 as tokens_held,
      sum(${used('spent_cost', 'allotted_cost')})::float8 as cost,
      sum(case when t.ended_at is null then greatest(t.allotted_cost - t.spent_cost, 0) end)::float8 as cost_held,
      count(w.turn_id)::int as paused
    from boxcar.turns t
    left join boxcar.waits w on w.turn_id = t.id and w.kind = 'budget'
    where t.run_id = $1 and t.budget_id is not null
    group by t.budget_id
  ),
  up as (
    select b.id as leaf, b.id, b.parent_id
    from boxcar.budgets b
    where b.run_id = $1
    union all
    select up.leaf, p.id, p.parent_id
    from up
    cross join lateral (select id, parent_id from boxcar.budgets b where b.id = up.parent_id offset 0) p
  )
  select
    b.id as budget_id, b.parent_id, b.limits, b.deadline_at, coalesce(sum(o.turns), 0)::int as turns,
    coalesce(sum(o.open_turns), 0)::int as open_turns,
    coalesce(sum(o.paused), 0)::int as paused_turns,
    coalesce(sum(o.steps), 0)::int as steps,
    coalesce(sum(o.steps_held), 0)::int as steps_held,
    coalesce(sum(o.tokens), 0)::float8 as tokens,
    coalesce(sum(o.tokens_held), 0)::float8 as tokens_held,
    coalesce(sum(o.cost), 0)::float8 as cost_micros,
    coalesce(sum(o.cost_held), 0)::float8 as cost_held
  from boxcar.budgets b
  join up on up.id = b.id
  left join own o on o.budget_id = up.leaf
  where b.run_id = $1
  group by b.id
  order by b.top_depth, b.id`);

/** An account in a report: the usage of its turns, and the amounts reserved for turns in progress. */
export interface BudgetReport extends pg.QueryResultRow {
  /** The run, or the turn at the top of a capped subtree. */
  readonly budget_id: string;
  readonly parent_id: string | null;
  readonly limits: BudgetLimits;
  readonly deadline_at: Date | null;
  readonly turns: number;
  readonly open_turns: number;
  /** Turns that wait until the account is raised. */
  readonly paused_turns: number;
  readonly steps: number;
  readonly steps_held: number;
  readonly tokens: number;
  readonly tokens_held: number;
  readonly cost_micros: number;
  readonly cost_held: number;
}

/** The accounts of a run, the outermost first; empty for a run without accounts. */
export function loadBudgets(db: Queryable, runId: RunId): Promise<BudgetReport[]> {
  return run<BudgetReport>(db, REPORT, [runId]);
}
