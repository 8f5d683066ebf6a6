import { readdirSync, readFileSync } from 'node:fs';
import { basename, dirname, join } from 'node:path';
import { type TestDatabase, type TestRole, testDatabase, testRole } from '@boxcar/testkit';
import { getTableName } from 'drizzle-orm';
import pg from 'pg';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import * as tables from '../schema/schema.js';
import { NOT_FOR_WORKERS, WORKER_TABLES } from './known-schema.js';
import { grantWorkerRights, readMissingRights } from './worker-rights.js';

let database: TestDatabase;

beforeAll(async () => {
  database = await testDatabase();
});
afterAll(() => database.close());

const missingOf = async (role: TestRole): Promise<readonly string[]> => {
  const client = new pg.Client({ connectionString: role.url });
  await client.connect();
  try {
    return await readMissingRights(client, { hasQueues: false });
  } finally {
    await client.end();
  }
};

test('every table of the schema is in the list, or is an exception with a reason', async () => {
  const { rows } = await database.pool.query<{ name: string }>(
    "select relname as name from pg_class where relnamespace = 'boxcar'::regnamespace and relkind in ('r', 'p', 'v', 'm', 'f') order by 1",
  );
  expect([...Object.keys(WORKER_TABLES), ...Object.keys(NOT_FOR_WORKERS)].sort()).toEqual(
    rows.map(({ name }) => name),
  );
});

test('no table of the schema has a sequence, which would need a right of its own', async () => {
  const { rows } = await database.pool.query(
    "select relname from pg_class where relnamespace = 'boxcar'::regnamespace and relkind = 'S'",
  );
  expect(rows).toEqual([]);
});

/** Files with statements that the role of a worker need not send. */
const NOT_SENT = new Set([
  'erasure.ts',
  'migrate.ts',
  'purge.ts',
  'purge-batch.ts',
  'purge-keys.ts',
  'purge-marks.ts',
  'purge-plan.ts',
]);

/** Table names, by their names in statements of the query builder. */
const tableNames = new Map(Object.entries(tables).map(([name, table]) => [name, getTableName(table)]));

test('the list contains exactly the rights that the statements of the store need', () => {
  const changed = new Set<string>();
  const add = (text: string, right: string, pattern: RegExp): void => {
    for (const [, table] of text.matchAll(pattern)) changed.add(`${right} on ${table}`);
  };
  const sources = dirname(import.meta.dirname);
  for (const name of readdirSync(sources, { recursive: true, encoding: 'utf8' })) {
    if (!/(?<!\.test)\.ts$/.test(name) || name.startsWith('testing/') || NOT_SENT.has(basename(name)))
      continue;
    // A comment that ends in "update" is not a statement.
    const text = readFileSync(join(sources, name), 'utf8')
      .replaceAll(/^\s*(\/\/|\*).*$/gm, '')
      // The label of a statement.
      .replaceAll(/ \/\* \S+ \*\//g, '')
      .replaceAll(/\$\{CARD_TARGET\}/g, 'boxcar.cards (');
    add(text, 'insert', /\binsert into boxcar\.(\w+)/g);
    add(
      text,
      'update',
      /\binsert into boxcar\.(\w+)(?:(?!\binsert into\b|`)[\s\S])*?\bon conflict[^\n]*do update\b/g,
    );
    add(text, 'update', /\bupdate boxcar\.(\w+)/g);
    add(text, 'delete', /\bdelete from boxcar\.(\w+)/g);
    for (const [, right, table = ''] of text.matchAll(/\borm\s*\.(insert|update|delete)\((\w+)\)/g))
      changed.add(`${right} on ${tableNames.get(table)}`);
  }
  const listed = Object.entries(WORKER_TABLES).flatMap(([table, rights]) =>
    rights.filter((right) => right !== 'update (id)').map((right) => `${right} on ${table}`),
  );
  expect(listed.sort()).toEqual([...changed].sort());
});

describe('granting rights to a worker’s role', () => {
  test('names the new rights, changes nothing the second time, and leaves no right missing', async () => {
    await using role = await testRole(database);
    const before = await missingOf(role);
    expect(before).toContain('usage on schema boxcar');
    expect(before).toContain('update on boxcar.agents');
    expect(before).toContain('delete on boxcar.steps');
    expect(await grantWorkerRights(database.url, role.name)).toEqual(before);
    expect(await grantWorkerRights(database.url, role.name)).toEqual([]);
    expect(await missingOf(role)).toEqual([]);
  });

  test('accepts any valid name of a role', async () => {
    const name = `it's "a" role; drop table boxcar.turns -- ${database.name}`.slice(0, 63);
    await database.pool.query(`create role ${pg.escapeIdentifier(name)}`);
    try {
      expect(await grantWorkerRights(database.url, name)).toContain('insert on boxcar.turns');
      expect(await grantWorkerRights(database.url, name)).toEqual([]);
    } finally {
      await database.pool.query(
        `drop owned by ${pg.escapeIdentifier(name)}; drop role ${pg.escapeIdentifier(name)}`,
      );
    }
  });

  test('refuses a role that does not exist, and a name that only begins like a role', async () => {
    await using role = await testRole(database);
    for (const name of ['', 'public', 'nobody_here', role.name.toUpperCase()])
      await expect(grantWorkerRights(database.url, name)).rejects.toMatchObject({
        code: 'not_found',
        message: expect.stringContaining(`no role '${name}'`),
      });
  });

  test('is refused for a connection that may not grant, and changes nothing', async () => {
    await using role = await testRole(database);
    await using other = await testRole(database);
    const before = await missingOf(role);
    await expect(grantWorkerRights(other.url, role.name)).rejects.toMatchObject({
      code: 'database_forbidden',
    });
    await database.pool.query(`grant usage on schema boxcar to ${other.name} with grant option`);
    await expect(grantWorkerRights(other.url, role.name)).rejects.toMatchObject({
      code: 'database_forbidden',
    });
    expect(await missingOf(role)).toEqual(before);
  });
});
