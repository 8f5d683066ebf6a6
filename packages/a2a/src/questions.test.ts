/** Tasks that wait for input: functions below a public agent ask questions, and messages answer them. */
import { type StreamResponse, type Task, TaskState } from '@a2a-js/sdk';
import type { AgentFunction } from '@boxcar/runtime';
import { waitFor } from '@boxcar/testkit';
import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { gate, openStage, partOf, request, resultOf, type Stage, taskOf } from './testing/stage.js';

const HANDS_ON = [
  {
    calls: [
      {
        tool: 'handoff',
        arguments: { target_agent: 'clerk', task: 'Find out.', payload: '{{instruction}}' },
      },
    ],
  },
  { say: 'The clerk says {{results/handoff}}' },
];

let stage: Stage;
let key: string;
let clerk: AgentFunction;

beforeAll(async () => {
  stage = await openStage({
    handoffs: { enabled: true },
    agents: { clerk: (input, context) => clerk(input, context) },
  });
  key = await stage.key({ name: 'desk' });
  await stage.agent('porter', HANDS_ON, {
    tools: ['handoff'],
    delegation_policy: { target_profiles: null },
  });
});
afterAll(() => stage[Symbol.asyncDispose]());
beforeEach(() => {
  clerk = async (_input, { ask }) => ask('Which harbour?');
});

type Payload = NonNullable<StreamResponse['payload']>;

async function all(stream: AsyncIterable<StreamResponse>): Promise<readonly Payload[]> {
  const events: Payload[] = [];
  for await (const { payload } of stream) if (payload !== undefined) events.push(payload);
  return events;
}

const ASKS = TaskState.TASK_STATE_INPUT_REQUIRED;
const stateOf = (task: Task): TaskState | undefined => task.status?.state;
const wordsOf = ({ status }: Pick<Task, 'status'>): unknown => status?.message?.parts[0]?.content?.value;
const idOf = (events: readonly Payload[]): string => {
  const [first] = events;
  return first?.$case === 'task' ? first.value.id : '';
};

describe.each(['1.0', '0.3'] as const)('protocol %s', (version) => {
  const client = () => stage.client('porter', key, version);
  const ask = (id: string) => ({ tenant: '', id });

  test('a message is answered with the question, and the next message with the result', async () => {
    clerk = async (_input, { ask: put }) => `${await put('Which harbour?')}, ${await put('Which quay?')}`;
    const porter = await client();
    const asked = taskOf(await porter.sendMessage(request('where')));
    expect([stateOf(asked), wordsOf(asked)]).toEqual([ASKS, 'Which harbour?']);
    expect(asked.artifacts).toEqual([]);
    const { id: taskId, contextId } = asked;
    const again = taskOf(await porter.sendMessage(request('north', { taskId, contextId })));
    expect([again.id, stateOf(again), wordsOf(again)]).toEqual([taskId, ASKS, 'Which quay?']);
    expect(again.status?.message?.messageId).not.toBe(asked.status?.message?.messageId);
    const done = taskOf(await porter.sendMessage(request('seven', { taskId })));
    expect(stateOf(done)).toBe(TaskState.TASK_STATE_COMPLETED);
    expect(String(resultOf(done))).toContain('north, seven');
    const { rows } = await stage.database.pool.query(
      'select distinct m.author from boxcar.handoff_messages m join boxcar.handoffs h on h.id = m.handoff_id where h.root_handoff_id = $1 and m.author is not null',
      [taskId],
    );
    expect(rows).toEqual([{ author: 'a2a:desk' }]);
  });

  test('a stream reports that input is required and ends, and the answer begins another stream', async () => {
    const porter = await client();
    const events = await all(porter.sendMessageStream(request('where')));
    const last = events.at(-1);
    expect(last?.$case === 'statusUpdate' && [last.value.status?.state, wordsOf(last.value)]).toEqual([
      ASKS,
      'Which harbour?',
    ]);
    const taskId = idOf(events);
    const rest = await all(porter.sendMessageStream(request('south', { taskId })));
    expect(idOf(rest)).toBe(taskId);
    const end = rest.at(-1);
    expect(end?.$case === 'statusUpdate' && end.value.status?.state).toBe(TaskState.TASK_STATE_COMPLETED);
    expect(JSON.stringify(rest)).toContain('south');
  });

  test('a reader that joins while the task waits follows it beyond the answer', async () => {
    const porter = await client();
    const { id: taskId } = taskOf(await porter.sendMessage(request('where')));
    const joined = porter.resubscribeTask(ask(taskId));
    const first = await joined.next();
    expect(first.value?.payload?.$case === 'task' && stateOf(first.value.payload.value)).toBe(ASKS);
    await porter.sendMessage(request('east', { taskId }));
    const last = (await all(joined)).at(-1);
    expect(last?.$case === 'statusUpdate' && last.value.status?.state).toBe(TaskState.TASK_STATE_COMPLETED);
  });

  test('the same answer again is one answer, also at the same moment, and other text is refused', async () => {
    const go = gate();
    clerk = async (_input, { ask: put }) => {
      const [one, two] = await Promise.all([put('One?'), put('Two?')]);
      await go.opened;
      return `${one} ${two}`;
    };
    const porter = await client();
    const { id: taskId } = taskOf(await porter.sendMessage(request('where')));
    await waitFor(
      async () =>
        (
          await stage.database.pool.query(
            'select from boxcar.handoff_messages m join boxcar.handoffs h on h.id = m.handoff_id where h.root_handoff_id = $1',
            [taskId],
          )
        ).rowCount === 2 || undefined,
      { message: 'both questions are open' },
    );
    const answer = request('first', { taskId });
    const tasks = await Promise.all([1, 2, 3].map(() => porter.sendMessage(answer)));
    for (const task of tasks.map(taskOf)) expect([task.id, stateOf(task)]).toEqual([taskId, ASKS]);
    const other = request('other words', { taskId, messageId: answer.message?.messageId ?? '' });
    await expect(porter.sendMessage(other)).rejects.toMatchObject({ name: 'RequestMalformedError' });
    const second = porter.sendMessage(request('second', { taskId }));
    await waitFor(
      async () => stateOf(await porter.getTask(ask(taskId))) === TaskState.TASK_STATE_WORKING || undefined,
      { message: 'nothing is asked any more' },
    );
    // A repeated answer is recognized even after a later answer.
    await porter.sendMessage(request('first', { ...answer.message, returnImmediately: true }));
    go.open();
    const result = String(resultOf(taskOf(await second)));
    expect(result).toContain('first');
    expect(result).toContain('second');
  });

  test('data is accepted as a JSON answer, and an empty message is refused', async () => {
    const porter = await client();
    const { id: taskId } = taskOf(await porter.sendMessage(request('where')));
    await expect(porter.sendMessage(request(' ', { taskId }))).rejects.toMatchObject({
      name: 'RequestMalformedError',
    });
    const data = partOf({ $case: 'data', value: { harbour: 'west' } });
    const done = taskOf(await porter.sendMessage(request([data], { taskId })));
    expect(JSON.stringify(resultOf(done))).toContain('west');
  });

  test('a task that asks is listed as such, can be canceled like any other, and then accepts no answer', async () => {
    const porter = await client();
    const contextId = `asks-${version}`;
    const { id: taskId } = taskOf(await porter.sendMessage(request('where', { contextId })));
    if (version === '1.0') {
      const page = { tenant: '', contextId, pageSize: 10, pageToken: '', statusTimestampAfter: undefined };
      const listed = await porter.listTasks({ ...page, status: ASKS });
      expect(listed.tasks.map(({ id, status }) => [id, status?.state])).toEqual([[taskId, ASKS]]);
      expect((await porter.listTasks({ ...page, status: TaskState.TASK_STATE_WORKING })).tasks).toEqual([]);
    }
    const canceled = await porter.cancelTask({ ...ask(taskId), metadata: undefined });
    expect(stateOf(canceled)).toBe(TaskState.TASK_STATE_CANCELED);
    await expect(porter.sendMessage(request('late', { taskId }))).rejects.toMatchObject({
      name: 'UnsupportedOperationError',
    });
  });

  test('a task that works and asks nothing accepts no message', async () => {
    const begun = gate();
    const go = gate();
    clerk = async () => {
      begun.open();
      await go.opened;
      return 'done';
    };
    const porter = await client();
    const { id: taskId } = taskOf(await porter.sendMessage(request('where', { returnImmediately: true })));
    await begun.opened;
    await expect(porter.sendMessage(request('hello', { taskId }))).rejects.toMatchObject({
      name: 'UnsupportedOperationError',
      message: expect.stringContaining('asks nothing'),
    });
    go.open();
  });
});

test('a key of another name answers no question, and sees none', async () => {
  const porter = await stage.client('porter', key);
  const { id: taskId } = taskOf(await porter.sendMessage(request('where')));
  const stranger = await stage.client('porter', await stage.key({ name: 'stranger' }));
  await expect(stranger.sendMessage(request('mine', { taskId }))).rejects.toMatchObject({
    name: 'TaskNotFoundError',
  });
  expect(stateOf(await porter.getTask({ tenant: '', id: taskId }))).toBe(ASKS);
  await porter.sendMessage(request('north', { taskId }));
});

test('an erased question is shown without its text, and a question whose time is over is no longer asked', async () => {
  clerk = async (_input, { ask }) => ask('Which harbour?', { timeout: 3_600 }).catch(() => 'nobody knows');
  const porter = await stage.client('porter', key);
  const { id: taskId } = taskOf(await porter.sendMessage(request('where')));
  await stage.database.pool.query(
    "select boxcar.erase_cards(array(select m.card_id from boxcar.handoff_messages m join boxcar.handoffs h on h.id = m.handoff_id where h.root_handoff_id = $1), 'asked')",
    [taskId],
  );
  expect(wordsOf(await porter.getTask({ tenant: '', id: taskId }))).toBe('(erased)');
  await stage.database.pool.query(
    'update boxcar.handoff_messages m set expires_at = now() from boxcar.handoffs h where h.id = m.handoff_id and h.root_handoff_id = $1',
    [taskId],
  );
  expect(stateOf(await porter.getTask({ tenant: '', id: taskId }))).toBe(TaskState.TASK_STATE_WORKING);
  await expect(porter.sendMessage(request('late', { taskId }))).rejects.toMatchObject({
    name: 'UnsupportedOperationError',
  });
  await porter.cancelTask({ tenant: '', id: taskId, metadata: undefined });
});
