import { spawnSync } from 'node:child_process';
import { chmodSync, existsSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { Stack } from '@boxcar/host/open';
import { createWorker, loadPlugins, openQueues } from '@boxcar/runtime';
import { loadMigrations } from '@boxcar/store';
import {
  queueBackends,
  type TestDatabase,
  type TestRedis,
  testDatabase,
  testRedis,
  waitFor,
} from '@boxcar/testkit';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { cli, cliHere, type Env, PLUGIN, PROFILES, prepare, startCli } from './testing/cli.js';

interface Receipt {
  readonly status: string;
  readonly turn_id: string;
  readonly agent_id: string;
}

const launch = (profile: string, instruction: string): string[] => [
  ...['submit', 'launch_principal', '--arg', `profile_name=${profile}`],
  ...['--arg', `instruction=${instruction}`],
];

async function answerOf<T>(args: readonly string[], env: Env): Promise<T> {
  const { code, stdout, stderr } = await cliHere([...args, '--json'], env);
  expect(code, stderr).toBe(0);
  return JSON.parse(stdout);
}

describe.each(queueBackends())('with the queues on %s', (backend) => {
  let database: TestDatabase;
  let redis: TestRedis | undefined;
  let env: Env;

  beforeAll(async () => {
    database = await testDatabase({ empty: true });
    redis = backend === 'redis' ? await testRedis() : undefined;
    env = { DATABASE_URL: database.url, REDIS_URL: redis?.url };
    await (await prepare(env)).close();
    const worker = startCli(['worker', '--json', '--plugin', PLUGIN, '--concurrency', '5'], env);
    const ready = await worker.line(/"event":"worker.ready"/, { deadlineMs: 90_000 });
    expect(JSON.parse(ready)).toMatchObject({ concurrency: 5, targets: [''], queues: backend, door: true });
  });

  it('submit answers with the receipt, and with --wait with the result', async () => {
    const receipt = await cli([...launch('writer', 'there'), '--json'], env);
    expect(receipt).toMatchObject({ code: 0, stderr: '' });
    expect(JSON.parse(receipt.stdout)).toMatchObject({ status: 'accepted', turn_id: expect.any(String) });
    const result = await cli([...launch('boss', 'go'), '--wait'], env);
    expect(result.code).toBe(0);
    expect(result.stdout).toMatch(/^status +success\nturn_id +[0-9a-f-]{36}\n(.+\n)+\nHello world\n$/);
    expect(result.stderr).toMatch(
      /^boxcar: accepted as turn [0-9a-f-]{36} of run [0-9a-f-]{36}; waiting for its end\n$/,
    );
  });

  it('a turn that does not end in success gives exit code 3 and the error of the turn', async () => {
    const { code, stdout } = await cli([...launch('failure', 'x'), '--wait', '--json'], env);
    expect(code).toBe(3);
    expect(JSON.parse(stdout)).toMatchObject({
      status: 'failed',
      error: { code: 'model_failed', message: expect.stringContaining('never') },
    });
  });

  it('the worker serves the queue door, also for primitives of a plugin', async () => {
    const queues = openQueues(
      redis === undefined ? { kind: 'postgres', url: database.url } : { kind: 'redis', url: redis.url },
    );
    const queue = queues.queue<object>('boxcar-primitives');
    const jobId = `repeat-${backend}`;
    const data = { project_id: 'default', arguments: { result: [1] } };
    const opts = { jobId, removeOnComplete: false, removeOnFail: false };
    await queue.addBulk([{ name: 'repeat', data, opts }]);
    await waitFor(async () => (await queue.getJobState(jobId)) === 'completed', {
      message: 'the job is answered',
    });
    await queues.close();
  });

  it('a context_handoff reaches its target from the command line and from the queue', async () => {
    const { agent_id: source } = await answerOf<Receipt>(launch('writer', 'first'), env);
    const why = { reason: 'done here', summary: 'greeted', intention: { next_steps: 'next' } };
    const handed = await cliHere(
      [
        ...['submit', 'context_handoff', '--wait', '--json', '--json-args', JSON.stringify(why)],
        ...[
          '--arg',
          'target_ref=writer',
          '--arg',
          `tape_ref=tape://default/${source}/anchor/session%2Fstart`,
        ],
      ],
      env,
    );
    expect(handed.code, handed.stderr).toBe(0);
    expect(JSON.parse(handed.stdout)).toMatchObject({ status: 'success', result: 'Hello next' });

    const queues = openQueues(
      redis === undefined ? { kind: 'postgres', url: database.url } : { kind: 'redis', url: redis.url },
    );
    const queue = queues.queue<object>('boxcar-primitives');
    const args = { ...why, target_ref: `agent:${source}`, tape_ref: `tape://default/${source}/entry/2` };
    const data = { project_id: 'default', arguments: args };
    const command = { target_strategy: 'reuse', target_ref: source, instruction: ',anchors' };
    const keep = { removeOnComplete: false, removeOnFail: false };
    const jobs = [
      { name: 'context_handoff', data, opts: { ...keep, jobId: `handoff-${backend}` } },
      // Also a comma command, which the queue door answers itself.
      {
        name: 'delegate_async',
        data: { ...data, arguments: command },
        opts: { ...keep, jobId: `command-${backend}` },
      },
    ];
    await queue.addBulk(jobs);
    const [handoff, anchors] = await Promise.all(
      jobs.map(({ opts: { jobId } }) =>
        waitFor(
          async () =>
            (await queue.getJobState(jobId)) === 'completed' && (await queue.getJob(jobId))?.returnvalue,
          { message: `${jobId} is answered` },
        ),
      ),
    );
    await queues.close();
    expect(handoff).toEqual({
      card_id: expect.any(String),
      context_box_id: expect.any(String),
      turn_id: expect.any(String),
      run_id: expect.any(String),
    });
    expect(anchors).toMatchObject({ status: 'success', output: '→ session/start' });
  });
});

describe('without a worker', () => {
  let database: TestDatabase;
  let env: Env;
  let folder: string;

  beforeAll(async () => {
    folder = mkdtempSync(join(tmpdir(), 'boxcar-cli-'));
    database = await testDatabase();
    env = { DATABASE_URL: database.url };
    await (await prepare(env)).close();
  });

  afterAll(() => rmSync(folder, { recursive: true, force: true }));

  it('migrate reports the old and the new version, and the second time that there is nothing to do', async () => {
    await using empty = await testDatabase({ empty: true });
    const names = (await loadMigrations()).map(({ name }) => name);
    const first = await cli(['migrate'], { DATABASE_URL: empty.url });
    expect(first).toEqual({
      code: 0,
      stdout: [
        `Schema: version 0 → ${names.length}.`,
        ...names.map((name) => `  applied ${name}`),
        'The queue tables are up to date.\n',
      ].join('\n'),
      stderr: '',
    });
    const second = await cli(['migrate'], { DATABASE_URL: empty.url });
    expect(second.stdout).toContain(`The schema is at version ${names.length}; nothing to do.\n`);
  });

  it('profiles apply makes new versions only of changed profiles', async () => {
    const file = join(folder, 'p.json');
    const write = (say: string) =>
      writeFileSync(
        file,
        JSON.stringify({ name: 'p', instructions: 'x', model: 'scripted', script: [{ say }] }),
      );
    write('one');
    expect((await cli(['profiles', 'apply', '-f', file], env)).stdout).toBe(
      'profile  version\np              1  new\n',
    );
    write('two');
    const apply = () => answerOf<{ profiles: object[] }>(['profiles', 'apply', '-f', file, PROFILES], env);
    expect((await apply()).profiles.slice(0, 2)).toMatchObject([
      { name: 'p', version: 2, changed: true },
      { name: 'writer', version: 1, changed: false },
    ]);
    expect((await apply()).profiles[0]).toMatchObject({ version: 2, changed: false });
  });

  it('one invalid profile prevents all from being applied; each finding has its file, line and field', async () => {
    const good = join(folder, 'good.yaml');
    const bad = join(folder, 'bad.yaml');
    writeFileSync(good, 'name: good\ninstructions: x\nmodel: scripted\nscript: [{ say: x }]\n');
    writeFileSync(
      bad,
      'name: bad\ninstructions: 7\nmodel: scripted\nscript:\n  - say: x\n  - sing: x\n---\nname: worse\nmodel: no:such\n',
    );
    const { code, stdout, stderr } = await cli(['profiles', 'apply', '-f', good, '-f', bad], env);
    expect({ code, stdout }).toEqual({ code: 1, stdout: '' });
    expect(stderr.trimEnd().split('\n')).toEqual([
      `boxcar: profile_invalid: ${bad}:2:1: profile 'bad': instructions: must be a string, not a number`,
      `boxcar: profile_invalid: ${bad}:8:1: profile 'worse': instructions: is missing; it must be a string`,
    ]);
    const { rows } = await database.pool.query(`select from boxcar.profiles where name in ('good', 'bad')`);
    expect(rows).toHaveLength(0);
    const json = await cliHere(['profiles', 'apply', '-f', bad, '--json'], env);
    expect(JSON.parse(json.stderr).error.details.findings[0]).toMatchObject({
      file: bad,
      line: 2,
      column: 1,
      field: 'instructions',
    });
  });

  it('submit takes the arguments from stdin, and reports invalid JSON', async () => {
    const submit = (input: string) =>
      spawnSync(
        process.execPath,
        [
          ...['--conditions=@boxcar/source', '--import=tsx', join(import.meta.dirname, 'main.ts')],
          ...['submit', 'repeat', '--plugin', PLUGIN, '-', '--json'],
        ],
        { input, encoding: 'utf8', env: { PATH: process.env.PATH, ...env } },
      );
    expect(submit('{"result":"from stdin"}')).toMatchObject({
      status: 0,
      stdout: '{"repeated":"from stdin"}\n',
    });
    expect(submit('{')).toMatchObject({
      status: 1,
      stderr: expect.stringMatching(/stdin: is not valid JSON/),
    });
  });

  it('a second submission with the same key changes nothing and returns the first answer', async () => {
    const first = await answerOf<Receipt>([...launch('writer', 'x'), '--key', 'k'], env);
    const second = await cliHere([...launch('writer', 'x'), '--key', 'k'], env);
    expect(second.stdout).toContain(first.turn_id);
    expect(second.stderr).toMatch(/accepted before/);
    const other = await cliHere([...launch('writer', 'y'), '--key', 'k'], env);
    expect(other).toMatchObject({
      code: 1,
      stderr: expect.stringMatching(/^boxcar: idempotency_conflict: /),
    });
  });

  it('--timeout ends the wait, not the turn, and reports that no worker is live', async () => {
    const { code, stderr } = await cli([...launch('writer', 'x'), '--wait', '--timeout', '0.3'], env);
    expect(code).toBe(1);
    expect(stderr).toMatch(/no worker is running; start one with `boxcar worker`/);
    expect(stderr).toMatch(
      /boxcar: wait_timeout: Turn ([0-9a-f-]{36}) .* it continues; see: boxcar show \1\./,
    );
  });

  it('Ctrl-C ends the wait, not the turn', async () => {
    const child = startCli([...launch('writer', 'x'), '--wait'], env);
    await waitFor(() => child.stderr.includes('no worker is running'), { message: 'it waits' });
    await child.kill('SIGINT');
    expect(await child.exited).toEqual({ code: 130, signal: null });
    const [turnId] = /[0-9a-f-]{36}/.exec(child.stderr) ?? [];
    expect(child.stderr).toContain(`the turn continues: boxcar show ${turnId}`);
    expect(await answerOf(['show', turnId ?? ''], env)).toMatchObject({ status: 'queued' });
  });

  it.each([
    ['SIGTERM', 143],
    ['SIGHUP', 129],
  ] as const)('%s also ends only the wait, and the exit code names the signal', async (signal, code) => {
    const child = startCli([...launch('writer', 'x'), '--wait'], env);
    await waitFor(() => child.stderr.includes('no worker is running'), { message: 'it waits' });
    await child.kill(signal);
    expect(await child.exited).toEqual({ code, signal: null });
    expect(child.stderr).toContain('the turn continues: boxcar show ');
  });
});

it('with nothing but Node, every command uses one embedded Postgres, migrated, and the last command stops it', async () => {
  const home = mkdtempSync(join(tmpdir(), 'boxcar-cli-'));
  // As root, the server runs under another account, which needs access to the folder.
  chmodSync(home, 0o755);
  const env = { BOXCAR_DATA_DIR: home };
  await using worker = startCli(['worker', '--json', '--plugin', PLUGIN], env);
  await worker.line(/"event":"worker.ready"/, { deadlineMs: 90_000 });
  expect(await cli(['profiles', 'apply', '-f', PROFILES], env)).toMatchObject({ code: 0, stderr: '' });
  const result = await cli([...launch('boss', 'go'), '--wait', '--json'], env);
  expect(JSON.parse(result.stdout)).toMatchObject({ status: 'success', result: 'Hello world' });
  const pidFile = join(home, 'postgres-18/cluster/data/postmaster.pid');
  expect(existsSync(pidFile)).toBe(true);
  await worker.kill('SIGTERM');
  expect(await worker.exited).toEqual({ code: 0, signal: null });
  expect(existsSync(pidFile)).toBe(false);
  rmSync(home, { recursive: true, force: true });
});

describe('boxcar show', () => {
  let env: Env;
  let turnId: string;

  beforeAll(async () => {
    const database = await testDatabase();
    env = { DATABASE_URL: database.url };
    const stack: Stack = await prepare(env);
    await loadPlugins(stack.runtime, [PLUGIN]);
    const worker = await createWorker(stack.runtime);
    const result = await stack.runtime.submit('launch_principal', {
      profile_name: 'boss',
      instruction: 'go',
      wait: true,
    });
    turnId = String((result as { turn_id?: string }).turn_id);
    await worker.close();
    await stack.close();
  });

  it('shows a person the course of a turn, in lines of at most 80 characters', async () => {
    const { code, stdout, stderr } = await cli(['show', turnId.slice(0, 24)], env);
    expect({ code, stderr }).toEqual({ code: 0, stderr: '' });
    for (const line of stdout.split('\n')) expect([...line].length, line).toBeLessThanOrEqual(80);
    expect(stdout).toMatch(new RegExp(`^turn +${turnId}\nstatus +success\nagent +boss-`));
    for (const part of [
      /^profile +boss@1$/m,
      /^ +2 turns \(0 open\), 3 steps, tokens \d+ in, \d+ out$/m,
      /^ +1 +1 +scripted +\d+ +\d+ +\d+ +[0-9a-f]{12} +tool_calls$/m,
      /^ +1\.1 +ask_expert +success +\d+ +\{/m,
      /^ +1\.3 +nothing +failed +\d* +tool_unknown: /m,
      /^ +pack_arguments +instruction +1 +\d+ +own cards$/m,
      /^ +…[0-9a-f]{12} +task\.instruction +user +\d+ +go$/m,
      /^1 child turn\n.*\n +[0-9a-f-]{36} +success +writer +ask_expert$/m,
      /\ndeliverable\nHello world\n$/,
    ])
      expect(stdout).toMatch(part);
    expect(stdout).not.toContain('\u001b');
  });

  it('with --json prints everything in one object', async () => {
    expect(await answerOf(['show', turnId], env)).toMatchObject({
      turn_id: turnId,
      status: 'success',
      lineage: [{ turn_id: turnId }],
      steps: [{ step: 1 }, { step: 2 }],
      calls: [{ name: 'ask_expert' }, { name: 'sleep' }, { name: 'nothing' }],
      deliverable: { content: { kind: 'text', text: 'Hello world' } },
      run: { turns: 2, steps: 3 },
    });
  });
});
