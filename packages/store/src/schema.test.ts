import { type TestDatabase, testDatabase } from '@boxcar/testkit';
import { getTableConfig, integer, type PgTable, pgSchema, text } from 'drizzle-orm/pg-core';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { tables } from './schema.js';

let database: TestDatabase;

beforeAll(async () => {
  database = await testDatabase();
});

afterAll(() => database.close());

const NOT_NULL = ' not null';
const DEFAULT = ' default';

/** One line per table, column and key, as drizzle declares them. */
function declared(all: readonly PgTable[]): string[] {
  return all.flatMap((table) => {
    const { name, schema, columns, primaryKeys, uniqueConstraints } = getTableConfig(table);
    const keys = [
      ...columns.filter((column) => column.primary).map((column) => ['primary key', [column.name]] as const),
      ...columns.filter((column) => column.isUnique).map((column) => ['unique', [column.name]] as const),
      ...primaryKeys.map((key) => ['primary key', key.columns.map((column) => column.name)] as const),
      ...uniqueConstraints.map((key) => ['unique', key.columns.map((column) => column.name)] as const),
    ];
    return [
      `${schema}.${name}`,
      ...columns.map(
        (column) =>
          `${name}.${column.name} ${column.getSQLType()}${column.notNull ? NOT_NULL : ''}${column.hasDefault ? DEFAULT : ''}`,
      ),
      ...keys.map(([kind, names]) => `${name} ${kind} (${names.join(', ')})`),
    ];
  });
}

/** The same lines from the catalogue of a migrated database. */
async function existing(): Promise<string[]> {
  const { rows } = await database.pool.query<{ line: string }>(`
    with t as (
      select c.oid, c.relname from pg_class c
      where c.relnamespace = 'boxcar'::regnamespace and c.relkind in ('r', 'p', 'v', 'm')
    )
    select 'boxcar.' || relname as line from t
    union all
    select format('%s.%s %s%s%s', t.relname, a.attname, format_type(a.atttypid, a.atttypmod),
      case when a.attnotnull then '${NOT_NULL}' else '' end, case when a.atthasdef then '${DEFAULT}' else '' end)
    from t join pg_attribute a on a.attrelid = t.oid and a.attnum > 0 and not a.attisdropped
    union all
    select format('%s %s (%s)', t.relname, case k.contype when 'p' then 'primary key' else 'unique' end,
      (select string_agg(a.attname, ', ' order by u.n)
       from unnest(k.conkey) with ordinality as u(attnum, n) join pg_attribute a on a.attrelid = t.oid and a.attnum = u.attnum))
    from t join pg_constraint k on k.conrelid = t.oid and k.contype in ('p', 'u')`);
  return rows.map((row) => row.line);
}

it('declares exactly the tables, columns, types, nullability, defaults and keys that the migrations make', async () => {
  expect(declared(Object.values(tables)).sort()).toEqual((await existing()).sort());
});

it('the comparison sees a drift on either side', async () => {
  const boxcar = pgSchema('boxcar');
  const lines = new Set(await existing());
  const drifted = boxcar.table('projects', { id: text('id').primaryKey(), extra: integer('extra') });
  expect(declared([drifted]).filter((line) => !lines.has(line))).toEqual([
    'projects.id text not null',
    'projects.extra integer',
  ]);
  const ours = new Set(declared(Object.values(tables).filter((table) => table !== tables.runs)));
  expect([...lines].filter((line) => !ours.has(line))).toContain('runs.root_turn_id uuid not null');
});
