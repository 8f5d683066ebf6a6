import type { Stack } from '@boxcar/host/open';
import { createWorker } from '@boxcar/runtime';
import type { TurnTree } from '@boxcar/store/report';
import { type TestDatabase, testDatabase, waitFor } from '@boxcar/testkit';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { cliHere, type Env, prepare } from '../../testing/cli.js';

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

it('a fork_join from outside is shown with all its roots by the id of its run, and a root by its own id', async () => {
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
    'fork_join: 30 of 31 done, no turn waits',
    expect.stringMatching(/^├─ parked-\S+ · fork_join +queued .*no worker for 'nowhere'$/),
    '└─ + 30 done',
  ]);
  const root = JSON.parse((await cliHere(['tree', turnIds[3] ?? '', '--json'], env)).stdout) as TurnTree;
  expect(root.nodes.map(({ turn_id }) => turn_id)).toEqual([turnIds[3]]);
  expect(root.totals.turns).toBe(1);
});

it('a turn that joined many shows their progress, and after their end the exit code shows the outcome', async () => {
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

it('the id of a batch shows its turns below its line, and their run; the id of a turn shows the turns below it', async () => {
  const other = { deadline_seconds: 3600 };
  await stack.runtime.applyProfile({
    name: 'pair',
    instructions: 'x',
    model: 'scripted',
    tools: ['fork_join'],
    delegation_policy: { target_profiles: null },
    script: [
      {
        calls: [
          { tool: 'fork_join', arguments: { tasks: tasks(['quick', 1], ['parked', 1]), ...other } },
          { tool: 'fork_join', arguments: { tasks: tasks(['parked', 1]), ...other } },
        ],
      },
      { say: 'x' },
    ],
  });
  const lead = (await stack.runtime.submit('launch_principal', {
    profile_name: 'pair',
    instruction: 'x',
    budget: { turns: 20 },
  })) as { turn_id: string; run_id: string };
  await using _worker = await createWorker(stack.runtime);
  await untilDone(lead.run_id, 1);
  const whole = JSON.parse((await cliHere(['tree', lead.run_id, '--json'], env)).stdout);
  expect(whole.of).toEqual({ kind: 'run', id: lead.run_id });
  const ofTwo = (whole as TurnTree).batches.find(({ total }) => total === 2);
  const children = (whole as TurnTree).nodes.filter(({ batch_id: id }) => id === ofTwo?.batch_id);
  const shown = await cliHere(['tree', ofTwo?.batch_id ?? '', '--json'], env);
  const tree = JSON.parse(shown.stdout);
  expect(tree.of).toEqual({ kind: 'batch', id: ofTwo?.batch_id });
  expect(tree).toMatchObject({ run_id: lead.run_id, totals: { turns: 2 } });
  expect((tree as TurnTree).nodes.map(({ turn_id }) => turn_id)).toEqual(
    children.map(({ turn_id }) => turn_id),
  );
  const text = (await cliHere(['tree', ofTwo?.batch_id ?? ''], env)).stdout.trimEnd().split('\n');
  expect(text.slice(0, 2)).toEqual([`run ${lead.run_id}`, `batch ${ofTwo?.batch_id} and the turns below it`]);
  expect(text.slice(-3)).toEqual([
    'fork_join: 1 of 2 done',
    expect.stringMatching(/^├─ quick-/),
    expect.stringMatching(/^└─ parked-/),
  ]);
  const turn = (await cliHere(['tree', lead.turn_id], env)).stdout.split('\n');
  expect(turn.slice(0, 2)).toEqual([`run ${lead.run_id}`, `turn ${lead.turn_id} and the turns below it`]);
});

it('a batch that joins turns of one run is shown, and a batch of several runs is refused with their ids', async () => {
  const start = async (parent?: string) =>
    (await stack.runtime.submit(
      'launch_principal',
      { profile_name: 'parked', instruction: 'x' },
      parent === undefined ? {} : { parentTurnId: parent },
    )) as { turn_id: string; run_id: string };
  const first = await start();
  const [below, other] = [await start(first.turn_id), await start()];
  const join = async (...turns: readonly { turn_id: string }[]) =>
    (await stack.runtime.accept('collect', { turn_ids: turns.map(({ turn_id }) => turn_id) }))
      .awaitedBatchId ?? '';
  const shown = await cliHere(['tree', await join(below, first), '--json'], env);
  const tree = JSON.parse(shown.stdout) as TurnTree;
  expect(tree.totals.turns).toBe(2);
  expect(tree.nodes.map(({ turn_id }) => turn_id)).toEqual([first.turn_id, below.turn_id]);
  const refused = await cliHere(['tree', await join(below, other)], env);
  expect(refused.code).toBe(1);
  expect(refused.stderr).toContain('joins turns of 2 runs');
  for (const { run_id: id } of [first, other]) expect(refused.stderr).toContain(id);
});

it('ids are printed with the shortest unique prefix in the whole database, and commands accept them', async () => {
  const made = (await stack.runtime.submit('fork_join', {
    tasks: tasks(['parked', 40]),
    budget: { turns: 50 },
    wait: false,
  })) as { batch_id: string; turn_ids: string[]; run_id: string };
  const { stdout } = await cliHere(['tree', made.run_id, '--ids'], env);
  const lines = stdout.trimEnd().split('\n');
  const batchId = /^fork_join: .*, batch (\S+)$/.exec(lines[4] ?? '')?.[1] ?? '';
  expect(made.batch_id).toMatch(new RegExp(`^${batchId}`));
  const ids = lines.flatMap((line) => / queued +([0-9a-f-]+)$/.exec(line)?.[1] ?? []);
  expect(ids).toHaveLength(20);
  const budgetId = /^budget (\S+):/.exec(lines[2] ?? '')?.[1] ?? '';
  const all = [...made.turn_ids, made.batch_id, made.run_id];
  for (const id of [...ids, batchId, budgetId]) {
    expect(id.length).toBeLessThan(36);
    expect(all.filter((whole) => whole.startsWith(id))).toHaveLength(1);
  }
  const [short = ''] = ids;
  const [whole] = made.turn_ids.filter((id) => id.startsWith(short));
  for (const command of ['tree', 'show', 'why-stuck', 'cancel'])
    expect([command, (await cliHere([command, short], env)).stderr]).toEqual([command, '']);
  const [canceled] = (
    await database.pool.query<{ id: string }>(
      "select id from boxcar.turns where status = 'canceled' and id = $1",
      [whole],
    )
  ).rows;
  expect(canceled?.id).toBe(whole);
  expect((await cliHere(['tree', batchId, '--json'], env)).stdout).toContain(made.batch_id);
  expect((await cliHere(['budget', 'show', budgetId], env)).stdout).toContain(made.run_id);
});
