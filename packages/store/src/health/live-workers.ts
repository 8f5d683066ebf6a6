import type { WorkerId } from '@boxcar/kernel/base';
import type pg from 'pg';
import { type Queryable, run, statement } from '../db/statement.js';

export interface LiveWorker {
  readonly worker_id: WorkerId;
  readonly hostname: string | null;
  readonly pid: number | null;
  readonly targets: readonly string[];
  readonly concurrency: number;
  readonly lease_until: Date;
}

const LIVE = statement(`
  select /* live-workers.live */ id as worker_id, info ->> 'hostname' as hostname, (info ->> 'pid')::int as pid,
    targets, concurrency, lease_until
  from boxcar.workers
  where lease_until > now()
    and ($1::text is null or info ->> 'hostname' = $1)
    and ($2::int is null or (info ->> 'pid')::int = $2)
    and ($3::text is null or targets @> array[$3])
  order by id`);

/** The workers with a valid lease, filtered by host, process, or a target that they serve. */
export const findLiveWorkers = (
  db: Queryable,
  {
    hostname,
    pid,
    target,
  }: { readonly hostname?: string; readonly pid?: number | undefined; readonly target?: string } = {},
): Promise<readonly LiveWorker[]> =>
  run<LiveWorker & pg.QueryResultRow>(db, LIVE, [hostname ?? null, pid ?? null, target ?? null]);
