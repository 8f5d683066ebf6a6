/**
 * The rows of budgets. Rules: kernel/budget/budget.ts; docs/budgets.md.
 *
 * A1  Accounts are read and written only while the row of their run is locked, so they need no locks of their own.
 * A2  `reserved` is what unsettled turns have been allotted, `spent` what settled ones have used; both count in every
 *     account on the way up.
 * A3  A turn settles after its end, before the next grant in its run: ends take no lock of the run. A turn may have used more than it
 *     was allotted, so no grant is decided before.
 */
import {
  type Account,
  type Allotment,
  type Amounts,
  type BudgetHit,
  type BudgetLimits,
  decideGrant,
  findShortfall,
  KernelError,
  type ProfileId,
  type ProjectId,
  type Ring,
  type RunId,
  type TurnId,
  type WorkerId,
  wantOf,
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
  transaction,
  transactWithin,
} from '../db/index.js';
import { notSetAside } from '../rows/index.js';
import type { Purse } from '../turn/index.js';
import { findSuspended } from '../turn/index.js';
import { pauseForBudget, wakeForBudget } from './budget-waits.js';

const LOCK_RUN = statement('select id from boxcar.runs where id = $1 for no key update');

/** A1. First of all locks a transaction takes. */
export async function lockRun(tx: Tx, runId: RunId): Promise<void> {
  await run(tx, LOCK_RUN, [runId]);
}

const ACCOUNTS = statement(`
  with recursive up as (
    select b.*, 0 as n from boxcar.budgets b where b.id = $1
    union all
    select p.*, up.n + 1 from up cross join lateral (select * from boxcar.budgets b where b.id = up.parent_id offset 0) p
  )
  select id, limits, top_depth, deadline_at::text as deadline_at, coalesce(deadline_at <= now(), false) as is_over,
    (tokens_reserved + tokens_spent)::float8 as tokens, (cost_reserved + cost_spent)::float8 as cost, steps_reserved + steps_spent as steps, turns_used as turns
  from up order by n`);

interface AccountDbRow extends pg.QueryResultRow {
  id: string;
  limits: BudgetLimits;
  top_depth: number;
  deadline_at: string | null;
  is_over: boolean;
  tokens: number;
  cost: number;
  steps: number;
  turns: number;
}

export interface AccountRow extends Account {
  /** As Postgres writes it, to the microsecond; null = no end. */
  readonly deadlineAt: string | null;
}

/** An account and those that enclose it, nearest first. A1. */
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

/** Of an ended turn `t`: its model worked when it was ended from outside. It keeps all that it was allotted: what the call cost is not known. */
const IS_LOST = `(t.status in ('failed', 'timeout', 'canceled') and exists (
        select from boxcar.steps s where s.turn_id = t.id and s.step = t.step_count + 1 and s.committed_at is null and s.usage is null and s.error is null))`;

const settleText = (leavesLocked: boolean): string => `
  with recursive lk as (
    select t.id, ${IS_LOST} as is_lost
    from boxcar.turns t where t.run_id = $1 and not t.is_settled and t.ended_at is not null order by t.id for no key update of t${skipping(leavesLocked)}
  ),
  done as (
    update boxcar.turns t set is_settled = true,
      spent_tokens = case when lk.is_lost then greatest(t.spent_tokens, t.allotted_tokens) else t.spent_tokens end,
      spent_cost = case when lk.is_lost then greatest(t.spent_cost, t.allotted_cost) else t.spent_cost end
    from lk where t.id = lk.id
    returning t.budget_id, t.allotted_tokens, t.allotted_cost, t.allotted_steps, t.spent_tokens, t.spent_cost, t.step_count
  ),
  sums as (
    select budget_id, coalesce(sum(allotted_tokens), 0)::bigint as tokens_back, coalesce(sum(allotted_cost), 0)::bigint as cost_back, coalesce(sum(allotted_steps), 0)::int as steps_back,
      sum(spent_tokens)::bigint as tokens, sum(spent_cost)::bigint as cost, sum(step_count)::int as steps
    from done group by budget_id
  ),
  up as (
    select s.budget_id, b.id, b.parent_id from sums s cross join lateral (select id, parent_id from boxcar.budgets b where b.id = s.budget_id offset 0) b
    union all
    select up.budget_id, p.id, p.parent_id from up cross join lateral (select id, parent_id from boxcar.budgets b where b.id = up.parent_id offset 0) p
  ),
  totals as (
    select up.id, sum(s.tokens_back)::bigint as tokens_back, sum(s.cost_back)::bigint as cost_back, sum(s.steps_back)::int as steps_back,
      sum(s.tokens)::bigint as tokens, sum(s.cost)::bigint as cost, sum(s.steps)::int as steps
    from up join sums s on s.budget_id = up.budget_id group by up.id
  )
  update boxcar.budgets b set tokens_reserved = b.tokens_reserved - x.tokens_back, tokens_spent = b.tokens_spent + x.tokens,
    cost_reserved = b.cost_reserved - x.cost_back, cost_spent = b.cost_spent + x.cost,
    steps_reserved = b.steps_reserved - x.steps_back, steps_spent = b.steps_spent + x.steps
  from totals x where b.id = x.id`;
const SETTLE = statement(settleText(false));
const SETTLE_UNLOCKED = statement(settleText(true));

/**
 * A3: books what the ended turns of a run have used, and gives back what they have left. A1.
 *
 * @param options.leavesLocked - Turns whose rows are locked are left to the next time.
 */
export async function settleEnded(
  tx: Tx,
  runId: RunId,
  { leavesLocked = false }: { readonly leavesLocked?: boolean } = {},
): Promise<void> {
  await run(tx, leavesLocked ? SETTLE_UNLOCKED : SETTLE, [runId]);
}

const RESERVE = statement(`
  update boxcar.budgets set tokens_reserved = tokens_reserved + $2, cost_reserved = cost_reserved + $3, steps_reserved = steps_reserved + $4, turns_used = turns_used + $5
  where id = any ($1::uuid[])`);

/** Writes a grant into all accounts on the way up. A1. */
export async function reserve(
  tx: Tx,
  accountIds: readonly string[],
  amounts: Amounts & { readonly turns: number },
): Promise<void> {
  await run(tx, RESERVE, [accountIds, amounts.tokens, amounts.costMicros, amounts.steps, amounts.turns]);
}

const COUNT_CHILDREN = statement('select count(*)::int as n from boxcar.turns where parent_turn_id = $1');

export async function countChildren(db: Queryable, turnId: TurnId): Promise<number> {
  const [row] = await run<{ n: number }>(db, COUNT_CHILDREN, [turnId]);
  return row?.n ?? 0;
}

const SPAWN_PROFILES = statement(`
  select f.id as profile_id, c.content->'data'->>'model' as model, (c.content->'data'->'model_settings'->>'max_output_tokens')::float8 as max_output_tokens,
    (c.content->'data'->'limits'->>'context_tokens')::float8 as context_tokens,
    f.max_tokens::float8 as max_tokens, octet_length(c.content->'data'->>'instructions') as instruction_bytes, p.limits->'prices' as prices
  from boxcar.profiles f join boxcar.cards c on c.id = f.card_id join boxcar.projects p on p.id = f.project_id where f.id = any ($1::uuid[])`);

/** What a profile says of the size and the price of its calls. */
export interface SpawnProfile {
  readonly profile_id: ProfileId;
  readonly model: string;
  readonly max_output_tokens: number | null;
  readonly context_tokens: number | null;
  /** Tokens of one turn. */
  readonly max_tokens: number | null;
  readonly instruction_bytes: number;
  /** The project's own prices, as they stand there. */
  readonly prices: unknown;
}

export function loadSpawnProfiles(db: Queryable, ids: readonly ProfileId[]): Promise<SpawnProfile[]> {
  return run<SpawnProfile & pg.QueryResultRow>(db, SPAWN_PROFILES, [ids]);
}

const LOCK_HELD = statement(`
  select budget_id, allotted_tokens::float8, allotted_cost::float8, allotted_steps, spent_tokens::float8, spent_cost::float8, step_count
  from boxcar.turns where id = $1 and epoch = $2 and holder_id = $3 and status = 'running' for update`);

interface HeldRow extends pg.QueryResultRow {
  budget_id: string;
  allotted_tokens: number | null;
  allotted_cost: number | null;
  allotted_steps: number | null;
  spent_tokens: number;
  spent_cost: number;
  step_count: number;
}

const GROW = statement(`
  update boxcar.turns set allotted_tokens = allotted_tokens + $2, allotted_cost = allotted_cost + $3, allotted_steps = allotted_steps + $4 where id = $1`);

/** A turn in its worker's hands, before a step that it cannot pay. */
export interface TopUpRequest {
  readonly turnId: TurnId;
  readonly projectId: ProjectId;
  readonly runId: RunId;
  readonly epoch: number;
  readonly holderId: WorkerId;
  /** Of the step. */
  readonly need: Amounts;
  /** Suspend the turn when there is not enough. */
  readonly mayPause: boolean;
}

export type TopUp =
  | { readonly outcome: 'granted'; readonly purse: Purse }
  | { readonly outcome: 'refused'; readonly hit: BudgetHit }
  | { readonly outcome: 'paused' }
  | { readonly outcome: 'fenced' };

const plus = (allotted: number | null, granted: number): number | null =>
  allotted === null ? null : allotted + granted;

/**
 * Grows the allotment of a turn by what its next step needs, or refuses, or lets the turn wait. One transaction. A repetition
 * that finds the allotment large enough grants nothing more.
 */
export function topUp(pool: pg.Pool, request: TopUpRequest): Promise<TopUp> {
  return transaction(pool, async (tx, attempt): Promise<TopUp> => {
    await lockRun(tx, request.runId);
    const [row] = await run<HeldRow>(tx, LOCK_HELD, [request.turnId, request.epoch, request.holderId]);
    if (row === undefined) {
      const isPaused = attempt > 1 && (await findSuspended(tx, 'budget', [request])).size > 0;
      return { outcome: isPaused ? 'paused' : 'fenced' };
    }
    const allotment: Allotment = {
      tokens: row.allotted_tokens,
      costMicros: row.allotted_cost,
      steps: row.allotted_steps,
    };
    const spent = { tokens: row.spent_tokens, costMicros: row.spent_cost, steps: row.step_count };
    const shortfall = findShortfall(allotment, spent, request.need);
    await settleEnded(tx, request.runId, { leavesLocked: true });
    let accounts = await loadAccounts(tx, row.budget_id);
    const purse = {
      budgetId: row.budget_id,
      allotment,
      spentTokens: row.spent_tokens,
      spentCostMicros: row.spent_cost,
    };
    // An earlier try, whose answer was lost, has made the grant; or only the time was asked for. Time that has run out is refused below.
    if (shortfall === undefined && !accounts.some(({ isOver }) => isOver))
      return { outcome: 'granted', purse };
    const missing = shortfall ?? NOTHING;
    let grant = decideGrant(accounts, { need: missing, want: wantOf(accounts, missing, request.need) });
    if (grant.outcome === 'refused' && grant.hit.kind !== 'seconds') {
      await settleEnded(tx, request.runId);
      accounts = await loadAccounts(tx, row.budget_id);
      grant = decideGrant(accounts, { need: missing, want: wantOf(accounts, missing, request.need) });
    }
    if (grant.outcome === 'refused') {
      if (!request.mayPause || grant.hit.kind === 'seconds') return grant;
      await pauseForBudget(tx, request, grant.hit);
      return { outcome: 'paused' };
    }
    // Of a kind that nothing limits nothing is allotted, and nothing reserved.
    const granted: Amounts = {
      tokens: allotment.tokens === null ? 0 : (grant.amounts.tokens ?? 0),
      costMicros: allotment.costMicros === null ? 0 : (grant.amounts.costMicros ?? 0),
      steps: allotment.steps === null ? 0 : (grant.amounts.steps ?? 0),
    };
    const ids = accounts.map(({ id }) => id);
    await reserve(tx, ids, { ...granted, turns: 0 });
    await run(tx, GROW, [request.turnId, granted.tokens, granted.costMicros, granted.steps]);
    return {
      outcome: 'granted',
      purse: {
        ...purse,
        allotment: {
          tokens: plus(allotment.tokens, granted.tokens),
          costMicros: plus(allotment.costMicros, granted.costMicros),
          steps: plus(allotment.steps, granted.steps),
        },
      },
    };
  });
}

const NOTHING: Amounts = { tokens: 0, costMicros: 0, steps: 0 };

const CHARGE_LOST = statement(`
  with lk as (
    select id from boxcar.turns where id = $1 and epoch = $2 and holder_id = $3 and status = 'running' for update
  ),
  lost as (
    update boxcar.steps s set usage = $6::jsonb from lk
    where s.turn_id = lk.id and s.step = $4 and s.attempt < $5 and s.committed_at is null and s.usage is null and s.error is null
    returning s.attempt
  )
  update boxcar.turns t set spent_tokens = t.spent_tokens + n.n * $7::bigint, spent_cost = t.spent_cost + n.n * $8::bigint
  from lk cross join (select count(*) as n from lost) n where t.id = lk.id
  returning t.spent_tokens::float8, t.spent_cost::float8`);

/**
 * Charges the earlier attempts at a step whose answer was lost with what was reserved for them, each once.
 *
 * @returns What the turn has spent now; undefined when it is no longer this worker's.
 */
export async function chargeLost(
  pool: pg.Pool,
  of: Pick<TopUpRequest, 'turnId' | 'epoch' | 'holderId' | 'need'> & {
    readonly step: number;
    readonly attempt: number;
    /** As the steps' rows keep it. */
    readonly usage: object;
  },
): Promise<{ readonly tokens: number; readonly costMicros: number } | undefined> {
  const [row] = await transaction(pool, (tx) =>
    run<{ spent_tokens: number; spent_cost: number }>(tx, CHARGE_LOST, [
      of.turnId,
      of.epoch,
      of.holderId,
      of.step,
      of.attempt,
      JSON.stringify(of.usage),
      of.need.tokens,
      of.need.costMicros,
    ]),
  );
  return row && { tokens: row.spent_tokens, costMicros: row.spent_cost };
}

const DROP_UNASKED = statement(`
  delete from boxcar.steps s using boxcar.turns t
  where t.id = $1 and t.epoch = $2 and t.holder_id = $3 and t.status = 'running' and s.turn_id = t.id and s.step = $4 and s.attempt = $5
    and s.committed_at is null and s.usage is null and s.error is null`);

/** Takes back an open attempt in which no model was asked, before its turn ends: it must not look like one whose answer was lost. */
export async function dropUnasked(
  pool: pg.Pool,
  of: Pick<TopUpRequest, 'turnId' | 'epoch' | 'holderId'> & {
    readonly step: number;
    readonly attempt: number;
  },
): Promise<void> {
  await runRetrying(pool, DROP_UNASKED, [of.turnId, of.epoch, of.holderId, of.step, of.attempt]);
}

const FIND_ACCOUNT = statement(
  'select b.id, b.run_id, b.limits from boxcar.turns t join boxcar.budgets b on b.id = t.budget_id where t.id = $1',
);
const FIND_OF_RUN = statement(`
  select b.id, b.run_id, b.limits from boxcar.budgets b where b.run_id = $1
    and (b.id = $1 or b.id in (select t.budget_id from boxcar.turns t where t.run_id = $1 and t.parent_turn_id is null))
  order by b.id = $1 desc, b.id limit 4`);

interface GoverningRow extends pg.QueryResultRow {
  readonly id: string;
  readonly run_id: RunId;
  readonly limits: BudgetLimits;
}

/**
 * The account that governs a turn, or a whole run when `runId` is given; undefined = no account. For a run without its own account
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
  'update boxcar.budgets set limits = limits || $2::jsonb, paused_at = null where id = $1',
);

/** Sets new limits and wakes who waits for them. A1: the run is locked by the caller, who has decided under that lock. */
export async function raiseAccount(
  tx: Tx,
  of: { readonly runId: RunId; readonly accountId: string; readonly limits: BudgetLimits },
): Promise<readonly Ring[]> {
  await run(tx, RAISE, [of.accountId, JSON.stringify(of.limits)]);
  return wakeForBudget(tx, of);
}

/** How long a pause is left alone; and how long before it a turn may have ended unseen: its commit was under way. */
const LOOK_AFTER = "interval '5 seconds'";
const UNSEEN = "interval '10 seconds'";

/** Accounts that turns wait for and whose run others have left since. */
const pausedText = (now: string): string =>
  `select b.id, b.run_id, b.project_id from boxcar.budgets b where b.paused_at <= ${now} - ${LOOK_AFTER} and ${notSetAside('left_budgets', 'b.id', now)}
    and exists (select from boxcar.turns t where t.run_id = b.run_id and t.ended_at > b.paused_at - ${UNSEEN})`;

const FIND_LEFT_TO = statement(
  `${pausedText('coalesce($1::timestamptz, now())')} order by b.paused_at limit $2`,
);

export interface PausedAccount extends pg.QueryResultRow {
  readonly id: string;
  readonly run_id: RunId;
  readonly project_id: ProjectId;
}

/** Accounts that turns wait for, and whose run has had ended turns since: those may have left enough. */
export function findLeftovers(
  pool: pg.Pool,
  options: { readonly now?: Date; readonly limit: number },
): Promise<PausedAccount[]> {
  return runRetrying<PausedAccount>(pool, FIND_LEFT_TO, [options.now ?? null, options.limit]);
}

/** Lets turns that wait for an account try again. Turns for which there is still not enough wait again. */
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

/** What a turn has used, also before it is settled. */
const used = (spent: string, allotted: string): string =>
  `case when not t.is_settled and ${IS_LOST} then greatest(t.${spent}, t.${allotted}) else t.${spent} end`;

const REPORT = statement(`
  with recursive own as (
    select t.budget_id, count(*)::int as turns, count(*) filter (where t.ended_at is null)::int as open_turns, sum(t.step_count)::int as steps,
      sum(case when t.ended_at is null then greatest(t.allotted_steps - t.step_count, 0) end)::int as steps_held,
      sum(${used('spent_tokens', 'allotted_tokens')})::float8 as tokens, sum(case when t.ended_at is null then greatest(t.allotted_tokens - t.spent_tokens, 0) end)::float8 as tokens_held,
      sum(${used('spent_cost', 'allotted_cost')})::float8 as cost, sum(case when t.ended_at is null then greatest(t.allotted_cost - t.spent_cost, 0) end)::float8 as cost_held,
      count(w.turn_id)::int as paused
    from boxcar.turns t left join boxcar.waits w on w.turn_id = t.id and w.kind = 'budget' where t.run_id = $1 and t.budget_id is not null group by t.budget_id
  ),
  up as (
    select b.id as leaf, b.id, b.parent_id from boxcar.budgets b where b.run_id = $1
    union all
    select up.leaf, p.id, p.parent_id from up cross join lateral (select id, parent_id from boxcar.budgets b where b.id = up.parent_id offset 0) p
  )
  select b.id as budget_id, b.parent_id, b.limits, b.deadline_at, coalesce(sum(o.turns), 0)::int as turns, coalesce(sum(o.open_turns), 0)::int as open_turns,
    coalesce(sum(o.paused), 0)::int as paused_turns, coalesce(sum(o.steps), 0)::int as steps, coalesce(sum(o.steps_held), 0)::int as steps_held,
    coalesce(sum(o.tokens), 0)::float8 as tokens, coalesce(sum(o.tokens_held), 0)::float8 as tokens_held,
    coalesce(sum(o.cost), 0)::float8 as cost_micros, coalesce(sum(o.cost_held), 0)::float8 as cost_held
  from boxcar.budgets b join up on up.id = b.id left join own o on o.budget_id = up.leaf
  where b.run_id = $1 group by b.id order by b.top_depth, b.id`);

/** An account as people see it: what its turns have used, what is set aside for those under way. */
export interface BudgetReport extends pg.QueryResultRow {
  /** The run, or the turn at the top of a capped subtree. */
  readonly budget_id: string;
  readonly parent_id: string | null;
  readonly limits: BudgetLimits;
  readonly deadline_at: Date | null;
  readonly turns: number;
  readonly open_turns: number;
  /** Turns that wait for it to be raised. */
  readonly paused_turns: number;
  readonly steps: number;
  readonly steps_held: number;
  readonly tokens: number;
  readonly tokens_held: number;
  readonly cost_micros: number;
  readonly cost_held: number;
}

/** The accounts of a run, the outermost first; empty when it has none. */
export function loadBudgets(db: Queryable, runId: RunId): Promise<BudgetReport[]> {
  return run<BudgetReport>(db, REPORT, [runId]);
}
