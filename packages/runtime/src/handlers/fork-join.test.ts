import { type AgentId, type JsonValue, KernelError, type TurnId } from '@boxcar/kernel';
import type { ScriptedFunction } from '@boxcar/llm';
import { waitFor } from '@boxcar/testkit';
import { beforeEach, describe, expect, test } from 'vitest';
import { z } from 'zod';
import { newId } from '../lib/new-id.js';
import { Sweeper } from '../sweep/sweeper.js';
import { statementsToAccept } from '../testing/count-statements.js';
import { type Harness, harness } from '../testing/harness.js';
import { checkInvariants } from '../testing/invariants.js';
import { type RecordingModel, recordingModel } from '../testing/recording-model.js';
import { rowCounts } from '../testing/row-counts.js';

interface BatchAnswer {
  readonly batch_id: string;
  readonly status: string;
  readonly turn_ids: TurnId[];
  readonly results: {
    task_index: number;
    status: string;
    turn_id: TurnId;
    agent_id: AgentId;
    output_box_id: string;
    summary?: JsonValue;
    error?: { code: string };
  }[];
}

let h: Harness;
let model: RecordingModel;
const functions: Record<string, ScriptedFunction> = {};

beforeEach(async () => {
  model = recordingModel(functions);
  h = await harness({ model });
  return async () => {
    expect(model.findings()).toEqual([]);
    await h[Symbol.asyncDispose]();
  };
});

const ANYONE = { delegation_policy: { target_profiles: null } };
const submit = async (primitive: string, args: unknown, options = {}): Promise<BatchAnswer> =>
  (await h.runtime.submit(primitive, args, options)) as unknown as BatchAnswer;
const task = (target_ref: string, rest = {}) => ({
  target_strategy: 'new',
  target_ref,
  instruction: 'go',
  ...rest,
});
const parent = (name: string, args: JsonValue, more: JsonValue[] = []) =>
  h.profile(name, [{ calls: [{ tool: 'fork_join', arguments: args }] }, ...more, { say: 'done' }], {
    tools: ['fork_join', 'collect', 'delegate_async'],
    ...ANYONE,
  });
const launch = async (profile_name: string): Promise<TurnId> =>
  ((await h.runtime.submit('launch_principal', { profile_name, instruction: 'go' })) as { turn_id: TurnId })
    .turn_id;
const end = (turnId: string) => h.runtime.waitForTurn(turnId, { timeoutMs: 60_000 });
/** The result of the turn's nth call, as its model saw it. */
const shown = async (turnId: string, n = 0) => {
  const rows = await h.rows<{ content: { status: string; result: JsonValue; error?: JsonValue } }>(
    `select c.content from boxcar.tool_calls k join boxcar.cards c on c.id = k.result_card_id where k.turn_id = $1 order by k.step, k.ordinal`,
    [turnId],
  );
  return rows[n]?.content as unknown as { status: string; result: BatchAnswer; error?: { code: string } };
};
async function refusal(work: Promise<unknown>): Promise<KernelError> {
  const thrown: unknown = await work.then(
    () => undefined,
    (error: unknown) => error,
  );
  expect(thrown).toBeInstanceOf(KernelError);
  return thrown as KernelError;
}

describe('fork_join', () => {
  test('gives a parent the results of all its children as one answer, in the order of the tasks', async () => {
    await h.profile('child', [{ say: 'made {{instruction}}' }]);
    await parent('lead', {
      tasks: ['a', 'b', 'c'].map((name) => task('child', { instruction: name })),
    });
    await h.worker();
    const turnId = await launch('lead');
    expect(await end(turnId)).toMatchObject({ status: 'success', result: 'done' });
    const { status, result } = await shown(turnId);
    expect(status).toBe('success');
    expect(result.status).toBe('success');
    expect(result.results.map(({ task_index, status, summary }) => [task_index, status, summary])).toEqual([
      [0, 'success', 'made a'],
      [1, 'success', 'made b'],
      [2, 'success', 'made c'],
    ]);
    await checkInvariants(h.database.pool);
  });

  test('with one failed child of three still returns the results of the others', async () => {
    await h.profile('child', [{ say: 'fine' }]);
    await h.profile('broken', [{ fail: { status: 400, message: 'no' } }]);
    await parent('lead', { tasks: [task('child'), task('broken'), task('child')] });
    await h.worker();
    const turnId = await launch('lead');
    await end(turnId);
    expect((await shown(turnId)).result).toMatchObject({
      status: 'partial',
      results: [
        { status: 'success', summary: 'fine' },
        { status: 'failed', error: { code: 'model_failed' } },
        { status: 'success', summary: 'fine' },
      ],
    });
    const [, second] = model.of(turnId);
    expect(JSON.stringify(second?.messages.at(-1))).toContain('fine');
    await checkInvariants(h.database.pool);
  });

  test('from outside returns the results as its answer, and all children belong to one run', async () => {
    await h.profile('child', [{ say: '{{instruction}}' }]);
    await h.worker();
    const answer = await submit('fork_join', {
      tasks: ['x', 'y'].map((name) => task('child', { instruction: name })),
    });
    expect(answer).toMatchObject({
      status: 'success',
      results: [{ summary: 'x' }, { summary: 'y' }],
    });
    const runs = await h.rows('select distinct run_id from boxcar.turns');
    expect(runs).toHaveLength(1);
    await checkInvariants(h.database.pool);
  });

  test('with wait: false answers with a receipt, and collect returns the results later', async () => {
    await h.profile('child', [{ say: 'fine' }]);
    await h.profile(
      'lead',
      [
        {
          calls: [{ tool: 'fork_join', arguments: { tasks: [task('child'), task('child')], wait: false } }],
        },
        {
          calls: [{ tool: 'collect', arguments: { batch_id: '{{results/fork_join/batch_id}}' } }],
        },
        { say: 'done' },
      ],
      { tools: ['fork_join', 'collect'], ...ANYONE },
    );
    await h.worker();
    const turnId = await launch('lead');
    expect(await end(turnId)).toMatchObject({ status: 'success' });
    expect((await shown(turnId)).result).toMatchObject({ status: 'accepted' });
    expect((await shown(turnId)).result.turn_ids).toHaveLength(2);
    expect((await shown(turnId, 1)).result).toMatchObject({
      status: 'success',
      results: [{ summary: 'fine' }, { summary: 'fine' }],
    });
    await checkInvariants(h.database.pool);
  });

  test('returns complete results of three levels of nested batches', async () => {
    const fork = (child: string, summary: string): JsonValue[] => [
      { calls: [{ tool: 'fork_join', arguments: { tasks: [task(child), task(child), task(child)] } }] },
      { say: summary },
    ];
    const rest = { tools: ['fork_join'], ...ANYONE };
    await h.profile('leaf', [{ say: 'leaf' }]);
    await h.profile('twig', fork('leaf', 'twig of {{results/fork_join/results/2/summary}}'), rest);
    await h.profile('branch', fork('twig', 'branch of {{results/fork_join/results/2/summary}}'), rest);
    await h.worker();
    const answer = await submit('fork_join', { tasks: [task('branch'), task('branch'), task('branch')] });
    const refused =
      "select name, content from boxcar.tool_calls k join boxcar.cards c on c.id = k.result_card_id where k.status <> 'success'";
    expect(await h.rows(refused)).toEqual([]);
    expect(answer.results.map((result) => result.summary)).toEqual(Array(3).fill('branch of twig of leaf'));
    expect(await h.rows('select id from boxcar.turns')).toHaveLength(3 + 9 + 27);
    await checkInvariants(h.database.pool);
  });

  test('joins a child that delegates and waits when the child itself has ended', async () => {
    await h.profile('leaf', [{ say: 'leaf' }]);
    await h.profile(
      'middle',
      [
        { calls: [{ tool: 'delegate_async', arguments: { ...task('leaf'), wait: true } }] },
        { say: 'middle of {{results/delegate_async/result}}' },
      ],
      { tools: ['delegate_async'], ...ANYONE },
    );
    await h.worker({ concurrency: 1 });
    const answer = await submit('fork_join', { tasks: [task('middle'), task('leaf'), task('middle')] });
    expect(answer.results.map(({ status, summary }) => [status, summary])).toEqual([
      ['success', 'middle of leaf'],
      ['success', 'leaf'],
      ['success', 'middle of leaf'],
    ]);
    await checkInvariants(h.database.pool);
  });

  test('lets the output of a child be passed on as context', async () => {
    await h.profile('child', [{ say: 'the treasure is under the oak' }]);
    await h.profile('reader', [{ expect: { contains: 'under the oak' }, say: 'read it' }]);
    await parent('lead', { tasks: [task('child')] }, [
      {
        calls: [
          {
            tool: 'fork_join',
            arguments: {
              tasks: [task('reader', { context_box_id: '{{results/fork_join/results/0/output_box_id}}' })],
            },
          },
        ],
      },
    ]);
    await h.worker();
    const turnId = await launch('lead');
    await end(turnId);
    expect((await shown(turnId, 1)).result).toMatchObject({
      status: 'success',
      results: [{ summary: 'read it' }],
    });
  });

  test('queues a task for an agent that is busy, and joins it all the same', async () => {
    await h.profile('busy', [{ say: 'did {{instruction}}' }], { worker_target: 'later' });
    await h.profile('child', [{ say: 'fine' }]);
    await submit('provision_agent', { action: 'ensure', agent_id: 'busy-1', profile_name: 'busy' });
    const reuse = (instruction: string) => ({
      target_strategy: 'reuse',
      target_ref: 'busy-1',
      instruction,
    });
    const first = (await h.runtime.submit('delegate_async', reuse('first'))) as { turn_id: string };
    await h.worker();
    const joined = submit('fork_join', { tasks: [reuse('second'), task('child')] });
    await waitFor(
      async () => (await h.rows("select id from boxcar.turns where status = 'success'")).length === 1,
      {
        message: 'the other child has ended',
      },
    );
    await h.worker({ targets: ['later'] });
    expect((await joined).results.map((result) => result.summary)).toEqual(['did second', 'fine']);
    expect(await end(first.turn_id)).toMatchObject({ result: 'did first' });
    await checkInvariants(h.database.pool);
  });

  test('of which every child failed is an answered call, whose result begins with the status of the batch', async () => {
    await h.profile('broken', [{ fail: { status: 400, message: 'no' } }]);
    await parent('lead', { tasks: [task('broken'), task('broken')] });
    await h.worker();
    const turnId = await launch('lead');
    expect(await end(turnId)).toMatchObject({ status: 'success', result: 'done' });
    const call = await shown(turnId);
    expect(call).toMatchObject({
      status: 'success',
      result: {
        status: 'failed',
        results: [
          { status: 'failed', error: { code: 'model_failed' } },
          { status: 'failed', error: { code: 'model_failed' } },
        ],
      },
    });
    expect(call).not.toHaveProperty('error');
    const { messages } = await h.runtime.explainStep(turnId, { step: 2 });
    const answers = messages.flatMap(({ role, content }) => (role === 'tool' ? [content] : []));
    expect(answers).toHaveLength(1);
    expect(answers[0]).toMatch(/^\{"status":"failed","batch_id":"[0-9a-f-]{36}","results":\[\{/);
    await checkInvariants(h.database.pool);
  });

  test('with fail_fast ends the others at the first failure, with all turns below them', async () => {
    await h.profile('parked', [{ say: 'never' }], { worker_target: 'nobody' });
    await h.profile('broken', [{ fail: { status: 400, message: 'no' } }], { worker_target: 'later' });
    await parent('middle', { tasks: [task('parked'), task('parked')] });
    await parent('lead', { tasks: [task('middle'), task('parked'), task('broken')], fail_fast: true });
    await h.worker();
    const turnId = await launch('lead');
    await waitFor(
      async () => (await h.rows("select id from boxcar.turns where status = 'suspended'")).length === 2,
      { message: 'lead and middle wait' },
    );
    await h.worker({ targets: ['later'] });
    expect(await end(turnId)).toMatchObject({ status: 'success' });
    const call = await shown(turnId);
    expect(call).toMatchObject({ status: 'success', result: { status: 'failed' } });
    expect(call.error).toBeUndefined();
    expect(call.result.results.map(({ status, error }) => [status, error?.code])).toEqual([
      ['canceled', 'batch_closed'],
      ['canceled', 'batch_closed'],
      ['failed', 'model_failed'],
    ]);
    await waitFor(
      async () => (await h.rows('select id from boxcar.turns where ended_at is null')).length === 0,
      {
        message: 'those below have ended',
      },
    );
    await waitFor(
      async () => (await h.rows("select id from boxcar.batches where status = 'running'")).length === 0,
      {
        message: 'the batch of the child that was ended has ended',
      },
    );
    const batches = await h.rows<{ closing: string }>('select closing from boxcar.batches order by closing');
    expect(batches.map((batch) => batch.closing)).toEqual(['cancel', 'fail_fast']);
    await checkInvariants(h.database.pool);
  });

  test('with min_success resumes the parent as soon as enough children have succeeded, and ends the others', async () => {
    await h.profile('child', [{ say: 'fine' }]);
    await h.profile('parked', [{ say: 'never' }], { worker_target: 'nobody' });
    await h.worker();
    const answer = await submit('fork_join', {
      tasks: [task('child'), task('parked'), task('child'), task('parked')],
      min_success: 2,
    });
    expect(answer.status).toBe('success');
    expect(answer.results.map((result) => result.status)).toEqual([
      'success',
      'canceled',
      'success',
      'canceled',
    ]);
    await checkInvariants(h.database.pool);
  });

  test('with min_success ends the others, but no turns that a successful child has handed to others', async () => {
    await h.profile('parked', [{ say: 'late' }], { worker_target: 'later' });
    await h.profile(
      'starter',
      [{ calls: [{ tool: 'delegate_async', arguments: task('parked') }] }, { say: 'started it' }],
      { tools: ['delegate_async'], ...ANYONE },
    );
    await h.worker();
    const answer = await submit('fork_join', { tasks: [task('starter'), task('parked')], min_success: 1 });
    expect(answer.results.map((result) => result.status)).toEqual(['success', 'canceled']);
    const [left] = await h.rows<{ id: TurnId }>('select id from boxcar.turns where parent_turn_id = $1', [
      answer.results[0]?.turn_id,
    ]);
    await h.worker({ targets: ['later'] });
    expect(await end(left?.id ?? '')).toMatchObject({ status: 'success', result: 'late' });
    await checkInvariants(h.database.pool);
  });

  test('has only the deadline of its batch: no tool timeout ends the wait, and the children end with the batch', async () => {
    await h.profile('parked', [{ say: 'never' }], { worker_target: 'nobody' });
    await h.profile('child', [{ say: 'fine' }]);
    await h.profile(
      'lead',
      [
        {
          calls: [
            {
              tool: 'fork_join',
              arguments: { tasks: [task('child'), task('parked')], deadline_seconds: 900 },
            },
          ],
        },
        { say: 'done' },
      ],
      { tools: ['fork_join'], limits: { tool_timeout_seconds: 1 }, ...ANYONE },
    );
    await h.worker({ sweepMs: 3_600_000, leaseMs: 3_600_000 });
    const turnId = await launch('lead');
    await waitFor(
      async () =>
        (
          await h.rows(
            "select id from boxcar.turns where (id = $1 and status = 'suspended') or status = 'success'",
            [turnId],
          )
        ).length === 2,
      { message: 'the parent waits, and one child has ended' },
    );
    const sweeper = new Sweeper(h.runtime, {
      lostRingMs: 1e9,
      claimFromRows: async () => undefined,
      wakeProvider: async () => undefined,
    });
    const later = (seconds: number) => new Date(Date.now() + seconds * 1000);
    await sweeper.sweep({ now: later(600) });
    expect(await h.rows("select id from boxcar.tool_calls where status = 'pending'")).toHaveLength(1);
    await sweeper.sweep({ now: later(1_000) });
    await end(turnId);
    const call = await shown(turnId);
    expect(call).toMatchObject({
      status: 'success',
      result: {
        status: 'timeout',
        results: [{ status: 'success' }, { status: 'timeout', error: { code: 'deadline_exceeded' } }],
      },
    });
    await checkInvariants(h.database.pool);
  });

  test('ends the children of a parent that waits for them when the parent ends', async () => {
    await h.profile('parked', [{ say: 'never' }], { worker_target: 'nobody' });
    await parent('lead', { tasks: [task('parked'), task('parked')] });
    await h.worker();
    const answer = (await h.runtime.submit('delegate_async', {
      ...task('lead'),
      deadline_seconds: 600,
    })) as { turn_id: string };
    await waitFor(async () => (await h.rows('select id from boxcar.batches')).length === 1, {
      message: 'it waits for its children',
    });
    await h.rows('update boxcar.turns set deadline_at = now() where id = $1', [answer.turn_id]);
    expect(await end(answer.turn_id)).toMatchObject({ status: 'timeout' });
    await waitFor(
      async () => (await h.rows("select id from boxcar.batches where status = 'canceled'")).length === 1,
      { message: 'the batch is canceled' },
    );
    await checkInvariants(h.database.pool);
  });

  test('refuses a child that waits for its parent’s agent, since the parent waits for the child’s batch', async () => {
    await h.profile(
      'inner',
      [
        {
          calls: [
            {
              tool: 'delegate_async',
              arguments: { ...task('top'), target_strategy: 'reuse', wait: true },
            },
          ],
        },
        { say: 'inner' },
      ],
      { tools: ['delegate_async'], ...ANYONE },
    );
    await parent('lead', { tasks: [task('inner')] });
    await submit('provision_agent', {
      action: 'ensure',
      agent_id: 'top',
      profile_name: 'lead',
      shared: true,
    });
    await h.worker();
    const top = (await h.runtime.submit('delegate_async', {
      ...task('top'),
      target_strategy: 'reuse',
    })) as { turn_id: string };
    await end(top.turn_id);
    const [inner] = (await shown(top.turn_id)).result.results;
    expect((await shown(inner?.turn_id ?? '')).error).toMatchObject({ code: 'delegation_cycle' });
    await checkInvariants(h.database.pool);
  });

  test('can be built by a custom handler, which makes and joins turns by the same interface', async () => {
    await h.profile('child', [{ say: 'fine' }]);
    h.runtime.registerHandler('pair', {
      description: 'Two of a kind.',
      input: z.strictObject({ profile: z.string() }),
      handle: async ({ profile }, tools) => {
        const { contextBoxId } = await tools.packer.packContextWithInstruction({
          projectId: tools.ctx.projectId,
          toolSuffix: 'pair',
          sourceAgentId: tools.ctx.source.agentId,
          profileName: profile,
          instruction: 'go',
        });
        const target = { kind: 'new' as const, profile: await tools.findProfile(profile) };
        const turns = await tools.submitTurns([
          { target, contextBoxId },
          { target, contextBoxId },
        ]);
        const { batchId } = await tools.joinTurns(
          turns.map((turn) => turn.turnId),
          { minSuccess: 1 },
        );
        return { batch_id: batchId };
      },
    });
    await h.worker();
    expect(await submit('pair', { profile: 'child' })).toMatchObject({ status: 'success' });
    expect(await h.rows('select id from boxcar.turns')).toHaveLength(2);
  });

  test('loses nothing when the children and their batch end before the parent suspends', async () => {
    await h.profile('child', [{ say: 'fine' }]);
    h.runtime.registerTool({
      name: 'dawdle',
      description: 'Answers once the batch has ended.',
      input: z.strictObject({}),
      run: async () => {
        await waitFor(
          async () => (await h.rows("select id from boxcar.batches where status = 'success'")).length === 1,
          { message: 'the batch has ended' },
        );
        return 'seen';
      },
    });
    await h.profile(
      'lead',
      [
        {
          calls: [
            { tool: 'dawdle', arguments: {} },
            { tool: 'fork_join', arguments: { tasks: [task('child'), task('child')] } },
          ],
        },
        { say: 'done' },
      ],
      { tools: ['fork_join', 'dawdle'], ...ANYONE },
    );
    await h.worker({ sweepMs: 3_600_000 });
    const turnId = await launch('lead');
    expect(await end(turnId)).toMatchObject({ result: 'done' });
    expect((await shown(turnId, 1)).result).toMatchObject({ status: 'success' });
    expect(await h.rows('select epoch from boxcar.turns where id = $1', [turnId])).toEqual([{ epoch: 1 }]);
    await checkInvariants(h.database.pool);
  });

  test('runs all tasks for one agent that arrive while the agent ends its turns, and joins all of them', async () => {
    await h.profile('child', [{ say: 'did {{instruction}}' }]);
    await submit('provision_agent', { action: 'ensure', agent_id: 'one', profile_name: 'child' });
    await h.worker({ sweepMs: 3_600_000 });
    const answers = await Promise.all(
      Array.from({ length: 8 }, (_item, index) =>
        submit('fork_join', {
          tasks: [
            { target_strategy: 'reuse', target_ref: 'one', instruction: `part ${index}` },
            task('child', { instruction: `side ${index}` }),
          ],
        }),
      ),
    );
    expect(answers.map(({ results }) => results.map((result) => result.summary))).toEqual(
      answers.map((_answer, index) => [`did part ${index}`, `did side ${index}`]),
    );
    await checkInvariants(h.database.pool);
  });

  test('queues its children with the priority of their task, else its own, else the caller’s', async () => {
    await h.profile('parked', [{ say: 'never' }], { worker_target: 'nobody' });
    const priorities = async (where: string, values: unknown[] = []) =>
      (
        await h.rows<{ priority: number }>(
          `select priority from boxcar.turns t where ${where} order by id`,
          values,
        )
      ).map((row) => row.priority);
    const tasks = [task('parked', { priority: 7 }), task('parked'), task('parked', { priority: 0 })];
    await submit('fork_join', { tasks, priority: -3, wait: false });
    expect(await priorities('parent_turn_id is null')).toEqual([7, -3, 0]);
    await parent('lead', { tasks: [task('parked'), task('parked', { priority: 9 })] });
    await h.worker();
    const { turn_id: turnId } = (await h.runtime.submit('launch_principal', {
      profile_name: 'lead',
      instruction: 'go',
      priority: 4,
    })) as { turn_id: TurnId };
    await waitFor(async () => (await priorities('parent_turn_id = $1', [turnId])).length === 2, {
      message: 'the children are there',
    });
    expect(await priorities('parent_turn_id = $1', [turnId])).toEqual([4, 9]);
  });

  test('takes the same number of statements for forty tasks as for one of each kind', async () => {
    await h.profile('child', [{ say: 'fine' }]);
    const boxIds = await Promise.all(
      Array.from({ length: 40 }, async (_item, index) => {
        const content = { kind: 'text', text: `fact ${index}` };
        const made = await h.runtime.submit('create_box', {
          cards: [{ type: 'note', role: 'user', content }],
        });
        await submit('provision_agent', {
          action: 'ensure',
          agent_id: `agent-${index}`,
          profile_name: 'child',
        });
        return (made as { box_id: string }).box_id;
      }),
    );
    const tasks = (count: number) =>
      Array.from({ length: count }, (_item, index) => [
        task('child', { context_box_id: boxIds[index] }),
        { ...task(`agent-${index}`), target_strategy: 'reuse' },
        { ...task(`agent-${index}`), target_strategy: 'clone' },
      ]).flat();
    const counted = (count: number) => statementsToAccept(h.database, 'fork_join', { tasks: tasks(count) });
    await counted(1);
    expect(await counted(40)).toBe(await counted(1));
  });
});

describe('a refused fork_join writes nothing', () => {
  const refused = async (args: unknown, code: string, field: string): Promise<void> => {
    const before = await rowCounts(h.database.pool);
    const error = await refusal(h.runtime.submit('fork_join', args));
    expect({ code: error.code, field: error.details.field ?? error.message }).toEqual({
      code,
      field: expect.stringContaining(field),
    });
    expect(await rowCounts(h.database.pool)).toEqual(before);
  };

  test('when its own arguments are refused', async () => {
    await h.profile('child', [{ say: 'fine' }]);
    const one = [task('child')];
    await refused({ tasks: [] }, 'bad_request', 'arguments.tasks');
    await refused({ tasks: [...one, { ...task('child'), colour: 'red' }] }, 'bad_request', 'tasks.1');
    await refused({ tasks: one, colour: 'red' }, 'bad_request', 'arguments');
    await refused({ tasks: one, deadline_seconds: 0 }, 'bad_request', 'deadline_seconds');
    await refused({ tasks: one, deadline_seconds: -1 }, 'bad_request', 'deadline_seconds');
    await refused({ tasks: one, priority: 101 }, 'bad_request', 'priority');
    await refused({ tasks: one, min_success: 2 }, 'bad_request', 'min_success');
    await refused({ tasks: one, min_success: 0 }, 'bad_request', 'min_success');
    await refused({ tasks: [...one, task('child', { history: 'full' })] }, 'bad_request', 'tasks.1.history');
    await refused(
      { tasks: [...one, task('child', { instruction: ' ' })] },
      'bad_request',
      'tasks.1.instruction',
    );
  });

  test('when one task of several is refused', async () => {
    await h.profile('child', [{ say: 'fine' }]);
    for (const name of ['a', 'b'])
      await submit('provision_agent', { action: 'ensure', agent_id: name, profile_name: 'child' });
    const reuse = (target_ref: string) => ({ ...task(target_ref), target_strategy: 'reuse' });
    const [agent] = await h.rows<{ id: string }>("select id from boxcar.agents where name = 'a'");
    await refused({ tasks: [task('child'), task('nobody')] }, 'not_found', 'arguments.tasks.1.target_ref');
    await refused({ tasks: [task('child'), reuse('nobody')] }, 'not_found', 'arguments.tasks.1.target_ref');
    await refused(
      { tasks: [reuse('a'), reuse('b'), reuse(agent?.id ?? '')] },
      'bad_request',
      'arguments.tasks.2.target_ref',
    );
    await refused(
      { tasks: [task('child'), task('child', { context_box_id: newId() })] },
      'not_found',
      'arguments.tasks.1.context_box_id',
    );
  });

  test('when it has more tasks than the project allows', async () => {
    await h.profile('child', [{ say: 'fine' }]);
    await refused({ tasks: Array(1_001).fill(task('child')) }, 'fan_out_exceeded', 'arguments.tasks');
    await h.rows(`update boxcar.projects set limits = '{"max_fan_out": 2}'`);
    await refused({ tasks: Array(3).fill(task('child')) }, 'fan_out_exceeded', 'arguments.tasks');
    expect((await h.runtime.accept('fork_join', { tasks: Array(2).fill(task('child')) })).isReplay).toBe(
      false,
    );
  });

  test('when the caller’s policy, a wait for the caller or the greatest depth forbids it', async () => {
    await h.profile('child', [{ say: 'fine' }]);
    await h.profile('other', [{ say: 'fine' }]);
    const script = (target: JsonValue): JsonValue[] => [
      { calls: [{ tool: 'fork_join', arguments: { tasks: [task('child'), target] } }] },
      { say: 'done' },
    ];
    const rest = { tools: ['fork_join'], delegation_policy: { target_profiles: ['child', 'lead'] } };
    await h.profile('narrow', script(task('other')), rest);
    await h.profile('lead', script({ ...task('{{instruction}}'), target_strategy: 'reuse' }), rest);
    await submit('provision_agent', { action: 'ensure', agent_id: 'lead-1', profile_name: 'lead' });
    await h.worker();
    const narrow = await launch('narrow');
    await end(narrow);
    expect((await shown(narrow)).error).toMatchObject({
      code: 'delegation_denied',
      details: { field: 'arguments.tasks.1.target_ref' },
    });
    const { turn_id } = (await h.runtime.submit('delegate_async', {
      target_strategy: 'reuse',
      target_ref: 'lead-1',
      instruction: 'lead-1',
    })) as { turn_id: string };
    await end(turn_id);
    expect((await shown(turn_id)).error).toMatchObject({
      code: 'delegation_cycle',
      details: { field: 'arguments.tasks.1.target_ref' },
    });
    await h.rows(`update boxcar.projects set limits = '{"max_depth": 0}'`);
    const again = await launch('narrow');
    await h.rows(`update boxcar.projects set limits = '{}'`);
    await end(again);
    expect(await h.rows('select id from boxcar.turns where parent_turn_id is not null')).toEqual([]);
    await checkInvariants(h.database.pool);
  });
});
