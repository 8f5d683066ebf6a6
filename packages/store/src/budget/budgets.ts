/**
 * The rows of budgets. Rules: kernel/budget/budget.ts; docs/reference/budgets.md.
 *
 * A1  Accounts are read and written only while the row of their run is locked, so they need no locks of their own.
 * A2  `reserved` is the allotment of unsettled turns, `spent` the usage of settled turns. Both count in every account on the way up.
 * A3  A turn is settled after its end and before the next grant in its run, because the end of a turn takes no lock on the run. A turn may
 *     have used more than its allotment, so a grant is decided only after the settlement.
 */
import {
  type Account,
  type Amounts,
  type BudgetLimits,
  KernelError,
  type ProfileId,
  type ProjectId,
  type Ring,
  type RunId,
  type TurnId,
} from '@boxcar/kernel';
import type pg from 'pg';
import {
  type LockLimit,
  type Queryable,
  run,
  runRetrying,
  skipping,
  statement,
  type Tx,
  transactWithin,
} from '../db/index.js';
import { notSetAside } from '../rows/index.js';
import type { Row } from '../schema/index.js';
import { wakeForBudget } from './budget-waits.js';

const LOCK_RUN = statement(
  'select /* budgets.lock_run */ id from boxcar.runs where id = $1 for no key update',
);

/** A1. Must be the first lock of a transaction. */
export async function lockRun(tx: Tx, runId: RunId): Promise<void> {
  await run(tx, LOCK_RUN, [runId]);
}

const ACCOUNTS = statement(`
  with recursive /* budgets.accounts */
  up as (
    select b.*, 0 as n
    from boxcar.budgets b
    where b.id = $1
    union all
    select p.*, up.n + 1
    from up
    cross join lateral (select * from boxcar.budgets b where b.id = up.parent_id offset 0) p
  )
  select
    id, limits, top_depth, deadline_at::text as deadline_at,
    coalesce(deadline_at <= now(), false) as is_over,
    (tokens_reserved + tokens_spent)::float8 as tokens,
    (cost_reserved + cost_spent)::float8 as cost, steps_reserved + steps_spent as steps, turns_used as turns
  from up
  order by n`);

type AccountDbRow = Row<
  'budgets',
  'id' | 'limits' | 'top_depth',
  { turns: 'turns_used'; steps: 'steps_spent' }
> & {
  /** In the format of Postgres. */
  readonly deadline_at: string | null;
  readonly is_over: boolean;
  readonly tokens: number;
  readonly cost: number;
};

export interface AccountRow extends Account {
  /** In the format of Postgres, to the microsecond; null: no deadline. */
  readonly deadlineAt: string | null;
}

/** An account and the accounts that enclose it, nearest first. A1. */
export async function loadAccounts(db: Queryable, budgetId: string): Promise<readonly AccountRow[]> {
  const rows = await run<AccountDbRow>(db, ACCOUNTS, [budgetId]);
  return rows.map((row) => ({
    id: row.id,
    limits: row.limits,
    topDepth: row.top_depth,
    deadlineAt: row.deadline_at,
    isOver: row.is_over,
    tokens: row.tokens,
    costMicros: row.cost,
    steps: row.steps,
    turns: row.turns,
  }));
}

/**
 * For an ended turn `t`: its model call was in progress when the turn was ended from outside. The turn keeps its whole allotment, because
 * the cost of the call is not known.
 */
export const IS_LOST = `
  (
    t.status in ('failed', 'timeout', 'canceled')
    and exists (
      select from boxcar.steps s
      where s.turn_id = t.id
        and s.step = t.step_count + 1
        and s.committed_at is null
        and s.usage is null
        and s.error is null
    )
  )`;

// The caller has locked the run (A1), so no other grant or settlement in it goes on. The ended turns are locked by id, after the run as
// everywhere; with `leavesLocked`, locked turns are left to the next settlement. `is_settled` makes sure that each turn is booked once.
const settleText = (leavesLocked: boolean): string => `
  with recursive /* budgets.settle */
  lk as (
    select t.id, ${IS_LOST} as is_lost
    from boxcar.turns t
    where t.run_id = $1 and not t.is_settled and t.ended_at is not null
    order by t.id
    for no key update of t${skipping(leavesLocked)}
  ),
  done as (
    update boxcar.turns t
    set is_settled = true,
      spent_tokens = case when lk.is_lost then greatest(t.spent_tokens, t.allotted_tokens) else t.spent_tokens end,
      spent_cost = case when lk.is_lost then greatest(t.spent_cost, t.allotted_cost) else t.spent_cost end
    from lk
    where t.id = lk.id
    returning t.budget_id, t.allotted_tokens, t.allotted_cost, t.allotted_steps, t.spent_tokens, t.spent_cost,
      t.step_count
  ),
  sums as (
    select
      budget_id,
      coalesce(sum(allotted_tokens), 0)::bigint as tokens_back,
      coalesce(sum(allotted_cost), 0)::bigint as cost_back,
      coalesce(sum(allotted_steps), 0)::int as steps_back,
      sum(spent_tokens)::bigint as tokens, sum(spent_cost)::bigint as cost, sum(step_count)::int as steps
    from done
    group by budget_id
  ),
  up as (
    select s.budget_id, b.id, b.parent_id
    from sums s
    cross join lateral (select id, parent_id from boxcar.budgets b where b.id = s.budget_id offset 0) b
    union all
    select up.budget_id, p.id, p.parent_id
    from up
    cross join lateral (select id, parent_id from boxcar.budgets b where b.id = up.parent_id offset 0) p
  ),
  totals as (
    select up.id, sum(s.tokens_back)::bigint as tokens_back, sum(s.cost_back)::bigint as cost_back,
      sum(s.steps_back)::int as steps_back, sum(s.tokens)::bigint as tokens, sum(s.cost)::bigint as cost,
      sum(s.steps)::int as steps
    from up
    join sums s on s.budget_id = up.budget_id
    group by up.id
  )
  update boxcar.budgets b
  set tokens_reserved = b.tokens_reserved - x.tokens_back,
    tokens_spent = b.tokens_spent + x.tokens,
    cost_reserved = b.cost_reserved - x.cost_back,
    cost_spent = b.cost_spent + x.cost,
    steps_reserved = b.steps_reserved - x.steps_back,
    steps_spent = b.steps_spent + x.steps
  from totals x
  where b.id = x.id`;
const SETTLE = statement(settleText(false));
const SETTLE_UNLOCKED = statement(settleText(true));

/**
 * A3: books the usage of the ended turns of a run, and gives the rest of their allotments back. A1.
 *
 * @param options.leavesLocked - Leaves turns whose rows are locked to the next call.
 */
export async function settleEnded(
  tx: Tx,
  runId: RunId,
  { leavesLocked = false }: { readonly leavesLocked?: boolean } = {},
): Promise<void> {
  await run(tx, leavesLocked ? SETTLE_UNLOCKED : SETTLE, [runId]);
}

const RESERVE = statement(`
  update /* budgets.reserve */ boxcar.budgets
  set tokens_reserved = tokens_reserved + $2,
    cost_reserved = cost_reserved + $3,
    steps_reserved = steps_reserved + $4,
    turns_used = turns_used + $5
  where id = any ($1::uuid[])`);

/** Writes a grant into all accounts on the way up. A1. */
export async function reserve(
  tx: Tx,
  accountIds: readonly string[],
  amounts: Amounts & { readonly turns: number },
): Promise<void> {
  await run(tx, RESERVE, [accountIds, amounts.tokens, amounts.costMicros, amounts.steps, amounts.turns]);
}

const COUNT_CHILDREN = statement(
  'select /* budgets.count_children */ count(*)::int as n from boxcar.turns where parent_turn_id = $1',
);

export async function countChildren(db: Queryable, turnId: TurnId): Promise<number> {
  const [row] = await run<{ n: number }>(db, COUNT_CHILDREN, [turnId]);
  return row?.n ?? 0;
}

const SPAWN_PROFILES = statement(`
  select /* budgets.spawn_profiles */
    f.id as profile_id, c.content->'data'->>'model' as model,
    (c.content->'data'->'model_settings'->>'max_output_tokens')::float8 as max_output_tokens,
    (c.content->'data'->'limits'->>'context_tokens')::float8 as context_tokens,
    f.max_tokens::float8 as max_tokens,
    octet_length(c.content->'data'->>'instructions') as instruction_bytes,
    p.limits->'prices' as prices
  from boxcar.profiles f
  join boxcar.cards c on c.id = f.card_id
  join boxcar.projects p on p.id = f.project_id
  where f.id = any ($1::uuid[])`);

/** The parts of a profile that determine the size and the price of its calls. */
export interface SpawnProfile {
  readonly profile_id: ProfileId;
  readonly model: string;
  readonly max_output_tokens: number | null;
  readonly context_tokens: number | null;
  /** The limit of tokens for one turn. */
  readonly max_tokens: number | null;
  readonly instruction_bytes: number;
  /** The project's own prices, as stored. */
  readonly prices: unknown;
}

export function loadSpawnProfiles(db: Queryable, ids: readonly ProfileId[]): Promise<SpawnProfile[]> {
  return run<SpawnProfile & pg.QueryResultRow>(db, SPAWN_PROFILES, [ids]);
}

const FIND_ACCOUNT = statement(`
  select /* budgets.find_account */ b.id, b.run_id, b.limits
  from boxcar.turns t
  join boxcar.budgets b on b.id = t.budget_id
  where t.id = $1`);
const FIND_OF_RUN = statement(`
  select /* budgets.find_of_run */ b.id, b.run_id, b.limits
  from boxcar.budgets b
  where b.run_id = $1
    and (
      b.id = $1
      or b.id in (select t.budget_id from boxcar.turns t where t.run_id = $1 and t.parent_turn_id is null)
    )
  order by b.id = $1 desc, b.id
  limit 4`);

type GoverningRow = Row<'budgets', 'id' | 'run_id' | 'limits'>;

/**
 * The account that governs a turn, or a whole run when `runId` is given; undefined without an account. For a run without its own account
 * it is the account of its first turns, if they share one.
 *
 * @throws KernelError `bad_request` for a run that several accounts govern, naming them.
 */
export async function findAccount(
  db: Queryable,
  { turnId, runId }: { readonly turnId: TurnId; readonly runId: RunId | undefined },
): Promise<{ readonly id: string; readonly runId: RunId; readonly limits: BudgetLimits } | undefined> {
  const rows = await (runId === undefined
    ? run<GoverningRow>(db, FIND_ACCOUNT, [turnId])
    : run<GoverningRow>(db, FIND_OF_RUN, [runId]));
  const [row] = rows;
  if (row !== undefined && rows.length > 1 && row.id !== String(runId)) {
    const ids = rows.map(({ id }) => id);
    throw new KernelError('bad_request', {
      message: `Run ${runId} has no budget as a whole; its tasks have their own (${ids.slice(0, 3).join(', ')}${ids.length > 3 ? ', …' : ''}): name the turn of one.`,
      details: { run_id: runId, budget_ids: ids },
    });
  }
  return row && { id: row.id, runId: row.run_id, limits: row.limits };
}

const RAISE = statement(
  'update /* budgets.raise */ boxcar.budgets set limits = limits || $2::jsonb, paused_at = null where id = $1',
);

/** Sets new limits and wakes the turns that wait for them. A1: the caller has locked the run, and has decided under that lock. */
export async function raiseAccount(
  tx: Tx,
  of: { readonly runId: RunId; readonly accountId: string; readonly limits: BudgetLimits },
): Promise<readonly Ring[]> {
  await run(tx, RAISE, [of.accountId, JSON.stringify(of.limits)]);
  return wakeForBudget(tx, of);
}

/** How long a pause is left alone; and how long before the pause a turn may have ended unseen, because its commit was in progress. */
const LOOK_AFTER = "interval '5 seconds'";
const UNSEEN = "interval '10 seconds'";

/** Accounts for which turns wait, and in whose run other turns have ended since. */
const pausedText = (now: string): string => `
  select /* budgets.paused */ b.id, b.run_id, b.project_id
  from boxcar.budgets b
  where b.paused_at <= ${now} - ${LOOK_AFTER}
    and ${notSetAside('left_budgets', 'b.id', now)}
    and exists (select from boxcar.turns t where t.run_id = b.run_id and t.ended_at > b.paused_at - ${UNSEEN})`;

const FIND_LEFT_TO = statement(
  `${pausedText('coalesce($1::timestamptz, now())')} order by b.paused_at limit $2`,
);

export interface PausedAccount extends pg.QueryResultRow {
  readonly id: string;
  readonly run_id: RunId;
  readonly project_id: ProjectId;
}

/** Accounts for which turns wait, and in whose run turns have ended since: the ended turns may have left enough. */
export function findLeftovers(
  pool: pg.Pool,
  options: { readonly now?: Date; readonly limit: number },
): Promise<PausedAccount[]> {
  return runRetrying<PausedAccount>(pool, FIND_LEFT_TO, [options.now ?? null, options.limit]);
}

/** Lets turns that wait for an account try again. Turns for which the account is still too small wait again. */
export function wakeForLeftovers(
  pool: pg.Pool,
  { id, run_id: runId }: Pick<PausedAccount, 'id' | 'run_id'>,
  limit: LockLimit = {},
): Promise<readonly Ring[]> {
  return transactWithin(pool, limit, async (tx) => {
    await lockRun(tx, runId);
    await settleEnded(tx, runId);
    return raiseAccount(tx, { runId, accountId: id, limits: {} });
  });
}
