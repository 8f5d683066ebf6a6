import type { Stack } from '@boxcar/host/open';
import { createWorker } from '@boxcar/runtime';
import { type TestDatabase, testDatabase, waitFor } from '@boxcar/testkit';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { cliHere, type Env, prepare } from '../../testing/cli.js';

let database: TestDatabase;
let env: Env;
let stack: Stack;
let turnIds: readonly string[];

const boxcar = (...args: string[]) => cliHere(args, env);
async function answer(...args: string[]): Promise<Record<string, unknown>> {
  const { code, stdout, stderr } = await boxcar(...args, '--json');
  expect({ code, stderr }).toEqual({ code: 0, stderr: '' });
  return JSON.parse(stdout);
}
/** The cells of a table, without its header. */
const rowsOf = (stdout: string): string[][] =>
  stdout
    .trimEnd()
    .split('\n')
    .slice(1)
    .map((line) => line.trim().split(/ {2,}/));

beforeAll(async () => {
  database = await testDatabase();
  env = { DATABASE_URL: database.url };
  stack = await prepare(env);
  await stack.runtime.applyProfile({
    name: 'quick',
    instructions: 'x',
    model: 'scripted',
    script: [{ say: 'x' }],
  });
  const ask = (instruction: string, channelId?: string) =>
    stack.runtime.submit(
      'launch_principal',
      { profile_name: 'quick', instruction },
      channelId === undefined ? {} : { channelId },
    ) as unknown as Promise<{ turn_id: string }>;
  const one = await ask('Write the release notes');
  const two = await ask('Count the invoices', 'ops');
  const { turn_ids } = (await stack.runtime.submit('fork_join', {
    tasks: Array.from({ length: 12 }, (_, n) => ({
      target_strategy: 'new',
      target_ref: 'quick',
      instruction: `part ${n}`,
    })),
    wait: false,
  })) as unknown as { turn_ids: string[] };
  turnIds = [...turn_ids.toReversed(), two.turn_id, one.turn_id];
});
afterAll(() => stack.close());

it('lists say when they are empty, and that nothing is registered without a worker', async () => {
  for (const noun of ['tools', 'primitives'])
    expect(await boxcar(noun, 'ls')).toEqual({
      code: 0,
      stdout: `no worker is live, so no ${noun} are registered; start one: boxcar worker\n`,
      stderr: '',
    });
  expect((await boxcar('runs', 'ls', '--status', 'failed')).stdout).toBe('no runs\n');
});

describe('turns and runs', () => {
  beforeAll(async () => {
    await using _worker = await createWorker(stack.runtime);
    await waitFor(
      async () =>
        (await database.pool.query("select from boxcar.turns where status = 'success'")).rows.length ===
        turnIds.length,
      { message: 'all turns have ended' },
    );
  });

  it('are printed with ids that are unique in the list, and that other commands accept', async () => {
    const rows = rowsOf((await boxcar('turns', 'ls')).stdout);
    const ids = rows.map(([id = '']) => id);
    expect(turnIds.map((id, index) => id.startsWith(ids[index] ?? ' '))).toEqual(turnIds.map(() => true));
    expect(new Set(ids).size).toBe(turnIds.length);
    expect(rows[0]?.slice(1, 2)).toEqual(['success']);
    expect(rows[0]?.at(-1)).toBe('part 11');
    for (const index of [0, 5]) expect((await answer('show', ids[index] ?? '')).turn_id).toBe(turnIds[index]);
    const [[run = '', status, turns] = []] = rowsOf((await boxcar('runs', 'ls')).stdout);
    expect([status, turns]).toEqual(['12 success', '12']);
    expect((await answer('tree', run)).totals).toMatchObject({ turns: 12 });
    const [one = '', other = ''] = turnIds;
    const shared = [...one].findIndex((digit, index) => digit !== other[index]);
    expect(await boxcar('show', one.slice(0, shared))).toMatchObject({
      code: 1,
      stderr: expect.stringMatching(
        /bad_request: turn: '\S+' is the beginning of several ids \(\S{36}, \S{36}/,
      ),
    });
  });

  it('are printed with ids that are unique among turns, runs and batches, since commands accept all three', async () => {
    const [one = ''] = turnIds;
    const beside = (id: string): string => `${id.slice(0, -1)}${id.endsWith('0') ? '1' : '0'}`;
    const change = (sql: string, ...values: string[]) => database.pool.query<{ id: string }>(sql, values);
    const shownIn = async (noun: string): Promise<string | undefined> =>
      rowsOf((await boxcar(noun, 'ls', '--limit', '1')).stdout)[0]?.[0];
    await change(
      'insert into boxcar.runs (id, project_id, root_turn_id) select $1, project_id, id from boxcar.turns where id = $2',
      ...[beside(one), one],
    );
    expect(await shownIn('turns')).toBe(one);
    await change('delete from boxcar.runs where id = $1', beside(one));
    const { rows } = await change('select run_id as id from boxcar.turns where id = $1', one);
    const [{ id: run } = { id: '' }] = rows;
    await change(
      "insert into boxcar.batches select (jsonb_populate_record(b, jsonb_build_object('id', $1::text))).* from boxcar.batches b limit 1",
      beside(run),
    );
    expect(await shownIn('runs')).toBe(run);
    await change('delete from boxcar.batches where id = $1', beside(run));
  });

  it('are filtered by each filter', async () => {
    const instructionsOf = async (...flags: string[]) =>
      rowsOf((await boxcar('runs', 'ls', ...flags)).stdout).map((row) => row.at(-1));
    expect(await instructionsOf('--channel', 'ops')).toEqual(['Count the invoices']);
    expect(await instructionsOf('--text', 'RELEASE')).toEqual(['Write the release notes']);
    expect(await instructionsOf('--text', 'part 3', '--status', 'failed,success')).toEqual(['part 0']);
    expect(await instructionsOf('--profile', 'quick', '--since', '1h', '--limit', '1')).toEqual(['part 0']);
    const [, second] = (await answer('turns', 'ls')).turns as { agent: string }[];
    expect((await answer('turns', 'ls', '--agent', second?.agent ?? '')).turns).toHaveLength(1);
    expect((await boxcar('turns', 'ls', '--since', '2999-01-01')).stdout).toBe('no turns\n');
    expect((await boxcar('turns', 'ls', '--text', 'no')).stderr).toContain('no index finds this text');
  });

  it('are listed page by page', async () => {
    const first = await boxcar('turns', 'ls', '--limit', '5');
    const cursor = /5 turns shown; the next: --cursor (\S+)/.exec(first.stderr)?.[1] ?? '';
    const next = await answer('turns', 'ls', '--limit', '5', '--cursor', cursor);
    expect((next.turns as { turn_id: string }[]).map((turn) => turn.turn_id)).toEqual(turnIds.slice(5, 10));
    expect(next.next_cursor).toEqual(expect.any(String));
  });

  it('of another project are not listed; an error names its flag', async () => {
    const elsewhere = { ...env, BOXCAR_PROJECT: 'elsewhere' };
    expect(await cliHere(['runs', 'ls'], elsewhere)).toMatchObject({
      code: 1,
      stderr: expect.stringContaining("not_found: No project 'elsewhere'."),
    });
    for (const [flags, message, code] of [
      [['--status', 'done'], /bad_request: --status: 'done' must be one of queued, /, 2],
      [['--text', ' '], /bad_request: option '--text <text>' .* It must not be blank/, 2],
      [['--cursor', 'x'], /bad_request: --cursor: must be the next_cursor/, 2],
      [['--since', 'tomorrow'], /bad_request: --since: 'tomorrow' must be/, 2],
      [['--profile', 'nobody'], /not_found: No profile 'nobody'/, 1],
      [['--agent', 'nobody'], /not_found: No agent 'nobody'/, 1],
    ] as const)
      expect(await boxcar('turns', 'ls', ...flags)).toMatchObject({
        code,
        stdout: '',
        stderr: expect.stringMatching(message),
      });
    expect((await boxcar('turns', 'ls', '--limit', '0')).code).toBe(2);
  });
});

it('agents and boxes are listed, and box show accepts the printed id', async () => {
  const agents = rowsOf((await boxcar('agents', 'ls', '--profile', 'quick', '--limit', '2')).stdout);
  expect(agents.map(([name, profile, , owner]) => [name?.startsWith('quick-'), profile, owner])).toEqual([
    [true, 'quick@1', 'operator'],
    [true, 'quick@1', 'operator'],
  ]);
  const boxes = rowsOf((await boxcar('boxes', 'ls', '--agent', agents[0]?.[0] ?? '')).stdout);
  expect(boxes.map(([, kind]) => kind).sort()).toEqual(['context', 'tape']);
  const { boxes: whole } = await answer('boxes', 'ls', '--agent', agents[0]?.[0] ?? '');
  for (const [index, [id = '']] of boxes.entries())
    expect((await answer('box', 'show', id)).box_id).toBe((whole as { box_id: string }[])[index]?.box_id);
  expect(await boxcar('box', 'show', (boxes[0]?.[0] ?? '').slice(0, 8))).toMatchObject({
    code: 1,
    stderr: expect.stringMatching(/bad_request: box: '\w{8}' is the beginning of several ids \(/),
  });
});

it('tools and primitives that live workers have registered are listed with their pools', async () => {
  await using _worker = await createWorker(stack.runtime, { targets: ['', 'gpu'] });
  expect(rowsOf((await boxcar('tools', 'ls', '--text', 'tape_info')).stdout)).toEqual([]);
  expect(rowsOf((await boxcar('tools', 'ls', '--text', 'tape.info')).stdout)).toEqual([
    ['tape.info', '1', '1', 'default, gpu'],
  ]);
  const { primitives, live_workers } = await answer('primitives', 'ls', '--text', 'fork_join');
  expect([primitives, live_workers]).toEqual([
    [{ name: 'fork_join', workers: 1, doors: 0, targets: ['', 'gpu'], versions: 1 }],
    1,
  ]);
});
