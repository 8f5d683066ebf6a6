/** Numbers of a project for its monitoring. */
import type { ProjectId } from '@boxcar/kernel';
import type pg from 'pg';
import { runRetrying, statement } from '../db/index.js';

/** Each number is counted up to this limit. */
const MAX_COUNTED = 10_000;

export interface ProjectNumber extends pg.QueryResultRow {
  readonly name: 'sessions' | 'open_handoffs' | 'turns' | 'workers';
  /** The status or phase that is counted. */
  readonly label: string;
  readonly value: number;
}

const TURN_STATUSES = ['queued', 'dispatched', 'running', 'suspended'] as const;

const openTurns = (status: string): string => `
  (
    select t.status
    from boxcar.turns t
    where t.status = '${status}' and t.project_id = $1
    limit ${MAX_COUNTED}
  )`;

// Open turns are found by the partial indexes of their statuses. Takes no locks: all numbers are of one snapshot.
const NUMBERS = statement(`
  select /* project-numbers.all */ 'sessions' as name, x.status as label, count(*)::int as value
  from (
    select s.status
    from boxcar.handoff_sessions s
    where s.project_id = $1
    order by s.created_at desc, s.id desc
    limit ${MAX_COUNTED}
  ) x
  group by x.status
  union all
  select 'open_handoffs', x.phase, count(*)::int
  from (select h.phase from boxcar.handoffs h where h.project_id = $1 and h.ended_at is null limit ${MAX_COUNTED}) x
  group by x.phase
  union all
  select 'turns', x.status, count(*)::int
  from (${TURN_STATUSES.map(openTurns).join(' union all ')}) x
  group by x.status
  union all
  select 'workers', '', count(*)::int
  from boxcar.workers w
  where w.lease_until > now()`);

/** Sessions by stored status, open handoffs by phase, open turns by status, and live workers. One statement. */
export const readProjectNumbers = (pool: pg.Pool, projectId: ProjectId): Promise<readonly ProjectNumber[]> =>
  runRetrying<ProjectNumber>(pool, NUMBERS, [projectId]);
