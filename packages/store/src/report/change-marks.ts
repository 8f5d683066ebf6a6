/**
 * Marks of the rows that people and programs follow. One statement for all marks, independent of the process that changed the rows.
 *
 * A mark is a text that changes after each write. It says nothing about rights: before a change is reported, it must be read with the
 * rights of the reader.
 */
import type { BoxId, ProjectId, RunId } from '@boxcar/kernel';
import type pg from 'pg';
import { type Queryable, run, statement } from '../db/index.js';

/** The followed rows. */
export type Followed =
  /** A session of clients, by its key. */
  | { readonly kind: 'session'; readonly projectId: ProjectId; readonly sessionKey: string }
  /** All sessions of a project: the mark covers writes of the last minute. */
  | { readonly kind: 'sessions'; readonly projectId: ProjectId }
  | { readonly kind: 'tape'; readonly boxId: BoxId }
  /** The newest 1,000 turns of a run. */
  | { readonly kind: 'run'; readonly projectId: ProjectId; readonly runId: RunId };

interface MarkRow extends pg.QueryResultRow {
  readonly at: number;
  readonly mark: string;
}

/** How far back each look searches for writes again: far longer than a transaction takes. */
const SEEN_AGAIN = '1 minute';
const RUN_TURNS = 1_000;

// $1: kind; $2: project; $3: id; $4: key, one of each per followed item. Takes no locks. A write that is committed after this look changes
// the next mark. Times are set before the commit, so the look at all sessions of a project goes back far enough to see late commits.
const MARKS = statement(`
  with /* change-marks.look */
  followed as (
    select f.*
    from unnest($1::text[], $2::uuid[], $3::uuid[], $4::text[]) with ordinality as f(kind, project_id, id, key, at)
  )
  select f.at::int, concat_ws(' ', s.id, s.last_write_at, s.status, s.agent_to, s.frozen_head) as mark
  from followed f
  join boxcar.handoff_sessions s on s.project_id = f.project_id and s.session_key = f.key
  where f.kind = 'session'
  union all
  select f.at::int, concat_ws(' ', w.n, w.last) as mark
  from followed f
  join (
    select s.project_id, count(*) as n, max(s.last_write_at) as last
    from boxcar.handoff_sessions s
    where s.last_write_at > now() - interval '${SEEN_AGAIN}'
    group by s.project_id
  ) w on w.project_id = f.project_id
  where f.kind = 'sessions' and exists (select from followed x where x.kind = 'sessions')
  union all
  select f.at::int, concat_ws(' ', b.id, b.incarnation, b.head_position, b.archived_at) as mark
  from followed f
  join boxcar.boxes b on b.id = f.id
  where f.kind = 'tape'
  union all
  select f.at::int, concat_ws(' ', r.turn_count, r.canceled_at, t.said) as mark
  from followed f
  join boxcar.runs r on r.id = f.id and r.project_id = f.project_id
  cross join lateral (
    select md5(string_agg(concat_ws(' ', x.id, x.status, x.step_count), ',' order by x.id)) as said
    from (
      select o.id, o.status, o.step_count
      from boxcar.turns o
      where o.run_id = r.id
      order by o.id desc
      limit ${RUN_TURNS}
    ) x
  ) t
  where f.kind = 'run'`);

/** The mark of each followed item, in the given order; empty when the item does not exist. One statement. */
export async function readMarks(db: Queryable, followed: readonly Followed[]): Promise<readonly string[]> {
  const rows = await run<MarkRow>(db, MARKS, [
    followed.map(({ kind }) => kind),
    followed.map((one) => ('projectId' in one ? one.projectId : null)),
    followed.map((one) => (one.kind === 'tape' ? one.boxId : one.kind === 'run' ? one.runId : null)),
    followed.map((one) => (one.kind === 'session' ? one.sessionKey : null)),
  ]);
  const marks = new Map(rows.map(({ at, mark }) => [at, mark]));
  return followed.map((_one, index) => marks.get(index + 1) ?? '');
}
