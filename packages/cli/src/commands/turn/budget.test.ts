import { writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { parseConfig } from '@boxcar/host/config';
import { openStack, type Stack } from '@boxcar/host/open';
import { createWorker, type Worker } from '@boxcar/runtime';
import { type TestDatabase, testDatabase, waitFor } from '@boxcar/testkit';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { type CliResult, cliHere } from '../../testing/cli.js';

let database: TestDatabase;
let stack: Stack;
let env: Record<string, string>;
let worker: Worker;
let turnId: string;

beforeAll(async () => {
  database = await testDatabase();
  const prices = join(tmpdir(), `prices-${process.pid}.json`);
  await writeFile(prices, JSON.stringify({ scripted: { input: 2_000_000, output: 10_000_000 } }));
  env = { DATABASE_URL: database.url, BOXCAR_PRICES: prices };
  stack = await openStack(parseConfig(env), { migrate: true });
  const usage = { inputTokens: 1_000, outputTokens: 100 };
  await stack.runtime.applyProfile({
    name: 'saver',
    instructions: 'You save.',
    model: 'scripted',
    model_settings: { max_output_tokens: 200 },
    script: [
      {
        calls: [
          {
            tool: 'create_box',
            arguments: { cards: [{ type: 'note', role: 'user', content: { kind: 'text', text: 'x' } }] },
          },
        ],
        usage,
      },
      { say: 'done', usage },
    ],
    tools: ['create_box'],
    limits: { on_budget: 'pause' },
  });
  worker = await createWorker(stack.runtime, { sweepMs: 200 });
  const receipt = (await stack.runtime.submit('launch_principal', {
    profile_name: 'saver',
    instruction: 'go',
    budget: { tokens: 1_200, cost_usd: 1 },
  })) as { turn_id: string };
  turnId = receipt.turn_id;
  await waitFor(async () => (await database.pool.query('select from boxcar.waits')).rowCount === 1, {
    message: 'the turn waits for its budget',
  });
});
afterAll(async () => {
  await worker.close({ graceMs: 1_000 });
  await stack.close();
  await database.close();
});

const boxcar = (...args: string[]): Promise<CliResult> => cliHere(args, env);

it('boxcar budget shows limits, use and the rest, by run or turn, also as JSON', async () => {
  const { code, stdout } = await boxcar('budget', 'show', turnId);
  expect(code).toBe(0);
  expect(stdout).toMatch(/1 turn waiting for more/);
  expect(stdout).toMatch(/tokens +1,200 +1,100 +\d+ +\d+/);
  // 1,000 tokens at $2 and 100 at $10 per million.
  expect(stdout).toMatch(/cost +\$1\.00 +\$0\.003 /);
  const json = JSON.parse((await boxcar('budget', 'show', turnId, '--json')).stdout);
  expect(json.budgets).toMatchObject([
    {
      budget_id: json.run_id,
      limits: { tokens: 1_200, cost_micros: 1_000_000 },
      tokens: 1_100,
      cost_micros: 3_000,
      paused_turns: 1,
    },
  ]);
});

it('show and tree contain the budget and the cost of the turn', async () => {
  const shown = await boxcar('show', turnId);
  expect(shown.stdout).toMatch(/used +tokens 1,000 in, 100 out, \$0\.003/);
  expect(shown.stdout).toMatch(/tokens +1,200 +1,100/);
  const tree = JSON.parse((await boxcar('tree', turnId, '--json')).stdout);
  expect(tree).toMatchObject({
    totals: { cost_micros: 3_000, unpriced_steps: 0 },
    budgets: [{ limits: { tokens: 1_200 }, tokens: 1_100 }],
    nodes: [
      { wait: { kind: 'budget' }, cost_micros: 3_000, subtree: { input_tokens: 1_000, cost_micros: 3_000 } },
    ],
  });
});

it('an invalid raise is refused with the reason', async () => {
  const lower = await boxcar('budget', 'raise', turnId, '--tokens', '1000');
  expect(lower).toMatchObject({ code: 1, stdout: '' });
  expect(lower.stderr).toMatch(/budget\.tokens: must be above the 1200/);
  expect((await boxcar('budget', 'raise', turnId, '--steps', '9')).stderr).toMatch(/does not limit this/);
  expect((await boxcar('budget', 'raise', turnId)).stderr).toMatch(/give a limit to raise: --tokens/);
  expect((await boxcar('budget', 'raise', turnId, '--tokens', '-5')).code).toBe(2);
});

it('a raise lets the waiting turn continue to its end', async () => {
  const { code, stdout } = await boxcar('budget', 'raise', turnId, '--tokens', '20000');
  expect(code).toBe(0);
  expect(stdout).toMatch(/is raised; 1 waiting turn woken/);
  expect(await stack.runtime.waitForTurn(turnId, { timeoutMs: 60_000 })).toMatchObject({ result: 'done' });
});

it('a run without a budget is reported as such', async () => {
  const { turn_id } = (await stack.runtime.submit('launch_principal', {
    profile_name: 'saver',
    instruction: 'go',
  })) as { turn_id: string };
  expect(await boxcar('budget', 'show', turn_id)).toMatchObject({ code: 3 });
  expect((await boxcar('budget', 'raise', turn_id, '--turns', '5')).stderr).toMatch(/has no budget/);
});

it('a price file that cannot be read is reported together with the other settings', async () => {
  expect(() => parseConfig({ BOXCAR_PRICES: '/nowhere.json', BOXCAR_CONCURRENCY: '0' })).toThrow(
    /BOXCAR_PRICES: cannot be read.*; BOXCAR_CONCURRENCY|BOXCAR_CONCURRENCY.*; BOXCAR_PRICES: cannot be read/,
  );
});
