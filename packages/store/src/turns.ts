/** Where turns stand, and how they are handed back. */
import type {
  AgentId,
  BoxId,
  ErrorBody,
  JsonValue,
  ProjectId,
  Ring,
  RunId,
  TurnId,
  TurnStatus,
  WorkerId,
} from '@boxcar/kernel';
import type pg from 'pg';
import { type Queryable, run, runRetrying, statement } from './db.js';

const TURN_ENDS = statement(`
  select t.id as turn_id, t.status, t.agent_id, t.context_box_id, t.output_box_id, t.error, t.run_id, t.step_count, coalesce(c.content, c.placeholder) as content, t.project_id, p.name as project_name
  from boxcar.turns t join boxcar.projects p on p.id = t.project_id left join boxcar.cards c on c.id = t.deliverable_card_id
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
}

/** Where turns stand, and what they delivered. */
export function loadTurnStates(db: Queryable, turnIds: readonly TurnId[]): Promise<TurnState[]> {
  return run<TurnState>(db, TURN_ENDS, [turnIds]);
}

const RELEASE = statement(`
  with lk as (
    select t.id from boxcar.turns t where t.holder_id = $1 and t.status = 'running' and ($2::uuid[] is null or t.id = any ($2)) order by t.id for update
  )
  update boxcar.turns t set status = 'dispatched', epoch = t.epoch + 1, holder_id = null, dispatched_at = now(), losses = t.losses + $3, format = greatest(t.format, $4)
  from lk where t.id = lk.id
  returning t.id as turn_id, t.epoch, t.worker_target`);

interface RingRow extends pg.QueryResultRow {
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
 * Hands turns back: a worker that shuts down gives them to the others.
 *
 * @param options.isLoss - They are given up because running them failed: that counts like a worker lost.
 * @param options.format - Only builds that know this migration can read them, as it turned out.
 */
export async function releaseTurns(
  pool: pg.Pool,
  holderId: WorkerId,
  turnIds: readonly TurnId[] | null,
  options: { readonly isLoss?: boolean; readonly format?: number } = {},
): Promise<readonly Ring[]> {
  const losses = options.isLoss === true ? 1 : 0;
  const values = [holderId, turnIds, losses, options.format ?? 0];
  return (await runRetrying<RingRow>(pool, RELEASE, values)).map(toRing);
}
