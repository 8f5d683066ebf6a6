/**
 * Turns that cannot be claimed, loaded, run, rung, taken over, woken or ended, and the waiters of such turns. The failures are rows
 * (`dead-letters.ts`), so all workers share the same counts and back-off.
 *
 * F1  When one of these actions has been given up, the sweep ends the turn as `failed`, with the noted cause. A step that a worker
 *     commits in the meantime does not change this: no claim takes such a turn.
 * F2  When the end itself cannot be written, the turn stays open, and its waiters get an answer in place of the turn's end.
 */
import type { BatchId, ProjectId, ToolCallId, TurnId } from '@boxcar/kernel';
import type pg from 'pg';
import { type Queryable, run, runRetrying, statement } from '../db/index.js';
import { IS_OF_STEP, listOf, notSetAside, UNENDED } from '../rows/index.js';
import { ENDABLE, type EndableTurn, type SweepClock } from './sweep-turns.js';

const NOW = 'coalesce($1::timestamptz, now())';
/** A turn with a dead letter of one of these kinds never continues. */
const STOPPED = listOf(['turn_runs', 'lost_rings', 'dead_leases', 'due_waits']);

/** Dead letters of turns that have not ended. */
const LETTERS = `
  boxcar.sweep_failures f
  cross join lateral (select x.* from boxcar.turns x where x.id = f.row_id and x.ended_at is null offset 0) t`;
const FAILED_TURNS = `
  ${LETTERS}
  where f.kind in (${STOPPED}) and f.is_dead and ${notSetAside('turn_ends', 'f.row_id', NOW)}`;
const LOST_CALLS = `
  select /* failed-turns.lost_calls */ k.id, k.turn_id, k.project_id, k.name, f.last_error
  from ${LETTERS}
  cross join lateral (
    select x.*
    from boxcar.tool_calls x
    where x.id = t.parent_tool_call_id and t.is_awaited and x.status = 'pending'
    offset 0
  ) k
  where f.kind in (${listOf(UNENDED)}) and f.is_dead and ${notSetAside('overdue_calls', 'k.id', NOW)}
  union all
  select k.id, k.turn_id, k.project_id, k.name, f.last_error
  from boxcar.sweep_failures f
  cross join lateral (select x.* from boxcar.batches x where x.id = f.row_id and x.status = 'running' offset 0) b
  cross join lateral (
    select x.*
    from boxcar.tool_calls x
    where x.id = b.tool_call_id and x.status = 'pending'
    offset 0
  ) k
  where f.kind = 'due_batches' and f.is_dead and ${notSetAside('overdue_calls', 'k.id', NOW)}`;
const LOST_BATCHES = `
  select /* failed-turns.lost_batches */ b.id, b.project_id
  from ${LETTERS}
  cross join lateral unnest(t.batch_ids) as u(batch_id)
  cross join lateral (select x.* from boxcar.batches x where x.id = u.batch_id and x.status = 'running' offset 0) b
  where f.kind in (${listOf(UNENDED)}) and f.is_dead and ${notSetAside('due_batches', 'b.id', NOW)}`;

/** Parts of the probe: is there such a turn, and does a call or batch wait for a turn that could not be ended? */
export const hasFailedTurns = `exists (select from ${FAILED_TURNS})`;
export const hasLostTurns = `exists (${LOST_CALLS}) or exists (${LOST_BATCHES})`;

export interface FailedTurn extends EndableTurn {
  readonly last_error: string;
  readonly attempts: number;
}

const FIND_FAILED = statement(`
  select /* failed-turns.find_failed */ distinct on (t.id) ${ENDABLE}, f.last_error, f.attempts
  from ${FAILED_TURNS}
  order by t.id
  limit $2`);

/** Turns that have been given up and have not been ended (F1). */
export function findFailedTurns(
  pool: pg.Pool,
  options: SweepClock & { limit: number },
): Promise<FailedTurn[]> {
  return runRetrying<FailedTurn>(pool, FIND_FAILED, [options.now ?? null, options.limit]);
}

const FIND_ENDABLE = statement(
  `select /* failed-turns.find_endable */ ${ENDABLE} from boxcar.turns t where t.id = $1 and t.ended_at is null`,
);

/** The facts that another process needs to end a turn; undefined when the turn has ended. */
export async function findEndable(db: Queryable, turnId: TurnId): Promise<EndableTurn | undefined> {
  return (await run<EndableTurn>(db, FIND_ENDABLE, [turnId]))[0];
}

export interface LostCall extends pg.QueryResultRow {
  readonly id: ToolCallId;
  readonly turn_id: TurnId;
  readonly project_id: ProjectId;
  readonly name: string;
  readonly last_error: string;
}

const FIND_LOST_CALLS = statement(`${LOST_CALLS} limit $2`);

/** Open calls that wait for a turn or batch that could not be ended (F2). */
export function findLostCalls(pool: pg.Pool, options: SweepClock & { limit: number }): Promise<LostCall[]> {
  return runRetrying<LostCall>(pool, FIND_LOST_CALLS, [options.now ?? null, options.limit]);
}

const FIND_LOST_BATCHES = statement(`${LOST_BATCHES} limit $2`);

/** Running batches with a member that could not be ended (F2). */
export function findLostBatches(
  pool: pg.Pool,
  options: SweepClock & { limit: number },
): Promise<readonly { readonly id: BatchId; readonly project_id: ProjectId }[]> {
  return runRetrying(pool, FIND_LOST_BATCHES, [options.now ?? null, options.limit]);
}

const UNENDED_MEMBERS = statement(`
  select /* failed-turns.unended_members */ distinct on (t.id) t.id as turn_id, f.last_error, f.is_dead
  from boxcar.turns t
  join boxcar.sweep_failures f on f.row_id = t.id
  where t.id = any ($1::uuid[]) and t.ended_at is null and f.kind in (${listOf(UNENDED)})
  order by t.id, f.is_dead desc`);

export interface UnendedMember {
  readonly cause: string;
  /** False while the sweep still tries to end the turn. */
  readonly isDead: boolean;
}

/** The turns that could not be ended so far, with the causes. */
export async function findUnendedMembers(
  db: Queryable,
  turnIds: readonly TurnId[],
): Promise<ReadonlyMap<TurnId, UnendedMember>> {
  const rows = await run<{ turn_id: TurnId; last_error: string; is_dead: boolean }>(db, UNENDED_MEMBERS, [
    turnIds,
  ]);
  return new Map(rows.map((row) => [row.turn_id, { cause: row.last_error, isDead: row.is_dead }]));
}

const CAUSES = statement(`
  select /* failed-turns.causes */ t.id as turn_id, f.last_error
  from boxcar.turns t
  join boxcar.sweep_failures f on f.kind = 'turn_runs' and f.row_id = t.id
  where t.id = any ($1::uuid[]) and ${IS_OF_STEP}`);

/** The recorded causes of the last failed runs of these turns at their current step. */
export async function findRunFailures(
  db: Queryable,
  turnIds: readonly TurnId[],
): Promise<ReadonlyMap<TurnId, string>> {
  const rows = await run<{ turn_id: TurnId; last_error: string }>(db, CAUSES, [turnIds]);
  return new Map(rows.map((row) => [row.turn_id, row.last_error]));
}
