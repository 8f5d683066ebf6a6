/** Searches for a text in all columns of all tables of a database. */
import type pg from 'pg';

export interface FoundText {
  /** `table.column`. */
  readonly place: string;
  readonly text: string;
}

/**
 * One statement that searches all tables of a schema and reads each table once.
 *
 * @returns A statement whose first parameter is a pattern for `like`.
 */
export async function searchOfTables(pool: pg.Pool, schema: string): Promise<string> {
  const { rows } = await pool.query<{ part: string }>(
    `
      select format(
        'select v.place, v.text from %I.%I t cross join lateral (values %s) as v(place, text) where v.text like $1',
        n.nspname, c.relname,
        string_agg(format(
          case a.atttypid
            when 'bytea'::regtype then '(%L, encode(t.%I, ''escape''))'
            else '(%L, t.%I::text)'
          end,
          c.relname || '.' || a.attname, a.attname
        ), ', ')
      ) as part
      from pg_class c
      join pg_namespace n on n.oid = c.relnamespace
      join pg_attribute a on a.attrelid = c.oid
      where n.nspname = $1
        and c.relkind in ('r', 'm', 'p')
        and a.attnum > 0
        and not a.attisdropped
      group by n.nspname, c.relname
      order by c.relname`,
    [schema],
  );
  return rows.map(({ part }) => part).join(' union all ');
}

export async function findTexts(
  pool: pg.Pool,
  search: string,
  pattern: string,
): Promise<readonly FoundText[]> {
  return (await pool.query<{ place: string; text: string }>(search, [pattern])).rows;
}
