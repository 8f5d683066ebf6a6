/** Agents as seen by clients of the official SDK, in both protocols. */
import { type StreamResponse, TaskState } from '@a2a-js/sdk';
import type { ScriptedFunction } from '@boxcar/llm';
import { waitFor } from '@boxcar/testkit';
import { afterAll, beforeAll, describe, expect, test, vi } from 'vitest';
import { bearer, gate, openStage, partOf, request, resultOf, type Stage, taskOf } from './testing/stage.js';

const functions: Record<string, ScriptedFunction> = { slow: async () => ({ text: '' }) };
let stage: Stage;
let key: string;

beforeAll(async () => {
  stage = await openStage({ functions });
  key = await stage.key({ name: 'desk' });
  await stage.agent('echo', [{ say: 'You said {{instruction}}' }], {
    description: 'Repeats.',
    tags: ['words'],
  });
  await stage.agent('slow', [], { model: 'scripted:slow', script: undefined });
});
afterAll(() => stage[Symbol.asyncDispose]());

const ids = async (): Promise<number> =>
  (await stage.database.pool.query('select from boxcar.handoffs')).rowCount ?? 0;

async function all(stream: AsyncIterable<StreamResponse>): Promise<NonNullable<StreamResponse['payload']>[]> {
  const events = [];
  for await (const { payload } of stream) if (payload !== undefined) events.push(payload);
  return events;
}

/** The text that a reader of artifact updates has at the end. */
function textOf(events: readonly NonNullable<StreamResponse['payload']>[]): string {
  let text = '';
  for (const event of events)
    if (event.$case === 'artifactUpdate') {
      const content = event.value.artifact?.parts[0]?.content;
      const piece = content?.$case === 'text' ? content.value : '';
      text = event.value.append ? text + piece : piece;
    }
  return text;
}

describe.each(['1.0', '0.3'] as const)('protocol %s', (version) => {
  const client = (agent = 'echo') => stage.client(agent, key, version);

  test('a message waits for its result', async () => {
    const task = taskOf(await (await client()).sendMessage(request('good day')));
    expect(task.status?.state).toBe(TaskState.TASK_STATE_COMPLETED);
    expect(resultOf(task)).toBe('You said good day');
    expect(task.contextId).not.toBe('');
    expect(task.history[0]?.parts[0]?.content).toEqual({ $case: 'text', value: 'good day' });
  });

  test('a message that does not wait is a task that can be read later', async () => {
    const agent = await client();
    const { id, status } = taskOf(await agent.sendMessage(request('later', { returnImmediately: true })));
    expect([
      TaskState.TASK_STATE_SUBMITTED,
      TaskState.TASK_STATE_WORKING,
      TaskState.TASK_STATE_COMPLETED,
    ]).toContain(status?.state);
    const task = await untilEnded(() => agent.getTask({ tenant: '', id }));
    expect(resultOf(task)).toBe('You said later');
    expect((await agent.getTask({ tenant: '', id, historyLength: 0 })).history).toEqual([]);
  });

  test('the first text arrives before the last text is written', async () => {
    const said = gate();
    functions.slow = async (_request, { write }) => {
      write('Roses ');
      await said.opened;
      write('are red.');
      return { text: 'Roses are red.' };
    };
    const stream = (await client('slow')).sendMessageStream(request('write'));
    const events: NonNullable<StreamResponse['payload']>[] = [];
    for await (const { payload } of stream) {
      if (payload === undefined) continue;
      events.push(payload);
      if (payload.$case === 'artifactUpdate') said.open();
    }
    expect(events[0]?.$case).toBe('task');
    expect(textOf(events)).toBe('Roses are red.');
    expect(events.filter(({ $case }) => $case === 'artifactUpdate').length).toBeGreaterThan(1);
    const last = events.at(-1);
    expect(last?.$case === 'statusUpdate' && last.value.status?.state).toBe(TaskState.TASK_STATE_COMPLETED);
  });

  test('a reader that joins late gets everything from the first word', async () => {
    const said = gate();
    const begun = gate();
    functions.slow = async (_request, { write }) => {
      write('One ');
      begun.open();
      await said.opened;
      write('two');
      return { text: 'One two' };
    };
    const agent = await client('slow');
    const { id } = taskOf(await agent.sendMessage(request('count', { returnImmediately: true })));
    await begun.opened;
    const stream = agent.resubscribeTask({ tenant: '', id });
    const first = await stream.next();
    said.open();
    const events = [
      ...(first.value?.payload === undefined ? [] : [first.value.payload]),
      ...(await all(stream)),
    ];
    expect(textOf(events)).toBe('One two');
    await expect(all(agent.resubscribeTask({ tenant: '', id }))).rejects.toThrow('has ended');
  });

  test('a task is canceled while it works, and only once', async () => {
    const begun = gate();
    functions.slow = async (_request, { signal }) => {
      begun.open();
      await new Promise((_resolve, reject) => {
        signal?.addEventListener('abort', () => reject(signal.reason), { once: true });
      });
      return { text: 'never' };
    };
    const agent = await client('slow');
    const { id } = taskOf(await agent.sendMessage(request('wait', { returnImmediately: true })));
    await begun.opened;
    const canceled = await agent.cancelTask({ tenant: '', id, metadata: undefined });
    expect(canceled.status?.state).toBe(TaskState.TASK_STATE_CANCELED);
    await expect(agent.cancelTask({ tenant: '', id, metadata: undefined })).rejects.toMatchObject({
      name: 'TaskNotCancelableError',
    });
  });

  test('the same message twice makes one task, also at the same moment', async () => {
    const agent = await client();
    const message = request('only once');
    const before = await ids();
    const tasks = (await Promise.all([1, 2, 3, 4].map(() => agent.sendMessage(message)))).map(taskOf);
    expect(new Set(tasks.map(({ id }) => id)).size).toBe(1);
    expect(new Set(tasks.map(({ contextId }) => contextId)).size).toBe(1);
    expect(await ids()).toBe(before + 1);
    const other = {
      ...message,
      message: { ...request('other words').message, messageId: message.message?.messageId },
    };
    await expect(agent.sendMessage(other as typeof message)).rejects.toMatchObject({
      name: 'RequestMalformedError',
    });
  });

  test('messages of a context reach one agent, which remembers earlier messages', async () => {
    functions.slow = async ({ messages }) => ({
      text: String(messages.filter(({ role }) => role === 'user').length),
    });
    const agent = await client('slow');
    const contextId = `trip-${version}`;
    const first = taskOf(await agent.sendMessage(request('one', { contextId })));
    const second = taskOf(await agent.sendMessage(request('two', { contextId })));
    const apart = taskOf(await agent.sendMessage(request('three')));
    expect([first.contextId, second.contextId]).toEqual([contextId, contextId]);
    expect(Number(resultOf(second))).toBeGreaterThan(Number(resultOf(first)));
    expect(resultOf(apart)).toBe(resultOf(first));
    const agents = await stage.database.pool.query(
      'select distinct t.agent_id from boxcar.handoffs h join boxcar.turns t on t.id = h.turn_id where h.conversation = $1',
      [contextId],
    );
    expect(agents.rowCount).toBe(1);
  });

  test('two first messages of a context at the same moment make one agent', async () => {
    const agent = await client();
    const contextId = `rush-${version}`;
    await Promise.all(['a', 'b', 'c'].map((words) => agent.sendMessage(request(words, { contextId }))));
    const agents = await stage.database.pool.query(
      'select distinct t.agent_id from boxcar.handoffs h join boxcar.turns t on t.id = h.turn_id where h.conversation = $1',
      [contextId],
    );
    expect(agents.rowCount).toBe(1);
  });

  test('data is a payload, and files are refused with the error of the protocol', async () => {
    functions.slow = async ({ messages }) => ({
      text: JSON.stringify(messages).includes('42') ? 'seen' : 'not seen',
    });
    const agent = await client('slow');
    const data = partOf({ $case: 'data', value: { answer: 42 } });
    expect(resultOf(taskOf(await agent.sendMessage(request([data]))))).toBe('seen');
    const before = await ids();
    const file = partOf({ $case: 'url', value: 'https://files.example/a.pdf' });
    await expect(agent.sendMessage(request([file]))).rejects.toMatchObject({
      name: 'ContentTypeNotSupportedError',
    });
    const raw = partOf({ $case: 'raw', value: Buffer.from('x') });
    await expect(agent.sendMessage(request([raw]))).rejects.toMatchObject({
      name: 'ContentTypeNotSupportedError',
    });
    expect(await ids()).toBe(before);
  });

  test('a task that is unknown, has ended or is in another context accepts no message', async () => {
    const agent = await client();
    const task = taskOf(await agent.sendMessage(request('done')));
    const id = '0198c1f2-5d21-7ae1-821d-cb1b3af8b547';
    for (const taskId of [id, 'nothing'])
      await expect(agent.sendMessage(request('x', { taskId }))).rejects.toMatchObject({
        name: 'TaskNotFoundError',
      });
    await expect(agent.getTask({ tenant: '', id })).rejects.toMatchObject({ name: 'TaskNotFoundError' });
    await expect(agent.sendMessage(request('x', { taskId: task.id }))).rejects.toMatchObject({
      name: 'UnsupportedOperationError',
      message: expect.stringContaining(task.contextId),
    });
    await expect(
      agent.sendMessage(request('x', { taskId: task.id, contextId: 'other' })),
    ).rejects.toMatchObject({ name: 'RequestMalformedError' });
  });

  test('a failed turn is a failed task with its reason', async () => {
    await stage.agent('broken', [{ fail: { status: 400, message: 'the crane is stuck' } }]);
    const task = taskOf(await (await client('broken')).sendMessage(request('lift')));
    expect(task.status?.state).toBe(TaskState.TASK_STATE_FAILED);
    expect(task.status?.message?.parts[0]?.content?.value).not.toBe('');
    expect(task.artifacts).toEqual([]);
    functions.slow = () => Promise.reject(new Error('connect ECONNREFUSED 10.1.2.3:5432 /srv/secrets.yaml'));
    const inside = taskOf(await (await client('slow')).sendMessage(request('go')));
    expect(inside.status?.state).toBe(TaskState.TASK_STATE_FAILED);
    expect(JSON.stringify(inside)).not.toMatch(/10\.1\.2\.3|secrets|scripted/);
  });

  test('a request for push notifications is refused as not supported', async () => {
    const agent = await client();
    const config = {
      tenant: '',
      id: 'c',
      taskId: 't',
      url: 'https://x.example',
      token: '',
      authentication: undefined,
    };
    const message = request('x');
    await expect(
      agent.sendMessage({
        ...message,
        configuration: { ...message.configuration, taskPushNotificationConfig: config } as never,
      }),
    ).rejects.toMatchObject({ name: 'PushNotificationNotSupportedError' });
  });
});

test('tasks are listed by context and state, page by page', async () => {
  const agent = await stage.client('echo', key);
  const contextId = 'listed';
  const made = [];
  for (const words of ['one', 'two', 'three'])
    made.unshift(taskOf(await agent.sendMessage(request(words, { contextId }))).id);
  const ask = {
    tenant: '',
    contextId,
    status: TaskState.TASK_STATE_UNSPECIFIED,
    pageSize: 2,
    pageToken: '',
    statusTimestampAfter: undefined,
  };
  const first = await agent.listTasks(ask);
  expect(first.tasks.map(({ id }) => id)).toEqual(made.slice(0, 2));
  expect([first.totalSize, first.pageSize, first.tasks[0]?.artifacts]).toEqual([3, 2, []]);
  const second = await agent.listTasks({ ...ask, pageToken: first.nextPageToken, includeArtifacts: true });
  expect(second.tasks.map(({ id }) => id)).toEqual(made.slice(2));
  expect([second.nextPageToken, resultOf(second.tasks[0] as never)]).toEqual(['', 'You said one']);
  expect((await agent.listTasks({ ...ask, status: TaskState.TASK_STATE_FAILED })).totalSize).toBe(0);
  const later = new Date(Date.now() + 60_000).toISOString();
  expect((await agent.listTasks({ ...ask, statusTimestampAfter: later })).tasks).toEqual([]);
  for (const wrong of [
    { pageSize: 0 },
    { pageSize: 1_000 },
    { pageToken: 'x' },
    { pageToken: `tasks:0000-01-01T00:00:00.000000Z:${made[0]}` },
    { statusTimestampAfter: 'x' },
    { statusTimestampAfter: '0000-01-01T00:00:00.000Z' },
    { statusTimestampAfter: '-271821-04-20T00:00:00.000Z' },
  ])
    await expect(agent.listTasks({ ...ask, ...wrong })).rejects.toMatchObject({
      name: 'RequestMalformedError',
    });
});

test('a message that waits is answered with the current task when its time is over, and when the server stops', async () => {
  const begun = gate();
  const said = gate();
  functions.slow = async () => {
    begun.open();
    await said.opened;
    return { text: 'late' };
  };
  const states = [TaskState.TASK_STATE_SUBMITTED, TaskState.TASK_STATE_WORKING];
  const message = request('wait', { contextId: 'stops' });
  {
    await using hasty = await openStage({ database: stage.database, works: false, waitMs: 1 });
    const task = taskOf(await (await hasty.client('slow', key)).sendMessage(message));
    expect(states).toContain(task.status?.state);
  }
  await begun.opened;
  await using stopping = await openStage({ database: stage.database, works: false });
  const client = await stopping.client('slow', key);
  const waiting = client.sendMessage(message);
  await waitFor(async () => stopping.log.some(({ event }) => event === 'a2a.waits') || undefined, {
    message: 'the message to wait',
  });
  await stopping.frame.close({ graceMs: 60_000 });
  const { id, status } = taskOf(await waiting);
  expect(states).toContain(status?.state);
  said.open();
  const agent = await stage.client('slow', key);
  expect(resultOf(await untilEnded(() => agent.getTask({ tenant: '', id })))).toBe('late');
});

async function untilEnded<T extends { status?: { state: TaskState } | undefined }>(
  look: () => Promise<T>,
): Promise<T> {
  return waitFor(
    async () => {
      const seen = await look();
      return seen.status !== undefined && seen.status.state >= TaskState.TASK_STATE_COMPLETED
        ? seen
        : undefined;
    },
    { message: 'the task has ended' },
  );
}

test('a reader that is dropped leaves no listener on its task', async () => {
  await using strict = await openStage({ functions, stallMs: 300 });
  await strict.agent('slow', [], { model: 'scripted:slow', script: undefined });
  const followers: { readonly isOpen: boolean }[] = [];
  const { watcher } = strict.opened.runtime;
  const follow = watcher.follow.bind(watcher);
  vi.spyOn(watcher, 'follow').mockImplementation((id) => {
    const follower = follow(id);
    const forget = follower[Symbol.dispose].bind(follower);
    const seen = { isOpen: true };
    followers.push(seen);
    follower[Symbol.dispose] = () => {
      seen.isOpen = false;
      forget();
    };
    return follower;
  });
  const said = gate();
  functions.slow = async (_request, { write }) => {
    for (let n = 0; n < 200; n += 1) write('x'.repeat(50_000));
    await said.opened;
    return { text: '' };
  };
  const { message } = request('much');
  const body = JSON.stringify({
    jsonrpc: '2.0',
    id: 1,
    method: 'SendStreamingMessage',
    params: { message: { ...message, role: 'ROLE_USER', parts: [{ text: 'much' }] } },
  });
  const headers = { 'content-type': 'application/json', 'a2a-version': '1.0', ...bearer(await strict.key()) };
  const response = await fetch(`${strict.url}/a2a/slow`, { method: 'POST', headers, body });
  await waitFor(async () => strict.log.some(({ event }) => event === 'http.reader_dropped') || undefined, {
    message: 'the reader to be dropped',
  });
  await waitFor(async () => followers.every(({ isOpen }) => !isOpen) || undefined, {
    message: 'its follower to be gone',
  });
  expect(followers).toHaveLength(1);
  said.open();
  await response.body?.cancel().catch(() => undefined);
});
