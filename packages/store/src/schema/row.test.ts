import type { RunId, TurnId, TurnStatus } from '@boxcar/kernel';
import { type TestDatabase, testDatabase } from '@boxcar/testkit';
import { getTableColumns } from 'drizzle-orm';
import { afterAll, beforeAll, expect, expectTypeOf, it } from 'vitest';
import { createPool, run, statement } from '../db/index.js';
import type { Columns, Outer, Row } from './row.js';
import * as tables from './schema.js';

let database: TestDatabase;

beforeAll(async () => {
  database = await testDatabase();
});

afterAll(() => database.close());

const ID = '01890a5d-ac96-774b-bcce-b302099a8057';

/** For each type of the schema, a value as SQL and the value that is read. */
const VALUES: Readonly<Record<string, readonly [sql: string, read: unknown]>> = {
  uuid: [`'${ID}'::uuid`, ID],
  'uuid[]': [`array['${ID}']::uuid[]`, [ID]],
  text: ["'a'::text", 'a'],
  'text[]': ["array['a']::text[]", ['a']],
  integer: ['1::integer', 1],
  'integer[]': ['array[1]::integer[]', [1]],
  smallint: ['1::smallint', 1],
  bigint: ['9007199254740993::bigint', '9007199254740993'],
  boolean: ['true', true],
  json: [`'"1"'::json`, '1'],
  jsonb: [`'{"a": 1}'::jsonb`, { a: 1 }],
  bytea: ["'\\x01'::bytea", Buffer.from([1])],
  xid8: ["'7'::xid8", '7'],
  'timestamp with time zone': ["'2026-01-01T00:00:00Z'::timestamptz", new Date('2026-01-01T00:00:00Z')],
};

it('the driver reads each type of the schema as the row types declare', async () => {
  const types = Object.values(tables).flatMap((table) =>
    Object.values(getTableColumns(table)).map((column) => column.getSQLType()),
  );
  expect([...new Set(types)].sort()).toEqual(Object.keys(VALUES).sort());
  const pool = createPool({ connectionString: database.url });
  const columns = Object.entries(VALUES).map(([type, [sql]]) => `${sql} as "${type}"`);
  const rows = await run(pool, statement(`select /* row.types */ ${columns.join(', ')}`), []);
  await pool.end();
  expect(rows).toEqual([Object.fromEntries(Object.entries(VALUES).map(([type, [, read]]) => [type, read]))]);
});

it('a row has the columns that it names, under their names in the database', () => {
  type Turn = Row<'turns', 'run_id' | 'status' | 'ended_at', { turn_id: 'id'; worker: 'holder_id' }>;
  expectTypeOf<Turn['turn_id']>().toEqualTypeOf<TurnId>();
  expectTypeOf<Turn['run_id']>().toEqualTypeOf<RunId>();
  expectTypeOf<Turn['status']>().toEqualTypeOf<TurnStatus>();
  expectTypeOf<Turn['ended_at']>().toEqualTypeOf<Date | null>();
  expectTypeOf<keyof Turn>().toEqualTypeOf<'run_id' | 'status' | 'ended_at' | 'turn_id' | 'worker'>();
  expectTypeOf<Outer<Turn>['run_id']>().toEqualTypeOf<RunId | null>();
  // A bigint may be larger than a number.
  expectTypeOf<Columns<'workers'>['lock_key']>().toEqualTypeOf<string>();
  expectTypeOf<Columns<'turns'>['spent_tokens']>().toEqualTypeOf<string | null>();
  expectTypeOf<Columns<'cards'>['content_hash']>().toEqualTypeOf<Buffer>();
});
