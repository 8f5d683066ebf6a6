import type pg from 'pg';

/**
 * Rows and entries of indexes that `work` reads.
 *
 * @param pool - Has one connection, so that its reads are flushed to the statistics before they are counted.
 */
export async function countReads(pool: pg.Pool, work: () => Promise<unknown>): Promise<number> {
  const count = async (): Promise<number> => {
    await pool.query('select pg_stat_force_next_flush()');
    const { rows } = await pool.query<{ n: number }>(
      `select ((select sum(seq_tup_read) from pg_stat_user_tables where schemaname = 'boxcar')
        + (select sum(idx_tup_read) from pg_stat_user_indexes where schemaname = 'boxcar'))::float8 as n`,
    );
    return rows[0]?.n ?? Number.NaN;
  };
  const before = await count();
  await work();
  return (await count()) - before;
}
