/** The states of turns, and how workers hand turns back. */
import type {
  AgentId,
  BoxId,
  ErrorBody,
  JsonValue,
  ProjectId,
  Ring,
  RunId,
  ToolCallId,
  TurnId,
  TurnStatus,
  WorkerId,
} from '@boxcar/kernel';
import type pg from 'pg';
import { type Queryable, run, runRetrying, statement, transaction } from '../db/index.js';
import {
  findNoted,
  lostCause,
  type NotedFailure,
  type NoteOptions,
  noteWithin,
  type SweepFailure,
  UNENDED,
} from '../rows/index.js';

/**
 * The condition on the status of turns `t` that are found by their ids. With constants Postgres could choose the partial indexes of all
 * open turns. It does so when few turns were under way at the last ANALYZE, and then each statement reads all turns that are under way
 * now.
 */
export const hasStatus = (...statuses: readonly TurnStatus[]): string =>
  statuses.length === 1
    ? `t.status = (select '${statuses[0]}')`
    : `t.status = any ((select '{${statuses.join()}}'::text[])::text[])`;

const TURN_ENDS = statement(`
  select /* turns.turn_ends */
    t.id as turn_id, t.status, t.agent_id, t.context_box_id, t.output_box_id, t.error, t.run_id, t.step_count,
    coalesce(c.content, c.placeholder) as content, t.project_id, p.name as project_name,
    case when t.ended_at is null then ${lostCause('t.id', UNENDED)} end as lost_cause
  from boxcar.turns t
  join boxcar.projects p on p.id = t.project_id
  left join boxcar.cards c on c.id = t.deliverable_card_id
  where t.id = any ($1::uuid[])`);

export interface TurnState extends pg.QueryResultRow {
  readonly project_id: ProjectId;
  readonly project_name: string;
  readonly turn_id: TurnId;
  readonly run_id: RunId;
  readonly status: TurnStatus;
  readonly agent_id: AgentId;
  readonly context_box_id: BoxId;
  readonly output_box_id: BoxId;
  readonly step_count: number;
  readonly error: ErrorBody | null;
  /** The deliverable's content once the turn has ended. */
  readonly content: JsonValue | null;
  /** The cause why its end was given up; null when the turn has ended or will end. */
  readonly lost_cause: string | null;
}

/** Loads the states of turns and their deliverables. */
export function loadTurnStates(db: Queryable, turnIds: readonly TurnId[]): Promise<TurnState[]> {
  return run<TurnState>(db, TURN_ENDS, [turnIds]);
}

// The next holder runs `never` calls only of its own epoch. So a call that was not begun gets the epoch at which the turn continues. Turns
// are locked by id, then their calls by the UPDATE. A turn that was taken over or ended in the meantime has another holder or status and is
// left out.
const releaseText = (which: string, locking: string): string => `
  with /* turns.release */
  lk as (
    select t.id, t.epoch, t.pending_calls
    from boxcar.turns t
    ${which}
    order by t.id
    for update of t ${locking}
  ),
  unbegun as (
    update boxcar.tool_calls k
    set epoch = lk.epoch + 1
    from lk
    where $5::uuid[] is not null
      and lk.pending_calls > 0
      and k.turn_id = lk.id
      and k.status = 'pending'
      and k.epoch = lk.epoch
      and k.retry = 'never'
      and k.route = 'function'
      and not k.id = any ($5)
  )
  update boxcar.turns t
  set status = 'dispatched',
    epoch = t.epoch + 1,
    holder_id = null,
    dispatched_at = now(),
    losses = t.losses + $3,
    format = greatest(t.format, $4)
  from lk
  where t.id = lk.id
  returning t.id as turn_id, t.epoch, t.worker_target`;
const releases = (locking: string) => ({
  some: statement(
    releaseText(
      `
        join unnest($2::uuid[], $6::int[]) as w(id, epoch) on w.id = t.id and w.epoch = t.epoch
        where t.holder_id = $1 and t.id = any ($2::uuid[]) and ${hasStatus('running')}`,
      locking,
    ),
  ),
  all: statement(
    releaseText("where t.holder_id = $1 and t.status = 'running' and $2::uuid[] is null", locking),
  ),
});
const RELEASE = releases('');
const RELEASE_FREE = releases('skip locked');

/** A turn as its holder knows it. The same turn at another epoch is another claim. */
export type HeldAt = Pick<Ring, 'turnId' | 'epoch'>;

export interface RingRow extends pg.QueryResultRow {
  turn_id: TurnId;
  epoch: number;
  worker_target: string;
}

export const toRing = (row: RingRow): Ring => ({
  turnId: row.turn_id,
  epoch: row.epoch,
  workerTarget: row.worker_target,
});

/**
 * Hands back a turn that could not be run, and notes the cause. Both are one transaction, so that no worker claims the turn in between.
 *
 * @param options.epoch - The epoch of this worker's claim.
 * @param options.isLoss - The release counts as a lost worker.
 * @param options.begunIds - As in `releaseTurns`.
 * @returns The note; undefined when this worker no longer holds the turn.
 */
export function releaseNoted(
  pool: pg.Pool,
  holderId: WorkerId,
  failure: SweepFailure & { readonly rowId: TurnId },
  options: NoteOptions & {
    readonly epoch: number;
    readonly isLoss: boolean;
    readonly begunIds: readonly ToolCallId[];
  },
): Promise<NotedFailure | undefined> {
  const losses = options.isLoss ? 1 : 0;
  const values = [holderId, [failure.rowId], losses, 0, options.begunIds, [options.epoch]];
  return transaction(pool, async (tx, attempt) => {
    const released = await run<RingRow>(tx, RELEASE.some, values);
    if (released.length > 0) return noteWithin(tx, failure, options);
    return attempt > 1 ? findNoted(tx, { turnId: failure.rowId, epoch: options.epoch + 1 }) : undefined;
  });
}

/**
 * Hands turns back, so that other workers can claim them. A repetition after a lost answer is safe: if this worker has claimed a turn
 * again in between, the turn is at another epoch.
 *
 * @param turns - The turns, each with the epoch of its claim. Null: all turns of a worker that makes no more claims.
 * @param options.isLoss - The release counts as a lost worker.
 * @param options.skipsLocked - The release does not wait for a locked row: such a turn stays with this worker.
 * @param options.format - Only builds that know this migration can read these turns, as this worker has found out.
 * @param options.begunIds - All calls of these turns that were begun and must not be run twice. The next holder runs the other calls.
 *   Absent when this is not known: the next holder then runs none of the calls that must not be run twice.
 */
export async function releaseTurns(
  pool: pg.Pool,
  holderId: WorkerId,
  turns: readonly HeldAt[] | null,
  options: {
    readonly isLoss?: boolean;
    readonly skipsLocked?: boolean;
    readonly format?: number;
    readonly begunIds?: readonly ToolCallId[];
  } = {},
): Promise<readonly Ring[]> {
  const losses = options.isLoss === true ? 1 : 0;
  const of = (ids: readonly TurnId[] | null): unknown[] => [
    holderId,
    ids,
    losses,
    options.format ?? 0,
    options.begunIds ?? null,
  ];
  const release = options.skipsLocked === true ? RELEASE_FREE : RELEASE;
  const released =
    turns === null
      ? runRetrying<RingRow>(pool, release.all, of(null))
      : runRetrying<RingRow>(pool, release.some, [
          ...of(turns.map(({ turnId }) => turnId)),
          turns.map(({ epoch }) => epoch),
        ]);
  return (await released).map(toRing);
}
