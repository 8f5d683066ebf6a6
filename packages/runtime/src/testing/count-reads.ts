import type pg from 'pg';

type Connection = Pick<pg.Pool | pg.Client, 'query'>;

const processId = async (connection: Connection): Promise<number> =>
  (await connection.query<{ pid: number }>('select pg_stat_force_next_flush(), pg_backend_pid() as pid'))
    .rows[0]?.pid ?? 0;

/**
 * Rows and index entries that `work` reads, by table. The server counts the reads of a connection only seconds later, or when the
 * connection ends. So all other connections end first, and the count before `work` includes their reads.
 *
 * @param pool - A pool with one connection, which `work` uses.
 * @param spared - Connections that stay open; they must not read anything in the meantime.
 */
export async function readsOf(
  pool: pg.Pool,
  work: () => Promise<unknown>,
  spared: readonly Connection[] = [],
): Promise<ReadonlyMap<string, number>> {
  const stay = await Promise.all([pool, ...spared].map(processId));
  await pool.query(
    `
      select pg_terminate_backend(pid, 60000)
      from pg_stat_activity
      where datname = current_database() and backend_type = 'client backend' and pid <> all ($1::int[])`,
    [stay],
  );
  const count = async (): Promise<ReadonlyMap<string, number>> => {
    await pool.query('select pg_stat_force_next_flush()');
    const { rows } = await pool.query<{ name: string; n: number }>(`
      select
        t.relname as name,
        (
          t.seq_tup_read
            + coalesce((select sum(i.idx_tup_read) from pg_stat_user_indexes i where i.relid = t.relid), 0)
        )::float8 as n
      from pg_stat_user_tables t
      where t.schemaname = 'boxcar'`);
    return new Map(rows.map(({ name, n }) => [name, n]));
  };
  const before = await count();
  await work();
  return new Map([...(await count())].map(([name, n]) => [name, n - (before.get(name) ?? 0)]));
}
