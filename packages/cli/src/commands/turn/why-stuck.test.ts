import type { Stack } from '@boxcar/host/open';
import { createWorker } from '@boxcar/runtime';
import { type TestDatabase, testDatabase, waitFor } from '@boxcar/testkit';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { cliHere, type Env, prepare } from '../../testing/cli.js';

let database: TestDatabase;
let env: Env;
let stack: Stack;

beforeAll(async () => {
  database = await testDatabase();
  env = { DATABASE_URL: database.url };
  stack = await prepare(env);
  await stack.runtime.applyProfile({
    name: 'far',
    instructions: 'x',
    model: 'scripted',
    model_settings: { max_output_tokens: 4_096 },
    script: [{ say: 'x' }],
    worker_target: 'gpu',
  });
  await stack.runtime.applyProfile({
    name: 'waiter',
    instructions: 'x',
    model: 'scripted',
    tools: ['ask_expert'],
    delegation_policy: { target_profiles: ['far'] },
    script: [
      { calls: [{ tool: 'ask_expert', arguments: { expert_profile: 'far', question: 'q' } }] },
      { say: 'x' },
    ],
  });
});
afterAll(() => stack.close());

it('the chain is printed down to the pool without a worker, with the command that starts one', async () => {
  await using _worker = await createWorker(stack.runtime);
  const { turn_id: turnId } = (await stack.runtime.submit('launch_principal', {
    profile_name: 'waiter',
    instruction: 'x',
  })) as { turn_id: string };
  await waitFor(
    async () =>
      (await database.pool.query("select from boxcar.turns where id = $1 and status = 'suspended'", [turnId]))
        .rows.length === 1,
    { message: 'the turn waits' },
  );
  const { code, stdout, stderr } = await cliHere(['why-stuck', turnId], env);
  expect([code, stderr]).toEqual([3, '']);
  expect(stdout).toMatch(new RegExp(`^turn ${turnId} is suspended\\n`));
  const time = '[0-9-]{10}T[0-9:.]{12}Z';
  for (const line of [
    `\n  ${turnId} \\S+ \\(waiter@1\\)\n {4}call ask_expert waits for turn [0-9a-f-]{36}\n {4}\\(\\S+\\)\n`,
    `\n {4}since ${time}, [0-9.]+ (ms|s|min .+) ago\n {4}until ${time}, in [0-9]+ (min .+|h .+)\n`,
    `\n {4}call [0-9a-f-]{36} of ask_expert\n`,
    `\n! {3}[0-9a-f-]{36} \\S+ \\(far@1\\)\n {6}is queued, and no living worker serves pool 'gpu'\n`,
  ])
    expect(stdout).toMatch(new RegExp(line));
  expect(stdout).toContain('→ Start a worker: boxcar worker --target gpu\n');
  expect(Math.max(...stdout.split('\n').map((line) => line.length))).toBeLessThanOrEqual(80);

  const json = await cliHere(['why-stuck', turnId.replaceAll('-', ''), '--json'], env);
  expect(JSON.parse(json.stdout)).toMatchObject({
    turn_id: turnId,
    status: 'suspended',
    is_live: false,
    links: [
      {
        kind: 'child',
        level: 0,
        turn_id: turnId,
        agent: expect.any(String),
        profile: 'waiter@1',
        tool: 'ask_expert',
        is_live: true,
        since: expect.stringMatching(/^.{23}Z$/),
        until: expect.stringMatching(/^.{23}Z$/),
      },
      {
        kind: 'window',
        level: 1,
        profile: 'far@1',
        is_live: false,
        next: expect.stringContaining('--target gpu'),
      },
    ],
  });
});

it('a turn that its budget pauses is shown with a working command that raises the budget', async () => {
  const words = 'word '.repeat(400);
  await stack.runtime.applyProfile({
    name: 'poor',
    instructions: words,
    model: 'scripted',
    model_settings: { max_output_tokens: 4_096 },
    limits: { on_budget: 'pause' },
    script: [{ say: 'x' }],
  });
  const { turn_ids: turnIds } = (await stack.runtime.submit('fork_join', {
    tasks: [
      {
        target_strategy: 'new',
        target_ref: 'poor',
        instruction: 'x',
        budget: { tokens: 5_000 },
      },
    ],
    wait: false,
  })) as { turn_ids: string[] };
  const paused = turnIds[0] ?? '';
  await database.pool.query('update boxcar.budgets set limits = $1 where id = $2', [{ tokens: 100 }, paused]);
  await database.pool.query('update boxcar.turns set allotted_tokens = 100 where id = $1', [paused]);
  await database.pool.query('update boxcar.budgets set tokens_reserved = 100 where id = $1', [paused]);
  await using _worker = await createWorker(stack.runtime);
  await waitFor(
    async () =>
      (await database.pool.query("select from boxcar.waits where turn_id = $1 and kind = 'budget'", [paused]))
        .rows.length === 1,
    { message: 'the turn is paused' },
  );
  const stuck = await cliHere(['why-stuck', paused], env);
  expect([stuck.code, stuck.stderr]).toEqual([3, '']);
  const command = stuck.stdout
    .split('\n')
    .map((line) => line.trim())
    .join(' ')
    .match(/→ boxcar (budget raise [0-9a-f-]{36} --tokens) <n>/)?.[1];
  expect(command).toBe(`budget raise ${paused} --tokens`);
  // The suggested command resolves the wait.
  const raised = await cliHere([...(command ?? '').split(' '), '100000'], env);
  expect([raised.code, raised.stderr]).toEqual([0, '']);
  await waitFor(
    async () => (await cliHere(['why-stuck', paused], env)).stdout.endsWith('\nIt has ended.\n'),
    { message: 'the turn ends once its budget is raised' },
  );
});

it('a run whose tasks have their own budgets shows all of them, and a raise must name one', async () => {
  const task = (tokens: number) => ({
    target_strategy: 'new',
    target_ref: 'far',
    instruction: 'x',
    budget: { tokens },
  });
  const { turn_ids: turnIds } = (await stack.runtime.submit('fork_join', {
    tasks: [task(5_000), task(6_000)],
    wait: false,
  })) as { turn_ids: string[] };
  const { rows } = await database.pool.query<{ run_id: string }>(
    'select run_id from boxcar.turns where id = $1',
    [turnIds[1]],
  );
  const runId = rows[0]?.run_id ?? '';
  const tokensOf = async (): Promise<unknown> => {
    const shown = JSON.parse((await cliHere(['budget', 'show', runId, '--json'], env)).stdout);
    return shown.budgets.map((budget: { budget_id: string; limits: { tokens: number } }) => [
      budget.budget_id,
      budget.limits.tokens,
    ]);
  };
  const [first, second] = turnIds.toSorted();
  expect(await tokensOf()).toEqual(turnIds.map((id, index) => [id, 5_000 + 1_000 * index]).toSorted());
  const raised = await cliHere(['budget', 'raise', runId, '--tokens', '9000'], env);
  expect(raised.code).toBe(1);
  expect(raised.stderr).toContain(`(${first}, ${second})`);
  expect((await cliHere(['budget', 'raise', turnIds[1] ?? '', '--tokens', '9000'], env)).code).toBe(0);
  expect(await tokensOf()).toEqual(turnIds.map((id, index) => [id, index === 0 ? 5_000 : 9_000]).toSorted());
});

it('a turn that has ended waits for nothing, and an unknown turn is not found', async () => {
  const { turn_id: turnId } = (await stack.runtime.submit('launch_principal', {
    profile_name: 'writer',
    instruction: 'x',
  })) as { turn_id: string };
  await using _worker = await createWorker(stack.runtime);
  await waitFor(
    async () => (await cliHere(['why-stuck', turnId], env)).stdout.endsWith('\nIt has ended.\n'),
    { message: 'the turn ends' },
  );
  expect(await cliHere(['why-stuck', turnId], env)).toMatchObject({ code: 0 });
  expect(await cliHere(['why-stuck', '0198c1f2'], env)).toMatchObject({
    code: 1,
    stderr: expect.stringMatching(/^boxcar: not_found: /),
  });
});
