/** The database queries of `boxcar doctor`: each is one statement of bounded cost. */
import { randomInt } from 'node:crypto';
import { checkDuration, type Ring, type TurnId } from '@boxcar/kernel';
import pg from 'pg';
import {
  endClient,
  run,
  statement,
  statementTimeoutOf,
  toDatabaseError,
  transaction,
  unlimited,
} from '../db/index.js';
import { readMissingRights } from '../rows/index.js';
import { toRing } from '../turn/index.js';
import { isWorker } from '../work/index.js';

export interface ServerFacts {
  /** 180004 for 18.4. */
  readonly versionNumber: number;
  readonly version: string;
  readonly role: string;
  readonly isReadOnly: boolean;
  readonly connections: number;
  readonly maxConnections: number;
  /** Rights that working processes need and that the role does not have: `update on boxcar.turns`. */
  readonly missingRights: readonly string[];
  /** How far the clock of this machine is ahead of the server's clock, after half of the round trip is subtracted. */
  readonly clockSkewMs: number;
}

const FACTS = statement(`
  select /* doctor.facts */
    current_setting('server_version_num')::int as version_number,
    current_setting('server_version') as version, current_user::text as role,
    pg_is_in_recovery() or current_setting('default_transaction_read_only') = 'on' as is_read_only,
    (select count(*)::int from pg_stat_activity where datid is not null and usesysid is not null) as connections,
    current_setting('max_connections')::int as max_connections,
    extract(epoch from clock_timestamp()) * 1000 as clock`);

/** @param options.hasQueues - Whether the queues are also in this database. */
export async function readServerFacts(
  pool: pg.Pool,
  options: { readonly hasQueues: boolean },
): Promise<ServerFacts> {
  await run(pool, statement('select /* doctor.reach */ 1'), []);
  const askedAt = Date.now();
  const [row] = await run<{
    version_number: number;
    version: string;
    role: string;
    is_read_only: boolean;
    connections: number;
    max_connections: number;
    clock: string;
  }>(pool, FACTS, []);
  const answeredAt = Date.now();
  if (row === undefined) throw new Error('the server gave no answer');
  return {
    versionNumber: row.version_number,
    version: row.version,
    role: row.role,
    isReadOnly: row.is_read_only,
    connections: row.connections,
    maxConnections: row.max_connections,
    missingRights: await readMissingRights(pool, options),
    clockSkewMs: Math.round((askedAt + answeredAt) / 2 - Number(row.clock)),
  };
}

/** Rows of one kind, counted up to a limit. */
export interface Counted {
  readonly count: number;
  /** True when more rows exist than were counted. */
  readonly hasMore: boolean;
  readonly ids: readonly string[];
}

export interface TargetFacts {
  readonly target: string;
  readonly liveWorkers: number;
  readonly concurrency: number;
  readonly hasQueued: boolean;
  readonly dispatched: number;
}

export interface WorkFacts {
  readonly targets: readonly TargetFacts[];
  readonly overdueTurns: Counted;
  readonly overdueCalls: Counted;
  /** Running turns whose worker has an expired lease. */
  readonly deadLeases: Counted;
  /** Rows of workers with an expired lease. */
  readonly deadWorkers: Counted;
  /** Live workers, grouped by the newest migration that their build knows. */
  readonly builds: readonly { readonly schemaVersion: number; readonly workers: number }[];
  /** Live workers whose build a migration has excluded. */
  readonly outdatedWorkers: Counted;
  /** Turns that wait although the builds of all live workers are too old to read them. */
  readonly unreadable: Counted;
  /** Forks that have been open for an hour and that no turn will end. */
  readonly openForks: Counted;
  /** Rings that were dispatched a while ago and not claimed. */
  readonly waitingRings: readonly Ring[];
}

const COUNT_LIMIT = 1_000;
const counted = (select: string): string => `
  (
    select json_build_object(
      'count', least(count(*), ${COUNT_LIMIT}), 'hasMore', count(*) > ${COUNT_LIMIT},
      'ids', coalesce(json_agg(x.id), '[]')
    )
    from (${select} limit ${COUNT_LIMIT + 1}) x
  )`;

// $1: how long an item must have been due before it counts, in milliseconds.
const LATE = "now() - $1 * interval '1 millisecond'";
// Takes no locks, and its transaction is read-only. All numbers are of one snapshot; each count ends at its limit, so a damaged database is
// not read whole.
const WORK = `
  with recursive busy as (
    (select t.worker_target from boxcar.turns t where t.status = 'queued' order by 1 limit 1)
    union all
    select (
      select t.worker_target
      from boxcar.turns t
      where t.status = 'queued' and t.worker_target > b.worker_target
      order by 1
      limit 1
    )
    from busy b
    where b.worker_target is not null
  ),
  rung as (
    (select t.worker_target from boxcar.turns t where t.status = 'dispatched' order by 1 limit 1)
    union all
    select (
      select t.worker_target
      from boxcar.turns t
      where t.status = 'dispatched' and t.worker_target > b.worker_target
      order by 1
      limit 1
    )
    from rung b
    where b.worker_target is not null
  ),
  target as (
    select worker_target
    from busy
    where worker_target is not null
    union
    select worker_target
    from rung
    where worker_target is not null
    union
    select unnest(w.targets)
    from boxcar.workers w
    where w.lease_until > now()
  )
  select
    (
      select coalesce(json_agg(json_build_object(
        'target', g.worker_target,
        'liveWorkers', (
          select count(*)
          from boxcar.workers w
          where w.lease_until > now() and w.targets @> array[g.worker_target]
        ),
        'concurrency', (
          select coalesce(sum(w.concurrency), 0)
          from boxcar.workers w
          where w.lease_until > now() and w.targets @> array[g.worker_target]
        ),
        'hasQueued', exists (
          select from boxcar.turns t
          where t.status = 'queued' and t.worker_target = g.worker_target
        ),
        'dispatched', (
          select count(*)
          from (
            select from boxcar.turns t
            where t.status = 'dispatched' and t.worker_target = g.worker_target
            limit 100000
          ) d
        )
      ) order by g.worker_target), '[]')
      from (select * from target limit 200) g
    ) as targets,
    ${counted(`
      select t.id
      from boxcar.turns t
      where t.deadline_at < ${LATE} and t.deadline_at is not null and t.ended_at is null
      order by t.deadline_at`)} as overdue_turns,
    ${counted(`
      select k.id
      from boxcar.tool_calls k
      where k.deadline_at < ${LATE} and k.status = 'pending'
      order by k.deadline_at`)} as overdue_calls,
    ${counted(`
      select t.id
      from boxcar.turns t
      where t.status = 'running'
        and not exists (select from boxcar.workers w where w.id = t.holder_id and w.lease_until > ${LATE})`)}
    as dead_leases,
    ${counted(`select w.id from boxcar.workers w where w.lease_until < now() and ${isWorker('w')}`)} as dead_workers,
    (
      select coalesce(json_agg(json_build_object(
        'schemaVersion', b.schema_version, 'workers', b.n
      ) order by b.schema_version), '[]')
      from (
        select w.schema_version, count(*) as n
        from boxcar.workers w
        where w.lease_until > now()
        group by w.schema_version
      ) b
    ) as builds,
    ${counted(`
      select w.id
      from boxcar.workers w
      where w.lease_until > now()
        and w.schema_version < (select max(v.min_compatible) from boxcar.schema_version v)`)} as outdated_workers,
    ${counted(`
      select t.id
      from boxcar.turns t
      where t.status in ('queued', 'dispatched')
        and t.format > (select min(w.schema_version) from boxcar.workers w where w.lease_until > now())
        and t.format > (
          select max(w.schema_version)
          from boxcar.workers w
          where w.lease_until > now() and w.targets @> array[t.worker_target]
        )`)} as unreadable,
    ${counted(`
      select k.id
      from boxcar.forks k
      where k.status = 'open' and k.turn_id is null and k.created_at < now() - interval '1 hour'`)} as open_forks,
    (
      select coalesce(json_agg(r), '[]')
      from (
        select t.id as turn_id, t.epoch, t.worker_target
        from boxcar.turns t
        where t.status = 'dispatched'
          and t.dispatched_at < ${LATE}
          and (t.format > (
            select min(w.schema_version)
            from boxcar.workers w
            where w.lease_until > now() and w.targets @> array[t.worker_target]
          )) is not true
        order by t.dispatched_at
        limit 500
      ) r
    ) as waiting_rings`;

/**
 * Work in progress and late work.
 *
 * @param options.lateMs - How long an item must have been due before it counts.
 * @param options.timeoutMs - How long the statement may take.
 */
export async function readWorkFacts(
  pool: pg.Pool,
  options: { readonly lateMs: number; readonly timeoutMs: number },
): Promise<WorkFacts> {
  const timeoutMs = checkDuration(options.timeoutMs, 'timeoutMs');
  return transaction(
    pool,
    async (tx) => {
      await tx.query({
        text: `set transaction read only; set local statement_timeout = ${statementTimeoutOf(timeoutMs)}`,
      });
      const { rows } = await tx.query<{
        targets: TargetFacts[];
        overdue_turns: Counted;
        overdue_calls: Counted;
        dead_leases: Counted;
        dead_workers: Counted;
        builds: WorkFacts['builds'];
        outdated_workers: Counted;
        unreadable: Counted;
        open_forks: Counted;
        waiting_rings: { turn_id: TurnId; epoch: number; worker_target: string }[];
      }>(unlimited({ text: WORK, values: [options.lateMs] }));
      const [row] = rows;
      if (row === undefined) throw new Error('the server gave no answer');
      const some = (found: Counted): Counted => ({ ...found, ids: found.ids.slice(0, 5) });
      return {
        targets: row.targets,
        overdueTurns: some(row.overdue_turns),
        overdueCalls: some(row.overdue_calls),
        deadLeases: some(row.dead_leases),
        deadWorkers: some(row.dead_workers),
        builds: row.builds,
        outdatedWorkers: some(row.outdated_workers),
        unreadable: some(row.unreadable),
        openForks: some(row.open_forks),
        waitingRings: row.waiting_rings.map(toRing),
      };
    },
    { ownLimit: '57014' },
  );
}

/** The results of the tests of a direct connection. */
export interface DirectFacts {
  /** Two statements of one connection ran in one session while another connection had an open transaction. */
  readonly isOneSession: boolean;
  /** A session lock of one connection kept the other out. */
  readonly locksHold: boolean;
  readonly isNotified: boolean;
}

const NOTICE_MS = 2_000;

/**
 * Tests the properties that a direct connection must have. Through a pooler that reassigns sessions between transactions, none of them
 * holds.
 *
 * @throws KernelError `database_unavailable`, `database_auth_failed`.
 */
export async function probeDirectConnection(directUrl: string): Promise<DirectFacts> {
  const clients = [1, 2].map(
    () =>
      new pg.Client({
        connectionString: directUrl,
        application_name: 'boxcar-doctor',
        connectionTimeoutMillis: 5_000,
        query_timeout: 5_000,
      }),
  );
  const [first, second] = clients as [pg.Client, pg.Client];
  const key = randomInt(2 ** 47).toString();
  const channel = `boxcar_doctor_${key}`;
  let timer: NodeJS.Timeout | undefined;
  try {
    for (const client of clients) {
      client.on('error', () => undefined);
      await client.connect();
    }
    const pidOf = async (): Promise<number | undefined> =>
      (await first.query<{ pid: number }>('select pg_backend_pid() as pid')).rows[0]?.pid;
    await first.query('select pg_advisory_lock($1)', [key]);
    const before = await pidOf();
    // The second connection takes the session that a pooler has got back a moment ago.
    await second.query('begin');
    const { rows } = await second.query<{ is_taken: boolean }>(
      'select pg_try_advisory_xact_lock($1) as is_taken',
      [key],
    );
    const after = await pidOf();
    await second.query('commit');
    await first.query(`listen ${channel}`);
    const heard = new Promise<boolean>((settle) => {
      first.on('notification', (notice) => notice.channel === channel && settle(true));
      timer = setTimeout(() => settle(false), NOTICE_MS);
    });
    await second.query(`notify ${channel}`);
    return {
      isOneSession: before === after,
      locksHold: rows[0]?.is_taken === false,
      isNotified: await heard,
    };
  } catch (error) {
    throw toDatabaseError(error);
  } finally {
    clearTimeout(timer);
    await Promise.all(clients.map(endClient));
  }
}
