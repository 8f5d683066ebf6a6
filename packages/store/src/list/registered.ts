/** The tools and primitives of live processes, as the processes announced them (`workers.ts`). */
import type pg from 'pg';
import { type Queryable, run, statement } from '../db/index.js';
import { toPattern } from '../rows/index.js';
import { isWorker } from '../work/index.js';

/** A tool or primitive, by name. */
export interface RegisteredName {
  readonly name: string;
  /** Live workers that have it. */
  readonly workers: number;
  /** Processes without a worker that know the primitive and take primitives from the queue `boxcar-primitives`. */
  readonly doors: number;
  /** The worker targets that those workers serve; `''` is the default pool. */
  readonly targets: readonly string[];
  /** The number of versions of its arguments in these processes; more than one during the deployment of a new version. */
  readonly versions: number;
}

export interface RegisteredPage {
  readonly names: readonly RegisteredName[];
  readonly hasMore: boolean;
  readonly liveWorkers: number;
  /** Live workers of older builds, which do not announce their tools and primitives. */
  readonly silentWorkers: number;
}

// Older builds wrote a list of names, or nothing. Takes no locks: the leases are those of this moment.
const REGISTERED = statement(`
  with /* registered.registered */
  live as materialized (
    select w.targets, ${isWorker('w')} as is_worker, w.info->$1 as known
    from boxcar.workers w
    where w.lease_until > now()
  ),
  named as (
    select
      x.key as name,
      count(*) filter (where l.is_worker)::int as workers,
      count(*) filter (where not l.is_worker)::int as doors,
      count(distinct x.value)::int as versions,
      array(
        select distinct t.target
        from live o
        cross join lateral unnest(o.targets) as t(target)
        where o.known ? x.key
        order by t.target
      ) as targets
    from live l
    cross join lateral jsonb_each_text(case when jsonb_typeof(l.known) = 'object' then l.known end) x
    where x.key > $2 and lower(x.key) like lower($3)
    group by x.key
    order by x.key
    limit $4
  )
  select
    (select count(*) from live l where l.is_worker)::int as live_workers,
    (
      select count(*)
      from live l
      where l.is_worker and jsonb_typeof(l.known) is distinct from 'object'
    )::int as silent_workers,
    (select coalesce(json_agg(n order by n.name), '[]') from named n) as names`);

interface RegisteredRow extends pg.QueryResultRow {
  live_workers: number;
  silent_workers: number;
  names: RegisteredName[];
}

/**
 * A page of tools or primitives, by name.
 *
 * @param page.after - The last name of the previous page; '' = from the beginning.
 * @param page.text - A part of the name; '' = all.
 */
export async function listRegistered(
  db: Queryable,
  kind: 'tools' | 'primitives',
  page: { readonly after: string; readonly text: string; readonly limit: number },
): Promise<RegisteredPage> {
  const [row] = await run<RegisteredRow>(db, REGISTERED, [
    kind,
    page.after,
    toPattern(page.text),
    page.limit + 1,
  ]);
  const names = row?.names ?? [];
  return {
    names: names.slice(0, page.limit),
    hasMore: names.length > page.limit,
    liveWorkers: row?.live_workers ?? 0,
    silentWorkers: row?.silent_workers ?? 0,
  };
}
