import { isFinal, type KernelError, parseId, type TurnStatus } from '@boxcar/kernel';
import { claim } from '@boxcar/store';
import { waitFor } from '@boxcar/testkit';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { newId } from '../lib/new-id.js';
import type { TurnResult } from '../queue/turn-result.js';
import { statementsOf } from '../testing/count-statements.js';
import { type Harness, harness } from '../testing/harness.js';
import { checkInvariants } from '../testing/invariants.js';
import { rowCounts } from '../testing/row-counts.js';

let h: Harness;
const OTHER_PROJECT = newId();
const OTHER_OPERATOR = newId();

const ANYONE = { delegation_policy: { target_profiles: null } };

beforeAll(async () => {
  h = await harness();
  await h.profile('late', [{ say: 'late' }], { worker_target: 'later' });
  await h.profile('absent', [{ say: 'never' }], { worker_target: 'nowhere' });
  const ask = (target: string, wait = true) => ({
    tool: 'delegate_async',
    arguments: { target_strategy: 'new', target_ref: target, instruction: 'go', wait },
  });
  await h.profile('boss', [{ calls: [ask('absent'), ask('absent', false)] }, { say: 'went on' }], {
    tools: ['delegate_async'],
    ...ANYONE,
  });
  await h.profile('chief', [{ calls: [ask('boss')] }, { say: '{{results/delegate_async/status}}' }], {
    tools: ['delegate_async'],
    ...ANYONE,
  });
  await h.profile('starter', [{ calls: [ask('absent', false)] }, { say: 'started' }], {
    tools: ['delegate_async'],
    ...ANYONE,
  });
  await h.profile(
    'fickle',
    [
      { calls: [ask('absent', false)] },
      { calls: [{ tool: 'cancel', arguments: { turn_id: '{{results/delegate_async/turn_id}}' } }] },
      { say: '{{results/cancel/turn_ids}}' },
    ],
    { tools: ['delegate_async', 'cancel'], ...ANYONE },
  );
  await h.worker();
});
afterAll(() => h[Symbol.asyncDispose]());

const launch = async (profile: string, options: { parentTurnId?: string } = {}): Promise<string> => {
  const receipt = await h.runtime.submit(
    'launch_principal',
    { profile_name: profile, instruction: 'go' },
    options,
  );
  return (receipt as unknown as TurnResult).turn_id;
};
const cancel = async (args: object, options: object = {}) =>
  (await h.runtime.submit('cancel', args, options)) as {
    status: string;
    turn_ids: string[];
    turn_count: number;
    run_id: string;
  };
const rowOf = async (turnId: string) => {
  const [row] = await h.rows<{
    status: TurnStatus;
    error: { code: string; message: string } | null;
    run_id: string;
    agent_id: string;
    step_count: number;
  }>('select * from boxcar.turns where id = $1', [turnId]);
  if (row === undefined) throw new Error(`no turn ${turnId}`);
  return row;
};
const below = (turnId: string) =>
  h.rows<{ id: string; status: TurnStatus }>(
    `with recursive t as (select id, status from boxcar.turns where parent_turn_id = $1
       union all select c.id, c.status from t join boxcar.turns c on c.parent_turn_id = t.id) select * from t order by id`,
    [turnId],
  );

test('a canceled turn ends with all turns below it, callers that wait get that end as the result, and no call stays open', async () => {
  const root = await launch('chief');
  const tree = await waitFor(
    async () => {
      const turns = await below(root);
      return turns.length === 3 && turns[0]?.status === 'suspended' ? turns : undefined;
    },
    { message: 'the boss waits below the chief' },
  );
  const answer = await cancel({ turn_id: tree[0]?.id, reason: 'enough' });
  expect(answer).toMatchObject({ status: 'canceled', turn_count: 3 });
  expect([...answer.turn_ids].sort()).toEqual(tree.map(({ id }) => id));
  const result = await h.runtime.waitForTurn(root, { timeoutMs: 60_000 });
  expect(result).toMatchObject({ status: 'success', result: 'canceled' });
  for (const { id } of tree) {
    expect(await rowOf(id)).toMatchObject({
      status: 'canceled',
      error: { code: 'canceled', message: expect.stringContaining('Canceled: enough') },
    });
    expect(await h.runtime.getTurn(id)).toMatchObject({ result: { error: { code: 'canceled' } } });
  }
  const open = await h.rows(
    "select k.id from boxcar.tool_calls k join boxcar.turns t on t.id = k.turn_id where k.status = 'pending' and t.ended_at is not null",
  );
  expect(open).toEqual([]);
  await checkInvariants(h.database.pool, { isSettled: false });
});

test('turns that share a tape append their ends to it one after the other', async () => {
  const root = await launch('absent');
  await h.runtime.submit('provision_agent', { action: 'ensure', agent_id: 'shared', profile_name: 'absent' });
  for (let n = 0; n < 3; n++)
    await h.runtime.submit(
      'delegate_async',
      { target_strategy: 'reuse', target_ref: 'shared', instruction: `task ${n}` },
      { parentTurnId: root },
    );
  expect(await cancel({ turn_id: root })).toMatchObject({ turn_count: 4 });
  expect((await below(root)).map(({ status }) => status)).toEqual(['canceled', 'canceled', 'canceled']);
  await checkInvariants(h.database.pool, { isSettled: false });
});

test('a cancel takes the same number of statements for a tree of any size', async () => {
  // Runs without a worker, because the statements of its sweeps would be counted too.
  await using quiet = await harness();
  await quiet.profile('absent', [{ say: 'never' }], { worker_target: 'nowhere' });
  const start = async (options: { parentTurnId?: string } = {}): Promise<string> =>
    (
      (await quiet.runtime.submit(
        'launch_principal',
        { profile_name: 'absent', instruction: 'go' },
        options,
      )) as unknown as TurnResult
    ).turn_id;
  // This first cancel fills the cache of caller facts.
  await quiet.runtime.submit('cancel', { turn_id: await start() });
  const small = await start();
  const large = await start();
  for (let n = 0; n < 10; n++) {
    const child = await start({ parentTurnId: large });
    await Promise.all(Array.from({ length: 10 }, () => start({ parentTurnId: child })));
  }
  // Background checks for free room are not counted.
  const isOwn = (text: string): boolean => !/promote|recursive room|has_queued|^(begin|commit)\b/.test(text);
  const statements = async (turnId: string): Promise<readonly string[]> => {
    const texts = await statementsOf(quiet.database, () =>
      quiet.runtime.submit('cancel', { turn_id: turnId }),
    );
    const labels = texts.filter(isOwn).map((text) => /\/\* (\S+) \*\//.exec(text)?.[1] ?? text);
    // A turn that ends alone has its own statement.
    return labels.map((label) => label.replace('commit_one', 'commit'));
  };
  const ofOne = await statements(small);
  expect(await statements(large)).toEqual(ofOne);
  const open = await quiet.rows('select id from boxcar.turns where ended_at is null');
  expect(open).toEqual([]);
  await checkInvariants(quiet.database.pool);
});

test('a cancel of a run also ends the turns that an ended turn has left open; a cancel of the ended turn is refused', async () => {
  const root = await launch('starter');
  await h.runtime.waitForTurn(root, { timeoutMs: 60_000 });
  const [child] = await below(root);
  await expect(cancel({ turn_id: root })).rejects.toMatchObject({
    code: 'turn_ended',
    details: { open_turn_ids: [child?.id] },
  });
  expect(await rowOf(child?.id ?? '')).toMatchObject({ status: 'queued' });
  const { run_id } = await rowOf(root);
  expect(await cancel({ run_id })).toMatchObject({ turn_ids: [child?.id] });
  await expect(cancel({ run_id })).rejects.toMatchObject({ code: 'turn_ended' });
  expect(await rowOf(root)).toMatchObject({ status: 'success' });
});

describe('a run with several roots', () => {
  const task = (target: string) => ({ target_strategy: 'new', target_ref: target, instruction: 'go' });
  const fork = async (targets: readonly string[]) =>
    (await h.runtime.submit('fork_join', { tasks: targets.map(task), wait: false })) as unknown as {
      batch_id: string;
      turn_ids: string[];
    };

  test('is ended completely by its id, with the turns that its ended roots have started', async () => {
    const { turn_ids } = await fork(['absent', 'starter', 'absent']);
    const [first = '', starter = '', third = ''] = turn_ids;
    await h.runtime.waitForTurn(starter, { timeoutMs: 60_000 });
    const [left] = await below(starter);
    const { run_id } = await rowOf(first);
    const answer = await cancel({ run_id });
    expect([...answer.turn_ids].sort()).toEqual([first, third, left?.id].sort());
    const open = await h.rows('select id from boxcar.turns where run_id = $1 and ended_at is null', [run_id]);
    expect(open).toEqual([]);
    expect(await rowOf(third)).toMatchObject({ status: 'canceled', error: { code: 'canceled' } });
    await expect(cancel({ run_id })).rejects.toMatchObject({ code: 'turn_ended' });
    await checkInvariants(h.database.pool, { isSettled: false });
  });

  test('is not reported as ended while a root other than the first is open', async () => {
    const { turn_ids } = await fork(['absent', 'absent']);
    const [first = '', second = ''] = turn_ids;
    await cancel({ turn_id: first });
    const { run_id } = await rowOf(first);
    expect(await cancel({ run_id })).toMatchObject({ turn_count: 1, turn_ids: [second] });
    expect(await rowOf(second)).toMatchObject({ status: 'canceled' });
  });

  test('ends together with every turn that is started under any of its roots at the same moment', async () => {
    const { turn_ids } = await fork(['absent', 'absent', 'absent']);
    const { run_id } = await rowOf(turn_ids[0] ?? '');
    const spawns = turn_ids.map((parentTurnId) =>
      launch('absent', { parentTurnId }).then(
        () => 'filed',
        (error: KernelError) => error.code,
      ),
    );
    const [answer, ...outcomes] = await Promise.all([cancel({ run_id }), ...spawns]);
    expect(outcomes.every((outcome) => outcome === 'filed' || outcome === 'turn_ended')).toBe(true);
    expect(answer.turn_count).toBe(3 + outcomes.filter((outcome) => outcome === 'filed').length);
    const open = await h.rows('select id from boxcar.turns where run_id = $1 and ended_at is null', [run_id]);
    expect(open).toEqual([]);
  });

  test('cannot be ended by one of its own turns, under any root', async () => {
    const { turn_ids } = await fork(['absent', 'absent']);
    const { run_id } = await rowOf(turn_ids[0] ?? '');
    await expect(cancel({ run_id }, { parentTurnId: turn_ids[1] })).rejects.toMatchObject({
      code: 'turn_not_authorized',
    });
    expect(await rowOf(turn_ids[0] ?? '')).toMatchObject({
      status: expect.stringMatching(/queued|dispatched/),
    });
  });
});

describe('a cancel is refused, with nothing written, when it', () => {
  const refusals: [string, () => Promise<[object, object?]>, object][] = [
    [
      'names a turn and a run',
      async () => [{ turn_id: await launch('absent'), run_id: newId() }],
      { code: 'bad_request' },
    ],
    ['names nothing', async () => [{ reason: 'x' }], { code: 'bad_request' }],
    ['has a blank reason', async () => [{ turn_id: newId(), reason: ' ' }], { code: 'bad_request' }],
    [
      'has an id that is not valid',
      async () => [{ turn_id: 'the last one' }],
      { code: 'bad_request', details: { field: 'arguments.turn_id' } },
    ],
    ['has an unknown key', async () => [{ turn_id: newId(), force: true }], { code: 'bad_request' }],
    ['names an unknown turn', async () => [{ turn_id: newId() }], { code: 'not_found' }],
    ['names an unknown run', async () => [{ run_id: newId() }], { code: 'not_found' }],
    [
      'names a turn by the id of its run',
      async () => [{ turn_id: (await rowOf(await launch('absent'))).run_id }],
      { code: 'not_found' },
    ],
    [
      'names a turn that has ended',
      async () => {
        const root = await launch('starter');
        await h.runtime.waitForTurn(root, { timeoutMs: 60_000 });
        return [{ turn_id: root }];
      },
      { code: 'turn_ended' },
    ],
    [
      'names a turn of another project',
      async () => {
        await h.rows(
          `insert into boxcar.projects (id, name, operator_agent_id, bootstrap_card_id) values ($1, 'other', $2, '00000000-0000-7000-8000-000000000003')`,
          [OTHER_PROJECT, OTHER_OPERATOR],
        );
        await h.rows("insert into boxcar.agents (id, project_id, name) values ($1, $2, 'operator')", [
          OTHER_OPERATOR,
          OTHER_PROJECT,
        ]);
        return [{ turn_id: await launch('absent') }, { projectId: 'other' }];
      },
      { code: 'not_found' },
    ],
    [
      'names a turn that the agent has not started',
      async () => {
        const root = await launch('absent');
        const stranger = await launch('absent');
        return [{ turn_id: root }, { sourceAgentId: (await rowOf(stranger)).agent_id }];
      },
      { code: 'turn_not_authorized' },
    ],
    [
      'names the turn of the caller itself',
      async () => {
        const root = await launch('absent');
        return [{ turn_id: root }, { sourceAgentId: (await rowOf(root)).agent_id, parentTurnId: root }];
      },
      { code: 'turn_not_authorized' },
    ],
  ];
  test.each(refusals)('%s', async (_what, prepare, error) => {
    const [args, options] = await prepare();
    const before = await rowCounts(h.database.pool);
    await expect(cancel(args, options)).rejects.toMatchObject(error);
    expect(await rowCounts(h.database.pool)).toEqual(before);
  });
});

test('an agent cancels a turn that it has started, by a tool call, and sees which turns have ended', async () => {
  const root = await launch('fickle');
  const result = await h.runtime.waitForTurn(root, { timeoutMs: 60_000 });
  const [child] = await below(root);
  expect(child).toMatchObject({ status: 'canceled' });
  expect(result).toMatchObject({ status: 'success', result: JSON.stringify([child?.id]) });
  await checkInvariants(h.database.pool, { isSettled: false });
});

test('the same cancel, twice at once with the same key, ends the turn once, and both callers get the first answer', async () => {
  const root = await launch('absent');
  const [first, ...others] = await Promise.all(
    Array.from({ length: 6 }, () => cancel({ turn_id: root }, { idempotencyKey: `stop ${root}` })),
  );
  expect(first).toMatchObject({ turn_ids: [root] });
  for (const answer of others) expect(answer).toEqual(first);
});

test('a queued child of a canceled turn never starts, whatever its ring and its sweep do', async () => {
  const root = await launch('absent');
  const child = await launch('late', { parentTurnId: root });
  await cancel({ turn_id: root });
  const [row] = await h.rows<{ epoch: number }>('select epoch from boxcar.turns where id = $1', [child]);
  const worker = await h.worker({ targets: ['later'] });
  // A later turn of the same target has ended, so the worker has checked its queue.
  const other = await launch('late');
  expect(await h.runtime.waitForTurn(other, { timeoutMs: 60_000 })).toMatchObject({ status: 'success' });
  for (const epoch of [0, 1, 2])
    expect(await claim(h.database.pool, [{ turnId: parseId(child, 'turn'), epoch }], worker.id)).toEqual([
      { outcome: 'stale' },
    ]);
  expect(await h.rows('select * from boxcar.steps where turn_id = $1', [child])).toEqual([]);
  expect(await rowOf(child)).toMatchObject({ status: 'canceled', epoch: row?.epoch, start_position: null });
});

test('a new turn cannot be started below a canceled turn', async () => {
  const root = await launch('absent');
  await cancel({ turn_id: root });
  await expect(launch('absent', { parentTurnId: root })).rejects.toMatchObject({ code: 'turn_ended' });
});

test('cancels, spawns and ends at the same time leave no turn open below a canceled turn, and end each turn once', async () => {
  for (let round = 0; round < 12; round++) {
    const root = await launch(round % 2 === 0 ? 'absent' : 'chief');
    const spawns = Array.from({ length: 6 }, () =>
      launch(round % 3 === 0 ? 'starter' : 'absent', { parentTurnId: root }).catch((error: unknown) => error),
    );
    const victims = (await Promise.race([Promise.all(spawns.slice(0, 1)), spawns[1]])) ?? [];
    const first = [victims].flat()[0];
    await Promise.allSettled([
      cancel({ turn_id: root }),
      typeof first === 'string' ? cancel({ turn_id: first }) : undefined,
      ...spawns,
    ]);
    await waitFor(async () => isFinal((await rowOf(root)).status), { message: 'the root has ended' });
    const tree = await below(root);
    if ((await rowOf(root)).status === 'canceled')
      expect(tree.filter(({ status }) => !isFinal(status))).toEqual([]);
    for (const spawn of await Promise.all(spawns))
      expect(
        typeof spawn === 'string' ? tree.some(({ id }) => id === spawn) : (spawn as KernelError).code,
      ).toBeOneOf([true, 'turn_ended']);
  }
  await checkInvariants(h.database.pool, { isSettled: false });
});
