import type pg from 'pg';

/** Tables whose rows outlive the runs that wrote them, with the reason. Every other table is unchanged after a run and its purge. */
export const OUTLIVES_RUNS: Readonly<Record<string, string>> = {
  api_keys: 'people make them; a purge removes those that have ended',
  policies: 'a version of an operator’s file, by which several runs may have been decided',
  profiles: 'turns of later runs are made of them',
  projects: 'they are archived, never deleted',
  providers: 'limits and the breaker of a provider are for all runs',
  schema_version: 'migrations write it',
  sweeper: 'one row, the lease of the sweep',
  toolsets: 'steps of all runs refer to the same sets by their hash',
  workers: 'processes write them, not runs',
};

const COUNTED = `
  select relname as name
  from pg_class
  where relnamespace = 'boxcar'::regnamespace and relkind in ('r', 'p') and not relname = any ($1)
  order by 1`;

/** Row counts by table; tests use these names. */
type RowCounts = Readonly<
  Record<'agents' | 'boxes' | 'cards' | 'grants' | 'operations' | 'tape_entries' | 'turns', number>
> &
  Readonly<Record<string, number>>;

/**
 * Row counts of each table that a primitive can write to. They must be equal before and after an operation that must leave nothing. A new
 * table is counted until it is added to `OUTLIVES_RUNS`.
 */
export async function rowCounts(pool: pg.Pool): Promise<RowCounts> {
  const tables = await pool.query<{ name: string }>(COUNTED, [Object.keys(OUTLIVES_RUNS)]);
  const { rows } = await pool.query<RowCounts>(
    `select ${tables.rows.map(({ name }) => `(select count(*)::int from boxcar.${name}) as ${name}`).join(', ')}`,
  );
  if (rows[0] === undefined) throw new Error('no counts');
  return rows[0];
}
