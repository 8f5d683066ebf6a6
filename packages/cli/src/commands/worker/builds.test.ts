import type { Stack } from '@boxcar/host/open';
import { ERROR_CATALOGUE } from '@boxcar/kernel';
import { createWorker } from '@boxcar/runtime';
import { THIS_BUILD } from '@boxcar/store';
import { type TestDatabase, testDatabase, waitFor } from '@boxcar/testkit';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { cliHere, type Env, prepare, startCli } from '../../testing/cli.js';

const OWN = THIS_BUILD.schemaVersion;
const NEXT = OWN + 1;

let database: TestDatabase;
let env: Env;
let stack: Stack;

beforeAll(async () => {
  database = await testDatabase();
  env = { DATABASE_URL: database.url };
  stack = await prepare(env);
});
afterAll(() => stack.close());

interface Answer {
  readonly findings: readonly { readonly check: string; readonly level: string; readonly message: string }[];
}

const builds = async (): Promise<Answer['findings']> => {
  const { stdout } = await cliHere(['doctor', '--json'], env);
  return (JSON.parse(stdout) as Answer).findings.filter(({ check }) => check === 'builds');
};

it('turns of a newer build than any live worker are shown by doctor and why-stuck', async () => {
  expect(await builds()).toEqual([]);
  const { turn_id: turnId } = (await stack.runtime.submit('launch_principal', {
    profile_name: 'writer',
    instruction: 'x',
  })) as { turn_id: string };
  await database.pool.query('update boxcar.turns set format = 99 where id = $1', [turnId]);
  await using _other = await createWorker(stack.runtime);
  await database.pool.query(
    `insert into boxcar.workers (id, lock_key, lease_until, targets, concurrency, schema_version)
     values (gen_random_uuid(), 9, now() + interval '1 hour', '{"gpu"}', 1, 99)`,
  );
  expect(await builds()).toMatchObject([
    {
      level: 'warn',
      message: expect.stringMatching(/^1 turns were written by a newer build/),
      ids: [turnId],
    },
    { level: 'ok', message: `Workers of 2 builds are alive: 1 know migration ${OWN}, 1 know migration 99.` },
  ]);
  const { code, stdout } = await cliHere(['why-stuck', turnId], env);
  expect(code).toBe(3);
  expect(stdout.replace(/\s+/g, ' ')).toMatch(
    /was written by a newer build: it needs a worker that knows migration 99, and the living workers of the default pool know at most \d+ .*→ Start a worker of the newer build: boxcar worker/,
  );
  await database.pool.query('delete from boxcar.workers where schema_version = 99');
});

it('a worker that a migration excludes gives its turns back, says what to do and fails, and so do all later starts', async () => {
  await using worker = startCli(['worker', '--lease-ms', '2000'], env);
  await waitFor(() => worker.stderr.includes(' is ready '), { message: 'it is ready', deadlineMs: 60_000 });
  await database.pool.query(
    "insert into boxcar.schema_version (version, name, checksum, min_compatible) values ($1, 'next', '', $1)",
    [NEXT],
  );
  expect(await worker.exited).toEqual({ code: 1, signal: null });
  expect(worker.stderr).toContain(
    `\nboxcar: schema_too_new: The database schema is at version ${NEXT} and needs programs that know version ${NEXT}; this one knows ${OWN}. ${ERROR_CATALOGUE.schema_too_new.next}\n`,
  );
  expect((await database.pool.query('select from boxcar.workers')).rows).toEqual([]);
  expect(await cliHere(['worker'], env)).toMatchObject({
    code: 1,
    stderr: expect.stringContaining('schema_too_new'),
  });
  const { stdout } = await cliHere(['doctor', '--json'], env);
  expect((JSON.parse(stdout) as Answer).findings).toContainEqual(
    expect.objectContaining({ check: 'schema', level: 'fail' }),
  );
});
