import type pg from 'pg';

/**
 * The number of rows and index entries that `work` reads. Reads of other connections are counted seconds later, or when those connections
 * end. So they must end first.
 *
 * @param pool - Has one connection, so that its reads are flushed to the statistics before they are counted.
 */
export async function countReads(pool: pg.Pool, work: () => Promise<unknown>): Promise<number> {
  const count = async (): Promise<number> => {
    await pool.query('select pg_stat_force_next_flush()');
    const { rows } = await pool.query<{ n: number }>(`
      select (
        (select sum(seq_tup_read) from pg_stat_user_tables where schemaname = 'boxcar')
          + (select sum(idx_tup_read) from pg_stat_user_indexes where schemaname = 'boxcar')
      )::float8 as n`);
    return rows[0]?.n ?? Number.NaN;
  };
  await pool.query(`
    select pg_terminate_backend(pid, 60000)
    from pg_stat_activity
    where datname = current_database() and backend_type = 'client backend' and pid <> pg_backend_pid()`);
  const before = await count();
  await work();
  return (await count()) - before;
}
