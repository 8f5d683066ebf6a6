/** Calls that wait for outside workers. `boxcar doctor` reads them to find queues without a worker. */
import type { ToolCallId } from '@boxcar/kernel';
import type pg from 'pg';
import { type Queryable, run, statement } from '../db/index.js';

const COUNT_LIMIT = 10_000;
const SAMPLE = 20;

export interface LateTarget extends pg.QueryResultRow {
  readonly target: string;
  /** The number of late calls, counted up to 10,000 of all targets. */
  readonly count: number;
  readonly oldest_at: Date;
  /** The oldest late calls. */
  readonly ids: readonly ToolCallId[];
}

const LATE = statement(`
  select /* late-queue-calls.late */
    p.target, count(*)::int as count, min(p.since) as oldest_at,
    (array_agg(p.id order by p.since, p.id))[1:${SAMPLE}] as ids
  from (
    select k.id, k.target, w.since
    from boxcar.tool_calls k
    cross join lateral (
      -- A call that needed an approval waits for its worker only since the decision.
      select greatest(k.created_at, max(a.resolved_at)) as since
      from boxcar.approvals a
      where a.turn_id = k.turn_id and a.tool_call_id = k.id
    ) w
    where k.status = 'pending'
      and k.target is not null
      -- A call that waits for an approval has no job.
      and (k.look_at is not null or k.sent_at is not null)
      and w.since < now() - $1 * interval '1 millisecond'
    limit ${COUNT_LIMIT}
  ) p
  group by p.target
  order by 3
  limit 100`);

/** Queues of tools with calls that have waited longer than `lateMs`. */
export function findLateTargets(db: Queryable, lateMs: number): Promise<LateTarget[]> {
  return run<LateTarget>(db, LATE, [lateMs]);
}
