import { createWorker } from '@boxcar/runtime';
import type { TurnTree } from '@boxcar/store';
import { type TestDatabase, testDatabase, waitFor } from '@boxcar/testkit';
import { afterAll, beforeAll, expect, it } from 'vitest';
import type { Stack } from '../stack.js';
import { cliHere, type Env, prepare } from '../testing/cli.js';

let database: TestDatabase;
let env: Env;
let stack: Stack;

const task = (target_ref: string) => ({ target_strategy: 'new', target_ref, instruction: 'x' });
const tasks = (...parts: readonly (readonly [profile: string, n: number])[]) =>
  parts.flatMap(([profile, n]) => Array.from({ length: n }, () => task(profile)));

beforeAll(async () => {
  database = await testDatabase();
  env = { DATABASE_URL: database.url };
  stack = await prepare(env);
  const one = { instructions: 'x', model: 'scripted', script: [{ say: 'x' }] };
  await stack.runtime.applyProfile({ ...one, name: 'quick' });
  await stack.runtime.applyProfile({ ...one, name: 'parked', worker_target: 'nowhere' });
  await stack.runtime.applyProfile({
    name: 'lead',
    instructions: 'x',
    model: 'scripted',
    tools: ['fork_join'],
    delegation_policy: { target_profiles: null },
    script: [
      { calls: [{ tool: 'fork_join', arguments: { tasks: tasks(['quick', 40], ['parked', 2]) } }] },
      { say: 'x' },
    ],
  });
});
afterAll(() => stack.close());

const runOf = async (turnId: string): Promise<string> => {
  const { rows } = await database.pool.query<{ run_id: string }>(
    'select run_id from boxcar.turns where id = $1',
    [turnId],
  );
  return rows[0]?.run_id ?? '';
};
const untilDone = (runId: string, n: number): Promise<unknown> =>
  waitFor(
    async () =>
      (
        await database.pool.query("select from boxcar.turns where run_id = $1 and status = 'success'", [
          runId,
        ])
      ).rows.length === n,
    { message: `${n} turns of the run have ended` },
  );

it('a fork_join from outside is shown with all its roots, by the id of its run; a root by its own', async () => {
  const { turn_ids: turnIds } = (await stack.runtime.submit('fork_join', {
    tasks: tasks(['quick', 30], ['parked', 1]),
    wait: false,
  })) as { turn_ids: string[] };
  const runId = await runOf(turnIds[0] ?? '');
  await using _worker = await createWorker(stack.runtime);
  await untilDone(runId, 30);
  const json = await cliHere(['tree', runId, '--json'], env);
  expect([json.code, json.stderr]).toEqual([0, '']);
  const tree = JSON.parse(json.stdout) as TurnTree;
  expect(tree).toMatchObject({
    run_id: runId,
    root_turn_id: turnIds[0],
    roots: { by_status: { success: 30, queued: 1 }, hidden: {} },
    totals: { turns: 31, open: 1 },
    batches: [
      {
        kind: 'fork_join',
        turn_id: null,
        status: 'running',
        total: 31,
        remaining: 1,
        succeeded: 30,
        is_awaited: false,
        hidden: { success: 11 },
      },
    ],
  });
  expect(tree.nodes).toHaveLength(20);
  expect(tree.nodes.map(({ turn_id }) => turn_id)).toContain(turnIds[30]);
  const { stdout } = await cliHere(['tree', runId], env);
  const [, , , ...lines] = stdout.trimEnd().split('\n');
  expect(lines).toEqual([
    'fork_join: 30 of 31 done, nobody waits',
    expect.stringMatching(/^├─ parked-\S+ · fork_join +queued .*no worker for 'nowhere'$/),
    '└─ + 30 done',
  ]);
  const root = JSON.parse((await cliHere(['tree', turnIds[3] ?? '', '--json'], env)).stdout) as TurnTree;
  expect(root.nodes.map(({ turn_id }) => turn_id)).toEqual([turnIds[3]]);
  expect(root.totals.turns).toBe(1);
});

it('a turn that joined many shows how far they are, and once all have ended the exit code says how', async () => {
  const { turn_id: turnId } = (await stack.runtime.submit('launch_principal', {
    profile_name: 'lead',
    instruction: 'x',
  })) as { turn_id: string };
  const runId = await runOf(turnId);
  await using _worker = await createWorker(stack.runtime);
  await untilDone(runId, 40);
  const [, , , ...lines] = (await cliHere(['tree', runId], env)).stdout.trimEnd().split('\n');
  expect(lines).toEqual([
    expect.stringMatching(/^lead-\S+ · launch_principal +suspended .*fork_join 40\/42$/),
    '└─ fork_join: 40 of 42 done',
    expect.stringMatching(/^ {3}├─ parked-/),
    expect.stringMatching(/^ {3}├─ parked-/),
    '   └─ + 40 done',
  ]);
  await stack.runtime.submit('cancel', { run_id: runId });
  const ended = await cliHere(['tree', runId], env);
  expect(ended.code).toBe(3);
  expect(ended.stdout).toContain('fork_join: 42 of 42 done, 2 failed');
});
