import type pg from 'pg';

/** Sessions of this database that wait, block others or have an open transaction, with what they wait for. */
const SESSIONS = `
  with here as (
    select a.*, pg_blocking_pids(a.pid) as blockers
    from pg_stat_activity a
    where a.datname = current_database() and a.pid <> pg_backend_pid()
  )
  select
    h.pid, h.client_port, h.application_name as name, h.state,
    coalesce(h.wait_event_type || '/' || h.wait_event, 'nothing') as waits_for,
    h.blockers,
    round(extract(epoch from now() - h.xact_start) * 1000)::int as open_ms,
    left(regexp_replace(h.query, '\\s+', ' ', 'g'), 160) as query,
    (
      select string_agg(
        l.locktype
          || ' ' || coalesce(l.relation::regclass::text, l.transactionid::text, l.classid || ':' || l.objid, '')
          || ' ' || l.mode,
        ', '
      )
      from pg_locks l
      where l.pid = h.pid
        and (not l.granted or l.locktype in ('advisory', 'tuple'))
        and (l.database is null or l.database = (select oid from pg_database where datname = current_database()))
    ) as locks
  from here h
  where cardinality(h.blockers) > 0
    or h.xact_start is not null
    or exists (select from here o where h.pid = any (o.blockers))
  order by h.xact_start nulls last`;

const TURNS = `
  select 'turn ' || t.id || ' of ' || p.name || ' is ' || t.status || ' at epoch ' || t.epoch
    || ', step ' || t.step_count || ', attempt ' || t.attempt
    || case
      when t.holder_id is null then ', held by no worker'
      when w.id is null then ', held by a worker that is gone'
      else ', held by a worker whose lease ' || case when w.lease_until > now() then 'lives' else 'has lapsed' end
    end
    || coalesce(
      ', waits for ' || (
          select string_agg(k.name || ' (' || k.status || ')', ', ')
          from boxcar.tool_calls k
          where k.turn_id = t.id and k.status = 'pending'
        ),
      ''
    )
    || coalesce(
      ', failed before: ' || (
          select string_agg(
            f.kind || ' ' || f.attempts || ' times, next at ' || f.next_try_at || ': ' || left(f.last_error, 200),
            '; '
          )
          from boxcar.sweep_failures f
          where f.row_id = t.id
        ),
      ''
    ) as what
  from boxcar.turns t
  join boxcar.profiles p on p.id = t.profile_id
  left join boxcar.workers w on w.id = t.holder_id
  where t.ended_at is null
  order by t.id
  limit 20`;

interface Session {
  readonly pid: number;
  readonly client_port: number | null;
  readonly name: string;
  readonly state: string | null;
  readonly waits_for: string;
  readonly blockers: readonly number[];
  readonly open_ms: number | null;
  readonly query: string;
  readonly locks: string | null;
}

/**
 * Describes which session of this database waits for which, and the state of the turns that have not ended.
 *
 * @param victimPorts - The client ports of the stopped process, as the server sees them.
 */
export async function describeBlockers(pool: pg.Pool, victimPorts: readonly number[]): Promise<string> {
  const { rows: sessions } = await pool.query<Session>(SESSIONS);
  const { rows: turns } = await pool.query<{ what: string }>(TURNS);
  const victim = new Set(victimPorts);
  const nameOf = ({ pid, client_port, name }: Session): string =>
    `${pid} (${client_port !== null && victim.has(client_port) ? 'the stopped process' : 'another process'}, ${name})`;
  const lines = sessions.map((session) => {
    const { state, blockers, waits_for, open_ms, query, locks } = session;
    const by = blockers.map((pid) => {
      const blocker = sessions.find((other) => other.pid === pid);
      return blocker === undefined ? String(pid) : nameOf(blocker);
    });
    return [
      `session ${nameOf(session)} is ${state ?? 'unknown'} for ${open_ms ?? 0} ms and waits for ${waits_for}`,
      ...(by.length === 0 ? [] : [`  it waits for session ${by.join(', ')}`]),
      `  statement: ${query}`,
      ...(locks === null ? [] : [`  locks: ${locks}`]),
    ].join('\n');
  });
  return [...lines, ...turns.map(({ what }) => what)].join('\n');
}
