/**
 * Finds the work of an earlier try whose answer was lost with its connection. A repetition looks here first, and returns the answer of
 * the first try.
 *
 * F1  The search runs under the lock of the turns, in statements that begin after it. So an earlier try that was running has ended.
 * F2  It looks for rows that only that try can have written: a step by its turn, attempt, epoch and holder; an end by its deliverable;
 *     a result by its card; a wait by the epoch at which its turn was suspended (waits for room at a provider: `providers.ts`).
 * F3  The rings of all turns that are dispatched are returned again: rings are hints.
 */
import type { BatchId, CardId, Ring, ToolCallId, TurnId, WorkerId } from '@boxcar/kernel';
import type pg from 'pg';
import { type Queryable, run, skipping, statement, type Tx } from '../db/index.js';
import type { Row } from '../schema/index.js';
import type { Advance, AdvanceOutcome, CallSettlement, SettledTurns } from './call-types.js';
import type { StepCommit } from './step-commit.js';
import { type RingRow, toRing } from './turns.js';

const lockText = (leavesLocked: boolean): string => `
  select /* first-tries.lock */ t.id
  from boxcar.turns t
  where t.id = any ($1::uuid[])
  order by t.id
  for update${skipping(leavesLocked)}`;
const LOCK = statement(lockText(false));
const LOCK_FREE = statement(lockText(true));
const EXISTING = statement(
  'select /* first-tries.existing */ t.id from boxcar.turns t where t.id = any ($1::uuid[])',
);

/**
 * F1. Locks turns.
 *
 * @param options.leavesLocked - Leaves out locked turns. An earlier try that is still running holds the lock of its turns.
 * @returns The turns that were left out.
 */
export async function lockTurns(
  tx: Tx,
  turnIds: readonly TurnId[],
  { leavesLocked = false }: { readonly leavesLocked?: boolean | undefined } = {},
): Promise<ReadonlySet<TurnId>> {
  const rows = await run<{ id: TurnId }>(tx, leavesLocked ? LOCK_FREE : LOCK, [turnIds]);
  const free = new Set(rows.map((row) => row.id));
  const missing = leavesLocked ? turnIds.filter((id) => !free.has(id)) : [];
  const locked = missing.length === 0 ? [] : await run<{ id: TurnId }>(tx, EXISTING, [missing]);
  return new Set(locked.map((row) => row.id));
}

const LOCK_TAPES = statement(`
  with /* first-tries.lock_tapes */
  tapes as materialized (
    select b.id
    from boxcar.boxes b
    where b.id in (select t.output_box_id from boxcar.turns t where t.id = any ($1::uuid[]))
    order by b.id
    for no key update of b${skipping(true)}
  )
  select t.id
  from boxcar.turns t
  where t.id = any ($1::uuid[]) and (t.output_box_id in (select id from tapes)) is not true`);

/** Locks the tapes of turns. @returns The turns whose tapes other transactions have locked. */
export async function lockTapes(tx: Tx, turnIds: readonly TurnId[]): Promise<ReadonlySet<TurnId>> {
  const rows = turnIds.length === 0 ? [] : await run<{ id: TurnId }>(tx, LOCK_TAPES, [turnIds]);
  return new Set(rows.map((row) => row.id));
}

const DISPATCHED = statement(`
  select /* first-tries.dispatched */ t.id as turn_id, t.epoch, t.worker_target
  from boxcar.turns t
  where t.id = any ($1::uuid[]) and t.status = 'dispatched'`);

/** F3. The rings of those turns that are dispatched. */
export async function findRings(db: Queryable, turnIds: readonly TurnId[]): Promise<readonly Ring[]> {
  const rows = turnIds.length === 0 ? [] : await run<RingRow>(db, DISPATCHED, [turnIds]);
  return rows.map(toRing);
}

// The turns are locked (F1), so no other transaction moves them during this search. `has_left`: this worker no longer holds the turn of the
// step. The worker stops as after a fenced commit, but its reply counts.
const COMMITTED = statement(`
  with /* first-tries.committed */
  d as (
    select *
    from json_to_recordset($1) as d(
      turn_id uuid, epoch int, holder_id uuid, step int, attempt int, deliverable_card_id uuid
    )
  )
  select
    t.id as turn_id, t.worker_target, d.deliverable_card_id is not null as is_ended,
    d.deliverable_card_id is not null
    and exists (
      select from boxcar.operations o
      where o.awaited_turn_id = t.id and o.door_job_id is not null
    ) as has_door,
    d.deliverable_card_id is not null and (t.notifies is true or t.unseen_position is not null) as has_notice,
    case
      when d.deliverable_card_id is not null then (
        select json_agg(b.id)
        from boxcar.batches b
        where b.status = 'running'
          and b.is_due
          and b.id in (
            select unnest(t.batch_ids)
            union all
            select c.id
            from boxcar.batches c
            where c.turn_id = t.id
          )
      )
    end as due_batch_ids,
    d.deliverable_card_id is null
    and not (t.status = 'running' and t.epoch = d.epoch and t.holder_id = d.holder_id) as has_left
  from d
  cross join lateral (select * from boxcar.turns t where t.id = d.turn_id offset 0) t
  where case
    when d.deliverable_card_id is not null then t.deliverable_card_id = d.deliverable_card_id
    else exists (
      select from boxcar.steps s
      where s.turn_id = t.id
        and s.step = d.step
        and s.attempt = d.attempt
        and s.epoch = d.epoch
        and s.holder_id = d.holder_id
        and s.committed_at is not null
    )
  end`);

export interface CommittedRow extends pg.QueryResultRow {
  readonly turn_id: TurnId;
  readonly worker_target: string;
  readonly is_ended: boolean;
  readonly has_door: boolean;
  readonly has_notice: boolean;
  readonly due_batch_ids: readonly BatchId[] | null;
  readonly has_left: boolean;
}

/** Returns the commits that an earlier try made, with the facts that their result reports. */
export function findCommitted(tx: Tx, commits: readonly StepCommit[]): Promise<CommittedRow[]> {
  const records = commits.map(({ turnId, epoch, holderId, step, end }) => ({
    turn_id: turnId,
    epoch,
    holder_id: holderId,
    step: step?.step ?? null,
    attempt: step?.attempt ?? null,
    deliverable_card_id: end?.deliverableCardId ?? null,
  }));
  return run<CommittedRow>(tx, COMMITTED, [JSON.stringify(records)]);
}

// The turns are locked (F1), so the facts that are read here do not change before the commit: an earlier try has ended, and a later holder
// waits.
const ADVANCED = statement(`
  with /* first-tries.advanced */
  d as (
    select *
    from json_to_recordset($1) as d(turn_id uuid, epoch int, holder_id uuid, card_ids uuid[])
  )
  select
    t.id as turn_id, t.attempt,
    t.status = 'running'
    and t.epoch = d.epoch
    and t.holder_id = d.holder_id
    and t.pending_calls = 0
    and exists (
      select from boxcar.steps s
      where s.turn_id = t.id
        and s.step = t.step_count + 1
        and s.attempt = t.attempt
        and s.epoch = d.epoch
        and s.holder_id = d.holder_id
    ) as is_open,
    (t.status = 'suspended' and t.epoch = d.epoch)
    or (
      (t.epoch > d.epoch or t.ended_at is not null)
      and exists (select from boxcar.tool_calls k where k.turn_id = t.id and k.result_card_id = any (d.card_ids))
    ) as has_left
  from d
  cross join lateral (select * from boxcar.turns t where t.id = d.turn_id offset 0) t`);

type AdvancedRow = Row<'turns', 'attempt', { turn_id: 'id' }> & {
  readonly is_open: boolean;
  readonly has_left: boolean;
};

/** Returns the steps whose results are already recorded, with their outcome. Only the holder opens a step or suspends its turn. */
export async function findAdvanced(
  tx: Tx,
  advances: readonly Advance[],
): Promise<ReadonlyMap<TurnId, AdvanceOutcome>> {
  const records = advances.map(({ turnId, epoch, holderId, results }) => ({
    turn_id: turnId,
    epoch,
    holder_id: holderId,
    card_ids: results.map(({ card }) => card.id),
  }));
  const rows = await run<AdvancedRow>(tx, ADVANCED, [JSON.stringify(records)]);
  return new Map(
    rows.flatMap((row): [TurnId, AdvanceOutcome][] => {
      if (row.is_open) return [[row.turn_id, { outcome: 'open', attempt: row.attempt, basePosition: null }]];
      return row.has_left ? [[row.turn_id, { outcome: 'suspended' }]] : [];
    }),
  );
}

const RECORDED = statement(`
  select /* first-tries.recorded */ k.result_card_id as card_id
  from boxcar.tool_calls k
  where k.id = any ($1::uuid[]) and k.result_card_id = any ($2::uuid[])`);

/** Returns the result cards that are already recorded. */
export async function findRecorded(
  tx: Tx,
  settlements: readonly CallSettlement[],
): Promise<ReadonlySet<CardId>> {
  const callIds: ToolCallId[] = settlements.map(({ toolCallId }) => toolCallId);
  const rows = await run<{ card_id: CardId }>(tx, RECORDED, [
    callIds,
    settlements.map(({ card }) => card.id),
  ]);
  return new Set(rows.map((row) => row.card_id));
}

/** The outcome of a result that is already recorded, with the ring of its turn. */
export async function findSettled(tx: Tx, settlement: CallSettlement): Promise<SettledTurns | undefined> {
  const recorded = await findRecorded(tx, [settlement]);
  if (!recorded.has(settlement.card.id)) return undefined;
  return { rings: await findRings(tx, [settlement.turnId]), duplicates: [] };
}

const SUSPENDED = statement(`
  select /* first-tries.suspended */ t.id
  from boxcar.turns t
  join json_to_recordset($1) as d(turn_id uuid, epoch int) on d.turn_id = t.id and d.epoch = t.epoch
  join boxcar.waits w on w.turn_id = t.id and w.kind = $3
  where t.id = any ($2::uuid[]) and t.status = 'suspended'`);

/** Returns the turns that their holders, at these epochs, have suspended with a wait of this kind. */
export async function findSuspended(
  tx: Tx,
  kind: 'retry' | 'budget' | 'selector',
  held: readonly { readonly turnId: TurnId; readonly epoch: number; readonly holderId: WorkerId }[],
): Promise<ReadonlySet<TurnId>> {
  const records = held.map(({ turnId, epoch }) => ({ turn_id: turnId, epoch }));
  const turnIds = held.map(({ turnId }) => turnId);
  const rows = await run<{ id: TurnId }>(tx, SUSPENDED, [JSON.stringify(records), turnIds, kind]);
  return new Set(rows.map((row) => row.id));
}
