import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { Stack } from '@boxcar/host/open';
import { createWorker } from '@boxcar/runtime';
import { THIS_BUILD } from '@boxcar/store';
import { readServerFacts, readWorkFacts } from '@boxcar/store/report';
import {
  queueBackends,
  type TestDatabase,
  testDatabase,
  testRedis,
  testRole,
  waitFor,
} from '@boxcar/testkit';
import { afterAll, beforeAll, describe, expect, it, test } from 'vitest';
import { cliHere, type Env, prepare } from '../../testing/cli.js';
import { type Finding, worstOf } from '../../text/doctor-finding.js';
import { judgeInvariants, judgeToolQueues } from '../../text/doctor-findings.js';
import { judgeDirect, judgeRedis, judgeServer } from '../../text/doctor-servers.js';

interface Answer {
  readonly status: string;
  readonly findings: readonly Finding[];
}

async function doctor(
  env: Env,
  ...flags: readonly string[]
): Promise<Answer & { readonly code: number | null }> {
  const { code, stdout, stderr } = await cliHere(['doctor', '--json', ...flags], env);
  expect(stderr).toBe('');
  return { code, ...(JSON.parse(stdout) as Answer) };
}
const of = (answer: Answer, check: string): Finding | undefined =>
  answer.findings.find((finding) => finding.check === check);

it('--invariants checks only the invariants; exit code 1 means that one is violated', async () => {
  await using database = await testDatabase();
  const env = { DATABASE_URL: database.url };
  const stack = await prepare(env);
  const { turn_id: turnId } = (await stack.runtime.submit('launch_principal', {
    profile_name: 'writer',
    instruction: 'x',
  })) as { turn_id: string };
  await stack.close();
  const whole = await doctor(env, '--invariants', '--all');
  expect(whole).toMatchObject({ code: 0, status: 'ok' });
  expect(whole.findings).toEqual([
    { check: 'invariants', level: 'ok', message: expect.stringMatching(/^(\d+) of \1 hold \(all rows\)\.$/) },
  ]);
  await database.pool.query(
    `update boxcar.turns set status = 'running', holder_id = gen_random_uuid(), epoch = 1, start_position = 2,
       dispatched_at = now() where id = $1`,
    [turnId],
  );
  const broken = await doctor(env, '--invariants');
  expect(broken).toMatchObject({ code: 1, status: 'fail' });
  expect(of(broken, 'workers')).toBeUndefined();
  expect(broken.findings).toContainEqual(
    expect.objectContaining({ level: 'fail', ids: expect.arrayContaining([turnId]) }),
  );
  expect(await cliHere(['doctor', '--invariants', '--retry-dead'], env)).toMatchObject({ code: 2 });
});

describe('the report of doctor on a database', () => {
  let database: TestDatabase;
  let env: Env;
  let stack: Stack;

  beforeAll(async () => {
    database = await testDatabase();
    env = { DATABASE_URL: database.url };
    stack = await prepare(env);
  });
  afterAll(() => stack.close());

  it('says that a database in order lacks only a worker, and with a worker that all is well', async () => {
    const answer = await doctor(env, '--all');
    expect(answer).toMatchObject({ code: 0, status: 'warn' });
    expect(answer.findings.filter(({ level }) => level !== 'ok')).toEqual([
      { check: 'workers', level: 'warn', message: 'No worker is alive.', next: 'Start one: boxcar worker' },
    ]);
    await using _worker = await createWorker(stack.runtime);
    expect(await doctor(env)).toMatchObject({ code: 0, status: 'ok' });
    const { stdout } = await cliHere(['doctor'], env);
    expect(stdout).toMatch(/^ok {4}database {11}Postgres /);
    expect(Math.max(...stdout.split('\n').map((line) => line.length))).toBeLessThanOrEqual(80);
    expect(stdout).toMatch(/\n\d+ findings: \d+ ok, 0 warn, 0 fail\n$/);
  });

  it('names the pool and the command for turns of a pool without a worker', async () => {
    await stack.runtime.applyProfile({
      name: 'far',
      instructions: 'x',
      model: 'scripted',
      script: [{ say: 'x' }],
      worker_target: 'gpu',
    });
    await stack.runtime.submit('launch_principal', { profile_name: 'far', instruction: 'x' });
    expect(await doctor(env)).toMatchObject({
      findings: expect.arrayContaining([
        expect.objectContaining({
          check: 'workers',
          level: 'warn',
          message: "Turns wait for the pool 'gpu', which no living worker serves.",
          next: 'Start one: boxcar worker --target gpu',
        }),
      ]),
    });
  });

  it('shows late work of dead workers, and fails when living workers leave it late', async () => {
    const { turn_id: turnId } = (await stack.runtime.submit('launch_principal', {
      profile_name: 'writer',
      instruction: 'x',
    })) as { turn_id: string };
    await database.pool.query(
      `update boxcar.turns set status = 'running', holder_id = gen_random_uuid(), epoch = 1, start_position = 2, deadline_at = now() - interval '1 hour',
         dispatched_at = now() where id = $1`,
      [turnId],
    );
    const dead = await doctor(env);
    expect(of(dead, 'dead leases')).toMatchObject({ level: 'warn', ids: [turnId] });
    expect(of(dead, 'turn deadlines')).toMatchObject({ level: 'warn', ids: [turnId] });
    await database.pool.query(
      `insert into boxcar.workers (id, lock_key, lease_until, targets, concurrency, schema_version) values (gen_random_uuid(), 7, now() + interval '1 hour', '{""}', 1, $1)`,
      [THIS_BUILD.schemaVersion],
    );
    const stuck = await doctor(env);
    expect(stuck).toMatchObject({ code: 1, status: 'fail' });
    expect(of(stuck, 'turn deadlines')).toMatchObject({
      level: 'fail',
      next: expect.stringContaining('sweep'),
    });
    // Also corrupted above: the turn has started, but its tape has no start.
    expect(of(stuck, 'invariant starts-once')).toMatchObject({ level: 'fail', ids: [turnId] });
    await database.pool.query('delete from boxcar.workers');
    await database.pool.query('delete from boxcar.turns where id = $1', [turnId]);
  });

  it('names forks that were left open', async () => {
    const tape = await stack.runtime.tape('left');
    const fork = await tape.forkTape();
    expect(of(await doctor(env), 'forks')).toBeUndefined();
    await database.pool.query("update boxcar.forks set created_at = now() - interval '2 hours'");
    expect(of(await doctor(env), 'forks')).toMatchObject({ level: 'warn', ids: [fork.id] });
    await fork.discard();
    expect(of(await doctor(env), 'forks')).toBeUndefined();
  });

  it('reports lost rings', async () => {
    await database.pool.query(
      `insert into boxcar.workers (id, lock_key, lease_until, targets, concurrency, schema_version) values (gen_random_uuid(), 8, now() + interval '1 hour', '{""}', 5, $1)`,
      [THIS_BUILD.schemaVersion],
    );
    const { turn_id: turnId } = (await stack.runtime.submit('launch_principal', {
      profile_name: 'writer',
      instruction: 'x',
    })) as { turn_id: string };
    await database.pool.query(
      "update boxcar.turns set epoch = 9, dispatched_at = now() - interval '1 minute' where id = $1",
      [turnId],
    );
    const answer = await doctor(env);
    expect(of(answer, 'rings')).toMatchObject({ level: 'warn', ids: [turnId] });
    await database.pool.query('delete from boxcar.workers');
  });

  it('shows rows that sweeps have set aside, and lets them be tried again', async () => {
    expect(of(await doctor(env), 'dead letters')).toMatchObject({ level: 'ok' });
    const id = '0198c1f2-0000-7000-8000-000000000001';
    await database.pool.query(
      `insert into boxcar.sweep_failures (kind, row_id, attempts, last_error, next_try_at, is_dead)
       values ('overdue_turns', $1, 5, 'it is poison', now(), true), ('overdue_calls', gen_random_uuid(), 2, 'not yet', now() + interval '1 hour', false),
         ('blocked_jobs', gen_random_uuid(), 1, 'it held the loop', now() + interval '1 hour', false)`,
      [id],
    );
    const answer = await doctor(env);
    expect(answer).toMatchObject({ code: 1, status: 'fail' });
    expect(answer.findings.filter(({ check }) => check === 'dead letters')).toMatchObject([
      { level: 'fail', ids: [id], message: expect.stringMatching(/\(overdue_turns\) .*it is poison$/) },
      { level: 'warn', message: expect.stringContaining('fails on 1 rows') },
      { level: 'warn', message: expect.stringMatching(/^1 jobs of the queue door .* it held the loop$/) },
    ]);
    expect(await cliHere(['doctor', '--retry-dead', '--json'], env)).toMatchObject({
      code: 0,
      stdout: '{"retried":1}\n',
    });
    expect((await cliHere(['doctor', '--retry-dead'], env)).stdout).toBe('The sweep has given up no rows.\n');
    const { rows } = await database.pool.query(
      'select is_dead, attempts, next_try_at <= now() as is_due from boxcar.sweep_failures where row_id = $1',
      [id],
    );
    expect(rows).toEqual([{ is_dead: false, attempts: 1, is_due: true }]);
    await database.pool.query('delete from boxcar.sweep_failures');
  });

  it('fails with the next step for a database that is not migrated or not reachable', async () => {
    await using empty = await testDatabase({ empty: true });
    const answer = await doctor({ DATABASE_URL: empty.url });
    expect(answer).toMatchObject({ code: 1, status: 'fail' });
    expect(of(answer, 'schema')?.message).toMatch(/^schema_outdated: .*`boxcar migrate`/);
    expect(of(answer, 'queue')).toMatchObject({ level: 'fail', next: 'Run: boxcar migrate' });
    const gone = await doctor({ DATABASE_URL: 'postgres://127.0.0.1:1/x' });
    expect(gone.findings).toEqual([
      { check: 'database', level: 'fail', message: expect.stringMatching(/^database_unavailable: /) },
    ]);
  });

  it('names the rights that a role lacks, and the named command grants all of them', async () => {
    await using role = await testRole(database);
    const roleEnv = { DATABASE_URL: role.url };
    expect(of(await doctor(roleEnv), 'permissions')).toMatchObject({
      level: 'fail',
      message: expect.stringMatching(
        / lacks usage on schema boxcar, create on schema bullmq, .* and \d+ more\.$/,
      ),
      next: `Grant it, with DATABASE_URL of the role that migrates: boxcar migrate --grant-worker ${role.name}`,
    });
    const grant = ['migrate', '--grant-worker', role.name];
    const { code, stdout } = await cliHere(grant, env);
    expect({ code, stdout }).toMatchObject({
      code: 0,
      stdout: expect.stringContaining(`Granted to role ${role.name}:\n`),
    });
    expect(stdout).toContain('\n  update on boxcar.agents\n');
    expect(JSON.parse((await cliHere([...grant, '--json'], env)).stdout)).toMatchObject({
      applied: [],
      role: role.name,
      granted: [],
    });
    expect((await cliHere(grant, env)).stdout).toContain('nothing to grant');
    const { findings } = await doctor(roleEnv);
    expect(findings.filter(({ level }) => level === 'fail')).toEqual([]);
  });

  it('fails for a role that does not exist and cannot get rights', async () => {
    expect(await cliHere(['migrate', '--grant-worker', 'nobody here'], env)).toMatchObject({
      code: 1,
      stderr: expect.stringMatching(/not_found: The server has no role 'nobody here'/),
    });
  });

  it('takes a constant number of statements, each of bounded time', async () => {
    expect(await readServerFacts(database.pool, { hasQueues: true })).toMatchObject({
      isReadOnly: false,
      missingRights: [],
    });
    const blocker = await database.pool.connect();
    await blocker.query('begin; lock table boxcar.turns in access exclusive mode');
    try {
      await expect(readWorkFacts(database.pool, { lateMs: 1, timeoutMs: 20 })).rejects.toMatchObject({
        code: '57014',
      });
    } finally {
      await blocker.query('rollback');
      blocker.release();
    }
    await waitFor(async () => (await readWorkFacts(database.pool, { lateMs: 1, timeoutMs: 1_000 })).targets, {
      message: 'the rows are free again',
    });
  });
});

test.runIf(queueBackends().includes('redis'))(
  'shows version, memory and persistence of Redis, and fails when Redis is away',
  async () => {
    await using database = await testDatabase();
    const env = { DATABASE_URL: database.url };
    await (await prepare(env)).close();
    const redis = await testRedis();
    const answer = await doctor({ ...env, REDIS_URL: redis.url });
    expect(of(answer, 'queue')).toMatchObject({
      level: 'ok',
      message: expect.stringMatching(/^Redis \d.*keeps nothing/),
    });
    expect(of(answer, 'queue memory')).toMatchObject({ level: 'ok' });
    const away = await doctor({ ...env, REDIS_URL: 'redis://127.0.0.1:1/0' });
    expect(away).toMatchObject({ code: 1 });
    expect(of(away, 'queue')).toMatchObject({
      level: 'fail',
      message: expect.stringMatching(/^redis_unavailable: /),
    });
    expect(of(away, 'rings')).toMatchObject({ level: 'warn' });
  },
);

describe('the judgment of doctor', () => {
  const server = {
    versionNumber: 180_004,
    version: '18.4',
    role: 'app',
    isReadOnly: false,
    connections: 5,
    maxConnections: 100,
    missingRights: [],
    clockSkewMs: -3,
  };

  it.each([
    ['database', 'fail', 'too old', { versionNumber: 140_000, version: '14.1' }],
    ['database', 'fail', 'is read-only', { isReadOnly: true }],
    ['database', 'warn', '95 of 100', { connections: 95 }],
    ['clock', 'warn', '5,000 ms ahead of', { clockSkewMs: 5_000 }],
    ['clock', 'fail', '70,000 ms behind', { clockSkewMs: -70_000 }],
    ['clock', 'ok', '3 ms behind', {}],
  ])('on the server is %s %s: %s', (check, level, words, rest) => {
    const found = judgeServer({ ...server, ...rest }).find((finding) => finding.check === check);
    expect(found).toMatchObject({ level, message: expect.stringContaining(words) });
    expect(found?.next !== undefined).toBe(level !== 'ok');
  });

  it('reports a transaction pooler in place of the direct connection', () => {
    expect(judgeDirect({ isOneSession: true, locksHold: true, isNotified: true }).level).toBe('ok');
    for (const broken of ['isOneSession', 'locksHold', 'isNotified'])
      expect(
        judgeDirect({ isOneSession: true, locksHold: true, isNotified: true, [broken]: false }),
      ).toMatchObject({ level: 'fail', next: expect.stringContaining('DATABASE_DIRECT_URL') });
  });

  it.each([
    ['queue', 'fail', { version: '6.0.16' }],
    ['queue', 'ok', { version: '6.2.0' }],
    ['queue memory', 'warn', { policy: 'allkeys-lru' }],
  ])('on Redis is %s %s', (check, level, rest) => {
    const good = { version: '7.4.1', policy: 'noeviction', maxMemory: 0, isPersistent: true };
    const bad = { ...good, ...rest };
    const found = judgeRedis([bad]);
    // For a cluster, the worst node counts.
    expect(judgeRedis([good, bad, good]).slice(1)).toEqual(level === 'ok' ? judgeRedis([good]) : found);
    expect(found.find((finding) => finding.check === check)).toMatchObject({ level });
  });

  it('names the queue of calls that no worker takes; a queue that cannot be asked is a warning', () => {
    expect(judgeToolQueues([])).toMatchObject([{ level: 'ok' }]);
    expect(judgeToolQueues(undefined)).toMatchObject([{ level: 'warn' }]);
    expect(judgeToolQueues([{ target: 'py', count: 3, oldest_at: new Date(0), ids: [] }])).toMatchObject([
      { level: 'warn', message: expect.stringContaining('boxcar-tools-py: 3 calls') },
    ]);
  });

  it('treats an unchecked invariant as a warning and a violated invariant as a failure', () => {
    const report = { name: 'n', rule: 'r', broken: [], hasMore: false };
    expect(worstOf(judgeInvariants([{ ...report, state: 'holds' }], 's'))).toBe('ok');
    expect(worstOf(judgeInvariants([{ ...report, state: 'unchecked' }], 's'))).toBe('warn');
    const broken = judgeInvariants(
      [{ ...report, state: 'broken', broken: [{ id: 'x', what: 'is y' }] }],
      's',
    );
    expect(broken.at(-1)).toMatchObject({ level: 'fail', ids: ['x'], message: 'Broken: r. x is y.' });
  });
});

test('a broken policy is a finding of its own, and does not prevent decisions about approvals', async () => {
  await using database = await testDatabase();
  const folder = await mkdtemp(join(tmpdir(), 'boxcar-doctor-'));
  const file = join(folder, 'policy.yaml');
  const env = { DATABASE_URL: database.url, BOXCAR_POLICY_FILE: file };
  await (await prepare({ DATABASE_URL: database.url })).close();
  await writeFile(file, 'tools: { pay: { permission: NEVER } }');
  expect(of(await doctor(env), 'policy')).toMatchObject({ level: 'ok' });
  await writeFile(file, 'tools: { pay: { permission: SOMETIMES } }');
  const broken = await doctor(env);
  expect(broken.code).toBe(1);
  expect(of(broken, 'policy')).toMatchObject({
    level: 'fail',
    message: expect.stringContaining('policy.yaml:1:29'),
  });
  expect(of(broken, 'invariants')).toMatchObject({ level: 'ok' });
  expect(await cliHere(['approvals', 'ls', '--json'], env)).toMatchObject({ code: 0, stderr: '' });
  await rm(folder, { recursive: true });
});
