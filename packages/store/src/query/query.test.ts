import { randomUUID } from 'node:crypto';
import type { BoxId, CardId } from '@boxcar/kernel';
import type pg from 'pg';
import { afterAll, beforeAll, expect, expectTypeOf, test } from 'vitest';
import { createPool, type Queryable, transaction } from '../db/index.js';
import { DEFAULT_PROJECT, World } from '../testing/world.js';
import { query } from './query.js';

let world: World;

beforeAll(async () => {
  world = await World.open();
});

afterAll(() => world[Symbol.asyncDispose]());

/** Records the statements that are sent through a connection. */
function watch(db: Queryable): Queryable & { readonly sent: pg.QueryConfig[] } {
  const sent: pg.QueryConfig[] = [];
  return {
    sent,
    query: (config) => {
      sent.push(config);
      return db.query(config);
    },
  };
}

test('a statement is prepared once under a name made from its text, and its rows have the types of their columns', async () => {
  const db = watch(world.pool);
  const find = (name: string) =>
    query(db, 'query.test_1', ({ orm, tables: { projects }, eq }) =>
      orm
        .select({ project_id: projects.id, limits: projects.limits, created_at: projects.createdAt })
        .from(projects)
        .where(eq(projects.name, name)),
    );
  const rows = await find('default');
  expect(rows).toEqual([{ project_id: DEFAULT_PROJECT, limits: {}, created_at: expect.any(Date) }]);
  expect(await find('another')).toEqual([]);
  expectTypeOf(rows[0]?.created_at).toEqualTypeOf<Date | undefined>();
  expect(db.sent.map(({ name, values }) => [name, values])).toEqual([
    [expect.stringMatching(/^bx_/), ['default']],
    [db.sent[0]?.name, ['another']],
  ]);
});

test('a list is sent as one value, whatever its length', async () => {
  const db = watch(world.pool);
  for (const length of [0, 1, 3]) {
    const ids = Array.from({ length }, () => randomUUID() as BoxId);
    const found = await query(db, 'query.test_2', ({ orm, tables: { boxes }, isAnyOf }) =>
      orm.select({ id: boxes.id }).from(boxes).where(isAnyOf(boxes.id, ids)),
    );
    expect(found).toEqual([]);
  }
  expect(new Set(db.sent.map(({ name }) => name)).size).toBe(1);
});

test('a condition for a partial index has its value in the text', async () => {
  const db = watch(world.pool);
  await query(db, 'query.test_3', ({ orm, tables: { turns }, eq, inline }) =>
    orm
      .select({ id: turns.id })
      .from(turns)
      .where(inline(eq(turns.status, 'queued'))),
  );
  expect(db.sent.map(({ text, values }) => [text, values])).toEqual([
    [`select /* query.test_3 */ "id" from "boxcar"."turns" where "boxcar"."turns"."status" = 'queued'`, []],
  ]);
});

test('JSON is parsed once: a string that looks like JSON stays a string, and keys keep their order', async () => {
  const id = randomUUID() as CardId;
  await world.pool.query(
    `insert into boxcar.operations (project_id, idempotency_key, primitive, request_hash, response) values ($1, $2, 'p', '', $3)`,
    [DEFAULT_PROJECT, id, '"1"'],
  );
  const read = () =>
    query(world.pool, 'query.test_4', ({ orm, tables: { operations }, eq }) =>
      orm.select({ response: operations.response }).from(operations).where(eq(operations.idempotencyKey, id)),
    );
  expect(await read()).toEqual([{ response: '1' }]);
  await query(world.pool, 'query.test_5', ({ orm, tables: { operations }, eq }) =>
    orm
      .update(operations)
      .set({ response: { b: '2', a: ['3'] } })
      .where(eq(operations.idempotencyKey, id)),
  );
  expect(JSON.stringify(await read())).toBe('[{"response":{"b":"2","a":["3"]}}]');
});

test('a large number is a number where the schema says so, also as a sum', async () => {
  const rows = await query(world.pool, 'query.test_6', ({ orm, tables: { workers }, count, sql }) =>
    orm
      .select({ lock: sql`${2 ** 40}::bigint`.mapWith(workers.lockKey), n: count() })
      .from(workers)
      .limit(1),
  );
  expect(rows).toEqual([{ lock: 2 ** 40, n: 0 }]);
});

test('times of every year are sent in a form that Postgres reads', async () => {
  const countBefore = async (at: Date): Promise<number | undefined> => {
    const [row] = await query(world.pool, 'query.test_7', ({ orm, tables: { projects }, count, lt }) =>
      orm.select({ n: count() }).from(projects).where(lt(projects.createdAt, at)),
    );
    return row?.n;
  };
  for (const at of [-1e14, -62_198_755_200_000, 1]) expect(await countBefore(new Date(at))).toBe(0);
  for (const at of [253_402_300_800_000, 8.64e15]) expect(await countBefore(new Date(at))).toBe(1);
});

test('an outer join without a match gives null', async () => {
  const rows = await query(world.pool, 'query.test_8', ({ orm, tables: { projects, profiles }, eq }) =>
    orm
      .select({ name: projects.name, profile: { name: profiles.name, version: profiles.version } })
      .from(projects)
      .leftJoin(profiles, eq(profiles.projectId, projects.id)),
  );
  expect(rows).toEqual([{ name: 'default', profile: null }]);
});

test('a failure is the error of the statement', async () => {
  const broken = (db: Queryable) =>
    query(db, 'query.test_9', ({ orm, sql, tables: { projects } }) =>
      orm.select({ n: sql`1 / (${projects.erasures})` }).from(projects),
    );
  await expect(broken(world.pool)).rejects.toMatchObject({ code: '22012', message: 'division by zero' });
  await expect(transaction(world.pool, broken)).rejects.toMatchObject({ code: '22012' });
  const pool = createPool({ connectionString: 'postgres://nobody@127.0.0.1:1/none' });
  await expect(broken(pool)).rejects.toMatchObject({ code: 'database_unavailable' });
  await pool.end();
});
