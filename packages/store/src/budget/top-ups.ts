/** The allotments and charges of a turn before a step. Rules: budgets.ts, A1 to A3. */
import {
  type Allotment,
  type Amounts,
  type BudgetHit,
  decideGrant,
  findShortfall,
  type ProjectId,
  type RunId,
  type TurnId,
  type WorkerId,
  wantOf,
} from '@boxcar/kernel';
import type pg from 'pg';
import { run, runRetrying, statement, transaction } from '../db/index.js';
import type { Row } from '../schema/index.js';
import type { Purse } from '../turn/index.js';
import { findSuspended } from '../turn/index.js';
import { pauseForBudget } from './budget-waits.js';
import { loadAccounts, lockRun, reserve, settleEnded } from './budgets.js';

const LOCK_HELD = statement(`
  select /* top-ups.lock_held */ budget_id, allotted_tokens::float8, allotted_cost::float8, allotted_steps,
    spent_tokens::float8, spent_cost::float8, step_count
  from boxcar.turns
  where id = $1 and epoch = $2 and holder_id = $3 and status = 'running'
  for update`);

type HeldRow = Row<'turns', 'allotted_steps' | 'step_count'> & {
  /** Queried only for turns with an account. */
  readonly budget_id: string;
  readonly allotted_tokens: number | null;
  readonly allotted_cost: number | null;
  readonly spent_tokens: number;
  readonly spent_cost: number;
};

const GROW = statement(`
  update /* top-ups.grow */ boxcar.turns
  set allotted_tokens = allotted_tokens + $2,
    allotted_cost = allotted_cost + $3,
    allotted_steps = allotted_steps + $4
  where id = $1`);

/** A turn held by its worker, before a step that its allotment does not cover. */
export interface TopUpRequest {
  readonly turnId: TurnId;
  readonly projectId: ProjectId;
  readonly runId: RunId;
  readonly epoch: number;
  readonly holderId: WorkerId;
  /** The amounts that the step needs. */
  readonly need: Amounts;
  /** Suspend the turn when the accounts do not have enough. */
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
 * Increases the allotment of a turn by the need of its next step, or refuses, or lets the turn wait. One transaction. A repeated call that
 * finds the allotment large enough grants nothing more.
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
    // An earlier try, whose answer was lost, has made the grant; or only the time was requested. Time that has run out is refused below.
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
    // Kinds without a limit get no allotment and no reservation.
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

// The turn is locked first, by its epoch, holder and status. A repetition finds the usage of the attempts set, and charges nothing.
const CHARGE_LOST = statement(`
  with /* top-ups.charge_lost */
  lk as (
    select id
    from boxcar.turns
    where id = $1 and epoch = $2 and holder_id = $3 and status = 'running'
    for update
  ),
  lost as (
    update boxcar.steps s
    set usage = $6::jsonb
    from lk
    where s.turn_id = lk.id
      and s.step = $4
      and s.attempt < $5
      and s.committed_at is null
      and s.usage is null
      and s.error is null
    returning s.attempt
  )
  update boxcar.turns t
  set spent_tokens = t.spent_tokens + n.n * $7::bigint, spent_cost = t.spent_cost + n.n * $8::bigint
  from lk
  cross join (select count(*) as n from lost) n
  where t.id = lk.id
  returning t.spent_tokens::float8, t.spent_cost::float8`);

/**
 * Charges earlier attempts at a step whose answers were lost with the amounts that were reserved for them, each once.
 *
 * @returns The spending of the turn after the charge; undefined when this worker no longer holds the turn.
 */
export async function chargeLost(
  pool: pg.Pool,
  of: Pick<TopUpRequest, 'turnId' | 'epoch' | 'holderId' | 'need'> & {
    readonly step: number;
    readonly attempt: number;
    /** In the form of the rows of steps. */
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
  delete /* top-ups.drop_unasked */ from boxcar.steps s
  using boxcar.turns t
  where t.id = $1
    and t.epoch = $2
    and t.holder_id = $3
    and t.status = 'running'
    and s.turn_id = t.id
    and s.step = $4
    and s.attempt = $5
    and s.committed_at is null
    and s.usage is null
    and s.error is null`);

/**
 * Removes an open attempt in which no model was asked, before its turn ends. Otherwise it would look like an attempt whose answer was
 * lost.
 */
export async function dropUnasked(
  pool: pg.Pool,
  of: Pick<TopUpRequest, 'turnId' | 'epoch' | 'holderId'> & {
    readonly step: number;
    readonly attempt: number;
  },
): Promise<void> {
  await runRetrying(pool, DROP_UNASKED, [of.turnId, of.epoch, of.holderId, of.step, of.attempt]);
}
