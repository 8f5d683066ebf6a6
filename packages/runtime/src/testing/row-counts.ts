import type pg from 'pg';

const TABLES = [
  'cards',
  'boxes',
  'tape_entries',
  'tape_words',
  'agents',
  'grants',
  'runs',
  'turns',
  'steps',
  'tool_calls',
  'operations',
  'batches',
  'budgets',
  'waits',
  'forks',
  'sessions',
] as const;

/** Rows of each table a primitive can write to: equal before and after what must leave nothing behind. */
export async function rowCounts(pool: pg.Pool): Promise<Record<(typeof TABLES)[number], number>> {
  const { rows } = await pool.query<Record<(typeof TABLES)[number], number>>(
    `select ${TABLES.map((table) => `(select count(*)::int from boxcar.${table}) as ${table}`).join(', ')}`,
  );
  if (rows[0] === undefined) throw new Error('no counts');
  return rows[0];
}
