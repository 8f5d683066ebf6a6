import type { Stack } from '@boxcar/host/open';
import type { JsonValue } from '@boxcar/kernel';
import { openQueues } from '@boxcar/runtime';
import {
  type NodeChild,
  queueBackends,
  type TestDatabase,
  type TestRedis,
  testDatabase,
  testRedis,
  waitFor,
} from '@boxcar/testkit';
import { Redis } from 'ioredis';
import { afterAll, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import { cli, cliHere, type Env, PLUGIN, prepare, startCli } from '../../testing/cli.js';

let database: TestDatabase;
let env: Env;
let stack: Stack | undefined;

beforeAll(async () => {
  database = await testDatabase();
  env = { DATABASE_URL: database.url };
  stack = await prepare(env);
});

afterAll(() => stack?.close());

// The row of a killed worker stays until its lease has expired.
beforeEach(async () => {
  await database.pool.query('delete from boxcar.workers');
});

async function startWorker(
  args: readonly string[] = [],
  more: Env = {},
  isReady = (child: NodeChild): boolean => child.stderr.includes(' is ready '),
): Promise<NodeChild> {
  const worker = startCli(['worker', '--plugin', PLUGIN, ...args], { ...env, ...more });
  await waitFor(() => isReady(worker), {
    message: `the worker is ready: ${worker.stderr}`,
    deadlineMs: 60_000,
  });
  return worker;
}

async function launch(profile: string, instruction: string): Promise<string> {
  const receipt = await stack?.runtime.submit('launch_principal', { profile_name: profile, instruction });
  return String((receipt as { turn_id?: string }).turn_id);
}

const statusOf = async (turnId: string): Promise<string> => {
  const { rows } = await database.pool.query<{ status: string }>(
    'select status from boxcar.turns where id = $1',
    [turnId],
  );
  return rows[0]?.status ?? 'gone';
};

const reaches = (turnId: string, status: string): Promise<unknown> =>
  waitFor(async () => (await statusOf(turnId)) === status, {
    message: `turn ${turnId} is ${status}`,
    deadlineMs: 60_000,
  });

const workerCount = async (): Promise<number> => {
  const { rows } = await database.pool.query<{ n: number }>(
    `select count(*)::int as n from boxcar.workers where targets <> '{}'`,
  );
  return rows[0]?.n ?? -1;
};

describe('a worker that is told to stop', () => {
  it('on SIGTERM lets the current turn reach its next commit, gives it back, leaves and exits with 0', async () => {
    const worker = await startWorker();
    expect(worker.stderr).toMatch(
      /^boxcar: worker [0-9a-f-]{36} is ready \(pools: default; 10 turns at once; queues on postgres\)$/m,
    );
    const turnId = await launch('sleeper', '1500');
    await waitFor(
      async () =>
        (await database.pool.query('select from boxcar.tool_calls where turn_id = $1', [turnId])).rowCount ===
        1,
      { message: 'the tool runs' },
    );
    await worker.kill('SIGTERM');
    expect(await worker.exited).toEqual({ code: 0, signal: null });
    expect(worker.stderr).toMatch(/^boxcar: stopping; 1 turns? in progress/m);
    expect(worker.stderr).toMatch(/^boxcar: stopped$/m);
    // The result of the call was not lost with the worker, and nothing has to wait for a lease.
    expect(await statusOf(turnId)).toBe('dispatched');
    expect(await workerCount()).toBe(0);
    const { rows } = await database.pool.query('select status from boxcar.tool_calls where turn_id = $1', [
      turnId,
    ]);
    expect(rows).toEqual([{ status: 'success' }]);
    await using _next = await startWorker();
    await reaches(turnId, 'success');
  });

  it('with --grace-ms aborts hanging work at the end of that time, and gives it back', async () => {
    const worker = await startWorker(['--grace-ms', '200']);
    const turnId = await launch('sleeper', '60000');
    await reaches(turnId, 'running');
    await worker.kill('SIGINT');
    expect(await worker.exited).toEqual({ code: 0, signal: null });
    expect(['dispatched', 'suspended']).toContain(await statusOf(turnId));
    expect(await workerCount()).toBe(0);
  });

  it('on SIGHUP leaves and exits with 0, as on SIGTERM', async () => {
    const worker = await startWorker();
    await worker.kill('SIGHUP');
    expect(await worker.exited).toEqual({ code: 0, signal: null });
    expect(worker.stderr).toMatch(/^boxcar: stopped$/m);
    expect(await workerCount()).toBe(0);
  });

  it('stops at once on a second signal', async () => {
    const worker = await startWorker();
    const turnId = await launch('sleeper', '60001');
    await reaches(turnId, 'running');
    process.kill(worker.pid, 'SIGTERM');
    await waitFor(() => worker.stderr.includes('stopping') || undefined, { message: 'it stops' });
    await worker.kill('SIGTERM');
    expect(await worker.exited).toEqual({ code: 143, signal: null });
  });
});

it('a worker whose output readers are gone loses lines, and continues', async () => {
  await using worker = await startWorker(['--json'], { BOXCAR_LOG_LEVEL: 'debug' }, (child) =>
    /worker\.ready/.test(child.stdout),
  );
  worker.stopReading('stdout');
  worker.stopReading('stderr');
  for (let turn = 0; turn < 3; turn++) await reaches(await launch('writer', 'go'), 'success');
  process.kill(worker.pid, 'SIGTERM');
  expect(await worker.exited).toEqual({ code: 0, signal: null });
});

it('a promise that a tool left running fails its call, and the worker continues', async () => {
  await using worker = await startWorker([], { BOXCAR_TEST_BUG: 'in a call' });
  const turnId = await launch('forgetter', 'x');
  await reaches(turnId, 'success');
  const { rows } = await database.pool.query(
    'select k.status, c.content from boxcar.tool_calls k join boxcar.cards c on c.id = k.result_card_id where k.turn_id = $1',
    [turnId],
  );
  expect(rows).toMatchObject([{ status: 'failed' }]);
  expect(JSON.stringify(rows)).toMatch(/"tool_crashed".*forget left an error that nothing caught: nobody/);
  expect(worker.stderr).toContain('tool.crashed');
  expect(await workerCount()).toBe(1);
});

it('an unhandled rejection is reported, the turns are given back as lost, and the worker exits with 1', async () => {
  const worker = await startWorker([], { BOXCAR_TEST_BUG: 'anywhere', BOXCAR_GRACE_MS: '200' });
  const turnId = await launch('forgetter', 'x');
  expect(await worker.exited).toEqual({ code: 1, signal: null });
  expect(worker.stderr).toMatch(/^boxcar: internal_error: unhandled rejection: nobody awaits this$/m);
  expect(worker.stderr).toMatch(/plugin\.mjs/);
  expect(await workerCount()).toBe(0);
  const { rows } = await database.pool.query(
    `select t.losses, f.last_error, f.next_try_at > t.dispatched_at + interval '1 second' as waits
    from boxcar.turns t join boxcar.sweep_failures f on f.kind = 'turn_runs' and f.row_id = t.id where t.id = $1`,
    [turnId],
  );
  expect(rows).toEqual([
    {
      losses: 1,
      last_error: expect.stringMatching(
        /^worker_crashed: unhandled rejection: nobody\nawaits this\. .*\(at step 2\)$/,
      ),
      waits: true,
    },
  ]);
  await using _next = await startWorker();
  await reaches(turnId, 'success');
});

describe('a tool that blocks the event loop', () => {
  it.each([
    ['javascript', { code: 4, signal: null }, 20_000],
    ['native', { code: null, signal: 'SIGKILL' }, 4_000],
  ])('in %s code ends its worker; only its own turn is charged with the loss', async (how, exit, leaseMs) => {
    const worker = await startWorker(['--lease-ms', String(leaseMs)], { BOXCAR_TEST_BUG: 'spin' });
    const beside = await launch('sleeper', '60002');
    await waitFor(
      async () =>
        (await database.pool.query('select from boxcar.tool_calls where turn_id = $1', [beside])).rowCount ===
        1,
      { message: 'another tool runs' },
    );
    const turnId = await launch('spinner', how);
    expect(await worker.exited).toEqual(exit);
    const { rows } = await database.pool.query(
      `select t.id, t.status, t.losses, f.last_error from boxcar.turns t
      left join boxcar.sweep_failures f on f.kind = 'turn_runs' and f.row_id = t.id where t.id = any ($1) order by t.id`,
      [[beside, turnId]],
    );
    expect(rows).toEqual([
      { id: beside, status: 'dispatched', losses: 0, last_error: null },
      {
        id: turnId,
        status: 'dispatched',
        losses: 1,
        last_error: `worker_blocked: The tool spin held the event loop of its worker for ${leaseMs / 2} ms. (at step 2)`,
      },
    ]);
    const logged = /^\{.*"worker\.blocked".*$/m.exec(worker.stderr)?.[0] ?? '{}';
    expect(JSON.parse(logged)).toMatchObject({
      tool: 'spin',
      turn_id: turnId,
      released: expect.arrayContaining([beside]),
    });
    expect(await workerCount()).toBe(0);
    await stack?.runtime.submit('cancel', { turn_id: beside });
    await using _next = await startWorker();
    await reaches(turnId, 'success');
  });
});

describe('a handler that blocks the event loop', () => {
  const LEASE_MS = 20_000;

  /** A worker with a second turn that is not involved in the bug. */
  async function startBeside(bug = 'spin'): Promise<{ worker: NodeChild; beside: string }> {
    const worker = await startWorker(['--lease-ms', String(LEASE_MS)], { BOXCAR_TEST_BUG: bug });
    const beside = await launch('sleeper', '60003');
    const calls = 'select from boxcar.tool_calls where turn_id = $1';
    await waitFor(async () => (await database.pool.query(calls, [beside])).rowCount === 1, {
      message: 'another turn runs',
    });
    return { worker, beside };
  }

  const stateOf = async (turnId: string) =>
    (await database.pool.query('select status, losses from boxcar.turns where id = $1', [turnId])).rows[0];

  async function addJob(jobId: string, result: JsonValue = 1): Promise<void> {
    const queues = openQueues({ kind: 'postgres', url: database.url });
    await queues
      .queue('boxcar-primitives')
      .add(
        'hold',
        { project_id: 'default', arguments: { result } },
        { jobId, removeOnComplete: false, removeOnFail: false },
      );
    await queues.close();
  }

  async function notes(): Promise<readonly unknown[]> {
    const rows = await database.pool.query(
      "delete from boxcar.sweep_failures where kind = 'blocked_jobs' returning attempts, last_error, is_dead",
    );
    return rows.rows;
  }

  it('or ends the process, for a job: the job is recorded, and no turn is charged', async () => {
    const { worker, beside } = await startBeside('exit');
    await addJob('exits', 'exit');
    expect(await worker.exited).toEqual({ code: 7, signal: null });
    expect(await notes()).toEqual([
      {
        attempts: 1,
        is_dead: false,
        last_error: 'worker_crashed: The handler of hold, called by the job exits, ended the process.',
      },
    ]);
    expect(await stateOf(beside)).toEqual({ status: 'dispatched', losses: 0 });
    expect(worker.stderr).toMatch(/"worker\.ended".*"primitive":"hold","job_id":"exits"/);
    expect(await workerCount()).toBe(0);
    await stack?.runtime.submit('cancel', { turn_id: beside });
  });

  it('or ends the process, as a tool: only its own turn is charged with the loss', async () => {
    const { worker, beside } = await startBeside('exit');
    const turnId = await launch('spinner', 'x');
    expect(await worker.exited).toEqual({ code: 7, signal: null });
    expect(await stateOf(beside)).toEqual({ status: 'dispatched', losses: 0 });
    expect(await stateOf(turnId)).toEqual({ status: 'dispatched', losses: 1 });
    for (const id of [beside, turnId]) await stack?.runtime.submit('cancel', { turn_id: id });
  });

  it('or leaves an uncaught error, for a job: the job is recorded', async () => {
    const worker = await startWorker([], { BOXCAR_TEST_BUG: 'stray', BOXCAR_GRACE_MS: '200' });
    await addJob('strays', 'stray');
    expect(await worker.exited).toEqual({ code: 1, signal: null });
    expect(await notes()).toEqual([
      {
        attempts: 1,
        is_dead: false,
        last_error: expect.stringMatching(
          /^worker_crashed: The handler of hold, called by the job strays, left an error that nothing caught: unhandled rejection: nobody awaits this\./,
        ),
      },
    ]);
  });

  it('for a turn ends its worker; only that turn is charged with the loss', async () => {
    const { worker, beside } = await startBeside();
    const turnId = await launch('holder', 'x');
    expect(await worker.exited).toEqual({ code: 4, signal: null });
    expect(await stateOf(beside)).toEqual({ status: 'dispatched', losses: 0 });
    expect(await stateOf(turnId)).toEqual({ status: 'dispatched', losses: 1 });
    expect(worker.stderr).toMatch(/"worker\.blocked".*"tool":"hold"/);
    await stack?.runtime.submit('cancel', { turn_id: beside });
    await stack?.runtime.submit('cancel', { turn_id: turnId });
  });

  it('for a job ends its worker; the job is recorded, and no turn is charged', async () => {
    const { worker, beside } = await startBeside();
    await addJob('poison');
    expect(await worker.exited).toEqual({ code: 4, signal: null });
    expect(await stateOf(beside)).toEqual({ status: 'dispatched', losses: 0 });
    expect(await notes()).toEqual([
      {
        attempts: 1,
        is_dead: false,
        last_error: `worker_blocked: The handler of hold, called by the job poison, held the event loop of its worker for ${LEASE_MS / 2} ms.`,
      },
    ]);
    expect(worker.stderr).toMatch(/"worker\.blocked".*"primitive":"hold","job_id":"poison"/);
    await stack?.runtime.submit('cancel', { turn_id: beside });
  });
});

describe('the health check', () => {
  it('fails before a worker lives, succeeds while it lives, and fails when its lease has expired', async () => {
    expect(await cliHere(['health'], env)).toMatchObject({
      code: 1,
      stdout: expect.stringMatching(/^unhealthy: no live worker on /),
    });
    const worker = await startWorker(['--lease-ms', '2000', '--no-door']);
    expect(worker.stderr).toContain('no queue door');
    expect(await cli(['health', '--pid', String(worker.pid)], env)).toMatchObject({
      code: 0,
      stdout: expect.stringMatching(/^healthy: 1 live worker on /),
    });
    expect(await cliHere(['health', '--pid', '1', '--json'], env)).toMatchObject({ code: 1 });
    process.kill(worker.pid, 'SIGSTOP');
    await waitFor(async () => (await cliHere(['health'], env)).code === 1, {
      message: 'a worker that hangs is found out',
      deadlineMs: 60_000,
    });
    await worker.kill();
  });
});

describe.runIf(queueBackends().includes('redis'))('a Redis that is away', () => {
  let redis: TestRedis;

  beforeAll(async () => {
    redis = await testRedis();
    await redis.stop();
  });

  it('gives one clear warning in the worker; submit still accepts, and the turn ends from its rows', async () => {
    const away = { REDIS_URL: redis.url };
    await using worker = await startWorker([], away);
    const warnings = worker.stderr
      .split('\n')
      .filter((line) => line.startsWith('boxcar: redis_unavailable: '));
    expect(warnings).toHaveLength(1);
    expect(warnings[0]).toMatch(
      /ECONNREFUSED.*turns are taken from the rows until it is back\. Check REDIS_URL and that the server runs/,
    );
    const { code, stdout } = await cli(
      ['submit', 'launch_principal', '--arg', 'profile_name=writer', '--arg', 'instruction=you', '--json'],
      { ...env, ...away },
    );
    expect(code).toBe(0);
    await reaches(JSON.parse(stdout).turn_id, 'success');
    await worker.kill('SIGTERM');
    expect(await worker.exited).toEqual({ code: 0, signal: null });
  });

  it('with a wrong password is reported as such', async () => {
    await redis.start();
    const admin = new Redis(redis.url);
    await admin.config('SET', 'requirepass', 'right');
    admin.disconnect();
    const url = new URL(redis.url);
    url.password = 'wrong';
    await using worker = await startWorker([], { REDIS_URL: url.href });
    expect(worker.stderr).toMatch(/^boxcar: redis_unavailable: .*(AUTH|WRONGPASS)/m);
    expect(worker.stderr).not.toMatch(/redis:\/\/.*wrong/);
  });
});
