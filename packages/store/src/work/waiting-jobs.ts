import type { BatchId, ProjectId, TurnId } from '@boxcar/kernel';
import type pg from 'pg';
import { type Queryable, run, runRetrying, type Statement, statement } from '../db/index.js';
import type { SweepClock } from '../turn/index.js';
import { FIRST_ID, NOW } from './sweep.js';

export interface WaitingJob extends pg.QueryResultRow {
  readonly project_id: ProjectId;
  /** The turn or batch whose end the job waits for. */
  readonly awaited_id: TurnId | BatchId;
  readonly job_id: string;
}

const WAITING_JOB =
  'o.project_id, coalesce(o.awaited_turn_id, o.awaited_batch_id) as awaited_id, o.door_job_id as job_id';

const JOBS_OF = statement(`
  select /* waiting-jobs.of */ ${WAITING_JOB}
  from boxcar.operations o
  where o.awaited_turn_id = any ($1::uuid[]) and o.door_job_id is not null
  union all
  select ${WAITING_JOB}
  from boxcar.operations o
  where o.awaited_batch_id = any ($1::uuid[]) and o.door_job_id is not null`);

/** Jobs at the queue door that wait for the end of these turns and batches. */
export function findJobsWaitingFor(db: Queryable, ids: readonly (TurnId | BatchId)[]): Promise<WaitingJob[]> {
  return run<WaitingJob>(db, JOBS_OF, [ids]);
}

// There may be as many waiting jobs as queued turns, and nearly all of their turns have not ended. So a pass looks at a part of them.
const answerableOf = (column: string, table: string): Statement =>
  statement(`
    with /* waiting-jobs.answerable */
    looked as materialized (
      select o.project_id, o.awaited_id, o.job_id, e.ended_at
      from (
        select d.project_id, d.${column} as awaited_id, d.door_job_id as job_id
        from boxcar.operations d
        where d.door_job_id is not null and d.${column} > $2
        order by d.${column} fetch first ($3) rows with ties
      ) o
      cross join lateral (select t.ended_at from boxcar.${table} t where t.id = o.awaited_id offset 0) e
    )
    select
      (
        select coalesce(json_agg(json_build_object(
          'project_id', l.project_id, 'awaited_id', l.awaited_id, 'job_id', l.job_id
        )), '[]')
        from looked l
        where l.ended_at < ${NOW} - interval '2 seconds'
      ) as jobs,
      (select case when count(*) >= $3 then max(l.awaited_id::text) end from looked l) as next`);

const ANSWERABLE = {
  turns: answerableOf('awaited_turn_id', 'turns'),
  batches: answerableOf('awaited_batch_id', 'batches'),
} as const;

/**
 * Unanswered jobs at the queue door whose turn or batch ended a while ago, among the next `limit` jobs after a given place.
 *
 * @returns `next`: the start of the next look; undefined when this look has seen the last job.
 */
export async function findAnswerableJobs(
  pool: pg.Pool,
  options: SweepClock & { of: 'turns' | 'batches'; after?: string | undefined; limit: number },
): Promise<{ readonly jobs: readonly WaitingJob[]; readonly next: string | undefined }> {
  const [row] = await runRetrying<{ jobs: WaitingJob[]; next: string | null }>(pool, ANSWERABLE[options.of], [
    options.now ?? null,
    options.after ?? FIRST_ID,
    options.limit,
  ]);
  return { jobs: row?.jobs ?? [], next: row?.next ?? undefined };
}

const RECORD = statement(`
  insert /* waiting-jobs.record */ into boxcar.operations (
    project_id, idempotency_key, primitive, request_hash, response, awaited_turn_id, awaited_batch_id, door_job_id,
    created_at, made
  )
  select o.project_id, $3, o.primitive, o.request_hash, o.response, o.awaited_turn_id, o.awaited_batch_id, $4,
    o.created_at, o.made
  from boxcar.operations o
  where o.project_id = $1 and o.idempotency_key = $2 and o.door_job_id is distinct from $4
  on conflict (project_id, idempotency_key) do update set door_job_id = excluded.door_job_id`);

/**
 * Records another job that waits for the turn or batch of an operation, under its own key `own_key`. Recording the same job again
 * changes nothing.
 */
export async function recordWaitingJob(
  db: Queryable,
  job: { project_id: ProjectId; idempotency_key: string; own_key: string; job_id: string },
): Promise<void> {
  await run(db, RECORD, [job.project_id, job.idempotency_key, job.own_key, job.job_id]);
}

const REMOVE = statement(`
  update /* waiting-jobs.remove */ boxcar.operations
  set door_job_id = null
  where project_id = $1 and (awaited_turn_id = $2 or awaited_batch_id = $2) and door_job_id = $3`);

// Each row is found by its key and then locked. A locked row is skipped, because another process is just recording or answering its job: a
// later look finds the row again. Updates of several processes never wait for each other here.
const REMOVE_MANY = statement(`
  with /* waiting-jobs.remove_many */
  found as (
    select o.project_id, o.idempotency_key
    from json_to_recordset($1) as d(awaited_id uuid, job_id text)
    cross join lateral (
      select x.project_id, x.idempotency_key
      from boxcar.operations x
      where x.awaited_turn_id = d.awaited_id and x.door_job_id = d.job_id
      union all
      select x.project_id, x.idempotency_key
      from boxcar.operations x
      where x.awaited_batch_id = d.awaited_id and x.door_job_id = d.job_id
      offset 0
    ) o
  ),
  lk as (
    select o.project_id, o.idempotency_key
    from found
    cross join lateral (
      select x.project_id, x.idempotency_key, x.door_job_id
      from boxcar.operations x
      where x.project_id = found.project_id
        and x.idempotency_key = found.idempotency_key
        and x.door_job_id is not null
      for update of x skip locked
    ) o
  )
  update boxcar.operations o
  set door_job_id = null
  from lk
  where o.project_id = lk.project_id and o.idempotency_key = lk.idempotency_key`);

/** The same for many jobs. Jobs that are locked at this moment stay. */
export async function removeWaitingJobs(pool: pg.Pool, jobs: readonly WaitingJob[]): Promise<void> {
  const records = jobs.map(({ awaited_id, job_id }) => ({ awaited_id, job_id }));
  await runRetrying(pool, REMOVE_MANY, [JSON.stringify(records)]);
}

/** Removes a job that has its answer or no longer exists. */
export async function removeWaitingJob(db: Queryable, job: WaitingJob): Promise<void> {
  await run(db, REMOVE, [job.project_id, job.awaited_id, job.job_id]);
}
