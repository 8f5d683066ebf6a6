import type pg from 'pg';

/** A database above this size is dropped: emptying its tables would cost more than a new database, and would leave dead rows to read. */
const MAX_BYTES = 4 * 1024 * 1024;

// The parts of the schema that a test may change; statistics, relfilenodes and the like are left out.
const SHAPE = `
  select md5(string_agg(x, ';' order by x)) as shape
  from (
    select 'class ' || c.oid || c.relname || c.relkind::text || coalesce(c.reloptions::text, '')
    from pg_class c
    where c.relnamespace not in (select oid from pg_namespace where nspname ~ '^(pg_|information_schema)')
    union all
    select 'column ' || a.attrelid || a.attname || a.atttypid || a.attnotnull || a.atthasdef
    from pg_attribute a
    join pg_class c on c.oid = a.attrelid
    where c.relnamespace = 'boxcar'::regnamespace and a.attnum > 0
    union all
    select 'trigger ' || oid || tgname || tgenabled::text
    from pg_trigger
    union all
    select 'constraint ' || oid || conname
    from pg_constraint
    where connamespace not in ('pg_catalog'::regnamespace, 'information_schema'::regnamespace)
    union all
    select 'function ' || oid || proname || md5(prosrc)
    from pg_proc
    where pronamespace not in ('pg_catalog'::regnamespace, 'information_schema'::regnamespace)
    union all
    select 'schema ' || nspname
    from pg_namespace
    where nspname !~ '^pg_(temp|toast_temp)'
    union all
    select 'setting ' || s.setconfig::text
    from pg_db_role_setting s
    join pg_database d on d.oid = s.setdatabase
    where d.datname = current_database()
  ) s(x)`;

const BUSY = `
  select
    (
      select count(*)::int
      from pg_stat_activity
      where datname = current_database() and backend_type = 'client backend'
    ) as connections,
    exists (
      select from pg_locks l
      join pg_database d on d.oid = l.database
      where d.datname = current_database() and l.locktype = 'advisory'
    ) as is_locked,
    (
      select sum(pg_relation_size(c.oid))::float8
      from pg_class c
      where c.relnamespace = 'boxcar'::regnamespace and c.relkind = 'r'
    ) as bytes`;

/** The rows of the template, and a hash of its schema. The same for all databases that are cloned from it. */
export interface CleanState {
  readonly shape: string;
  /** SQL statements that restore the rows. */
  readonly reset: string;
}

async function shapeOf(pool: pg.Pool): Promise<string> {
  return (await pool.query<{ shape: string }>(SHAPE)).rows[0]?.shape ?? '';
}

/** The state of a database that has not been used yet. */
export async function readCleanState(pool: pg.Pool): Promise<CleanState> {
  const { rows: tables } = await pool.query<{ name: string }>(`
    select relname as name
    from pg_class
    where relnamespace = 'boxcar'::regnamespace and relkind = 'r'
    order by 1`);
  const kept = await pool.query<Record<string, string | null>>(
    `select ${tables.map(({ name }) => `(select json_agg(t)::text from boxcar.${name} t) as ${name}`).join(', ')}`,
  );
  const rows = kept.rows[0] ?? {};
  const statements = tables.flatMap(({ name }) => {
    const first = rows[name];
    return [
      `delete from boxcar.${name}`,
      ...(first == null
        ? []
        : [
            `
              insert into boxcar.${name}
              select *
              from json_populate_recordset(null::boxcar.${name}, '${first.replaceAll("'", "''")}')`,
          ]),
    ];
  });
  return {
    shape: await shapeOf(pool),
    // The role `replica` turns off triggers, so that no trigger refuses or counts the restored rows.
    reset: `begin; set local session_replication_role = replica; ${statements.join('; ')}; commit`,
  };
}

/**
 * Restores the rows of the template in a database, and keeps its connections and their plans.
 *
 * @returns False when that is not possible: the schema was changed, the database has grown, or another connection works on it.
 */
export async function resetDatabase(pool: pg.Pool, clean: CleanState): Promise<boolean> {
  if (pool.ended || pool.waitingCount > 0 || pool.idleCount < pool.totalCount) return false;
  const { rows } = await pool.query<{ connections: number; is_locked: boolean; bytes: number }>(BUSY);
  const [found] = rows;
  if (found === undefined || found.is_locked || found.bytes > MAX_BYTES) return false;
  if (found.connections > pool.totalCount || (await shapeOf(pool)) !== clean.shape) return false;
  await pool.query(clean.reset);
  return true;
}
