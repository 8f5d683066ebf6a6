/** Push notifications: the client of the official SDK requests them, and a receiver checks each one that it gets. */
import { type SendMessageRequest, type TaskPushNotificationConfig, TaskState } from '@a2a-js/sdk';
import { type AgentFunction, HandoffTool } from '@boxcar/runtime';
import { purgeRuns } from '@boxcar/store';
import { waitFor } from '@boxcar/testkit';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import {
  openPushReceiver,
  PUSH_SECRET,
  type Pushed,
  type PushReceiver,
  TOKEN,
  taskIn,
} from './testing/push-receiver.js';
import { bearer, gate, openStage, request, type Stage, taskOf, type Version } from './testing/stage.js';

const WEBHOOKS = { secret: PUSH_SECRET, allowPrivate: ['127.0.0.1'], retrySeconds: 0.05 };

let stage: Stage;
let tool: HandoffTool;
let key: string;
let clerk: AgentFunction;

beforeEach(async () => {
  clerk = async (_input, { ask }) => ask('Which quay?');
  stage = await openStage({
    handoffs: { enabled: true, webhooks: WEBHOOKS },
    agents: { clerk: (input, context) => clerk(input, context) },
  });
  key = await stage.key({ name: 'desk' });
  tool = new HandoffTool({ runtime: stage.opened.runtime, concurrency: 0 });
  await stage.agent('echo', [{ say: 'You said {{instruction}}' }]);
  const call = { tool: 'handoff', arguments: { target_agent: 'clerk', task: 'Find out.' } };
  await stage.agent('porter', [{ calls: [call] }, { say: 'They say {{results/handoff}}' }], {
    tools: ['handoff'],
    delegation_policy: { target_profiles: null },
  });
});
afterEach(async () => {
  await tool.close();
  await stage[Symbol.asyncDispose]();
});

const configOf = (
  { url }: Pick<PushReceiver, 'url'>,
  rest: Partial<TaskPushNotificationConfig> = {},
): TaskPushNotificationConfig => ({
  tenant: '',
  id: 'inbox',
  taskId: '',
  url,
  token: TOKEN,
  authentication: undefined,
  ...rest,
});

/** A message with a push configuration that does not wait for the end of its task. */
function notified(words: string, config: TaskPushNotificationConfig, rest: object = {}): SendMessageRequest {
  const message = request(words, { returnImmediately: true, ...rest });
  return {
    ...message,
    configuration: { acceptedOutputModes: [], returnImmediately: true, taskPushNotificationConfig: config },
  };
}

/** The state of the task in a notification, in either protocol. */
function stateIn(pushed: Pushed, version: Version): unknown {
  if (version === '1.0') return taskIn(pushed)?.status?.state;
  const { kind, status } = pushed.body as { kind: string; status: { state: string } };
  return kind === 'task' && status.state;
}
const DONE = { '1.0': TaskState.TASK_STATE_COMPLETED, '0.3': 'completed' } as const;
const ASKS = { '1.0': TaskState.TASK_STATE_INPUT_REQUIRED, '0.3': 'input-required' } as const;

const deliveries = async () =>
  (
    await stage.database.pool.query<{
      id: string;
      status: string;
      attempts: number;
      last_error: string | null;
    }>('select id, status, attempts, last_error from boxcar.webhook_deliveries order by created_at, id')
  ).rows;
const delivered = (count: number) =>
  waitFor(
    async () => {
      const all = await deliveries();
      return all.length === count && all.every(({ status }) => status === 'delivered') ? all : undefined;
    },
    { message: `${count} deliveries` },
  );

describe.each(['1.0', '0.3'] as const)('protocol %s', (version) => {
  test('is named in the card, and the question and the end of a task are sent, signed and with the token', async () => {
    await using receiver = await openPushReceiver(version);
    const porter = await stage.client('porter', key, version);
    expect((await porter.getAgentCard()).capabilities?.pushNotifications).toBe(true);
    const { id: taskId } = taskOf(await porter.sendMessage(notified('where', configOf(receiver))));
    const [asked] = await receiver.reached(1);
    expect(asked && stateIn(asked, version)).toBe(ASKS[version]);
    expect(JSON.stringify(asked?.body)).toContain('Which quay?');
    await porter.sendMessage(request('seven', { taskId }));
    const pushed = await receiver.reached(2);
    expect(pushed.map((one) => stateIn(one, version))).toEqual([ASKS[version], DONE[version]]);
    expect(JSON.stringify(pushed[1]?.body)).toContain('seven');
    expect(JSON.stringify(pushed[1]?.body)).toContain(taskId);
    expect(new Set(pushed.map(({ id }) => id)).size).toBe(2);
    expect(receiver.refusals).toEqual([]);
    await delivered(2);
    const { webhooks } = await tool.listWebhooks({ handoff_id: taskId });
    expect(webhooks.map(({ event_type, push_config }) => [event_type, push_config])).toEqual([
      ['handoff.completed', 'inbox'],
      ['handoff.question', 'inbox'],
    ]);
  });

  test('lets a configuration be set, shown, listed, changed and deleted, and sends ended tasks at once', async () => {
    await using receiver = await openPushReceiver(version);
    const echo = await stage.client('echo', key, version);
    const { id: taskId } = taskOf(await echo.sendMessage(request('good day')));
    const authentication = { scheme: 'Basic', credentials: 'abc' };
    const config = configOf(receiver, { taskId, authentication });
    const set = await echo.createTaskPushNotificationConfig(config);
    expect(set).toMatchObject({ id: 'inbox', taskId, url: receiver.url, token: TOKEN });
    const [pushed] = await receiver.reached(1);
    expect(pushed && stateIn(pushed, version)).toBe(DONE[version]);
    expect(pushed?.headers.authorization).toBe('Basic abc');
    await echo.createTaskPushNotificationConfig(config);
    const ask = { tenant: '', taskId, id: 'inbox' };
    expect(await echo.getTaskPushNotificationConfig(ask)).toMatchObject({ id: 'inbox', authentication });
    const page = { tenant: '', taskId, pageSize: 10, pageToken: '' };
    expect((await echo.listTaskPushNotificationConfig(page)).configs).toHaveLength(1);
    await echo.deleteTaskPushNotificationConfig(ask);
    await echo.deleteTaskPushNotificationConfig(ask);
    await expect(echo.getTaskPushNotificationConfig(ask)).rejects.toMatchObject({
      name: 'TaskNotFoundError',
    });
    expect((await echo.listTaskPushNotificationConfig(page)).configs).toEqual([]);
    await delivered(1);
    expect(receiver.pushed).toHaveLength(1);
  });

  test('makes one task and one notification of a message that is repeated with its configuration', async () => {
    await using receiver = await openPushReceiver(version);
    const echo = await stage.client('echo', key, version);
    const message = notified('once', configOf(receiver, { id: '' }), { messageId: `once-${version}` });
    const tasks = await Promise.all([1, 2, 3].map(() => echo.sendMessage(message)));
    expect(new Set(tasks.map((task) => taskOf(task).id)).size).toBe(1);
    await delivered(1);
    await echo.sendMessage(message);
    expect(receiver.pushed).toHaveLength(1);
    const [taskId = ''] = tasks.map((task) => taskOf(task).id);
    expect(await echo.getTaskPushNotificationConfig({ tenant: '', taskId, id: taskId })).toMatchObject({
      id: taskId,
    });
  });

  test('refuses an address that is not allowed and a value that no header can carry, before there is a task', async () => {
    const echo = await stage.client('echo', key, version);
    for (const wrong of [
      { url: 'http://169.254.169.254/latest' },
      { url: 'http://2130706434/' },
      { url: 'http://[::ffff:10.0.0.1]/' },
      { url: 'file:///etc/passwd' },
      { url: 'http://user:word@receiver.example/' },
      { url: 'nothing' },
      { url: `https://receiver.example/${'x'.repeat(2_000)}` },
      { url: '' },
      { url: 'https://receiver.example/', token: 'two\r\nlines: x' },
      { url: 'https://receiver.example/', authentication: { scheme: 'a b', credentials: 'x' } },
      { url: 'https://receiver.example/', id: 'x'.repeat(501) },
    ])
      await expect(echo.sendMessage(notified('x', configOf({ url: '' }, wrong)))).rejects.toMatchObject({
        name: 'RequestMalformedError',
      });
    expect((await stage.database.pool.query('select from boxcar.handoffs')).rowCount).toBe(0);
  });
});

test('a notification that is not accepted is sent again with its id, and is given up when its receiver is gone', async () => {
  await using receiver = await openPushReceiver('1.0');
  receiver.statuses.push(500, 503);
  const echo = await stage.client('echo', key);
  await echo.sendMessage(notified('again', configOf(receiver)));
  expect(await delivered(1)).toMatchObject([{ attempts: 3 }]);
  expect(new Set(receiver.pushed.map(({ id }) => id)).size).toBe(1);
  receiver.statuses.push(410);
  await echo.sendMessage(notified('gone', configOf(receiver)));
  await waitFor(async () => (await deliveries())[1]?.status === 'failed' || undefined, {
    message: 'it is given up',
  });
});

/** A task of the porter with a question. Its receiver refuses all notifications. */
async function untaken(receiver: PushReceiver): Promise<string> {
  receiver.statuses.push(...Array.from({ length: 200 }, () => 503));
  const porter = await stage.client('porter', key);
  const { id: taskId } = taskOf(await porter.sendMessage(notified('where', configOf(receiver))));
  await waitFor(async () => (await deliveries()).some(({ attempts }) => attempts > 0) || undefined, {
    message: 'it has failed once',
  });
  return taskId;
}

test('a receiver that was removed gets nothing more, until it is configured again', async () => {
  await using receiver = await openPushReceiver('1.0');
  const taskId = await untaken(receiver);
  const porter = await stage.client('porter', key);
  await porter.deleteTaskPushNotificationConfig({ tenant: '', taskId, id: 'inbox' });
  await waitFor(
    async () =>
      (await deliveries()).some(({ last_error }) => last_error?.includes('taken back')) || undefined,
    { message: 'it is given up', deadlineMs: 15_000 },
  );
  receiver.statuses.length = 0;
  await porter.createTaskPushNotificationConfig(configOf(receiver, { taskId }));
  await delivered(1);
  const last = receiver.pushed.at(-1);
  expect(last && taskIn(last)?.status?.state).toBe(ASKS['1.0']);
});

test('a waiting notification is sent to the new address after a change', async () => {
  await using receiver = await openPushReceiver('1.0');
  await using other = await openPushReceiver('1.0');
  const taskId = await untaken(receiver);
  const porter = await stage.client('porter', key);
  await porter.createTaskPushNotificationConfig(configOf(other, { taskId }));
  await other.reached(1);
  await delivered(1);
  const before = receiver.pushed.length;
  await porter.sendMessage(request('seven', { taskId }));
  await delivered(2);
  expect(other.pushed.map((one) => taskIn(one)?.status?.state)).toEqual([ASKS['1.0'], DONE['1.0']]);
  expect(receiver.pushed).toHaveLength(before);
});

test('the end of a task that its receiver has refused is sent to the next address', async () => {
  await using gone = await openPushReceiver('1.0');
  await using other = await openPushReceiver('1.0');
  gone.statuses.push(410);
  const echo = await stage.client('echo', key);
  const { id: taskId } = taskOf(await echo.sendMessage(notified('bye', configOf(gone))));
  await waitFor(async () => (await deliveries())[0]?.status === 'failed' || undefined, {
    message: 'it is given up',
  });
  await echo.createTaskPushNotificationConfig(configOf(gone, { taskId }));
  expect(await deliveries()).toMatchObject([{ status: 'failed' }]);
  await echo.createTaskPushNotificationConfig(configOf(other, { taskId }));
  const [pushed] = await other.reached(1);
  expect(pushed && taskIn(pushed)?.status?.state).toBe(DONE['1.0']);
  expect(gone.pushed).toHaveLength(1);
});

const asks = (one: Pushed): unknown => taskIn(one)?.status?.message?.parts[0]?.content?.value;

test('each of two questions at the same time is sent when it is its turn', async () => {
  await using receiver = await openPushReceiver('1.0');
  clerk = async (_input, { ask }) => (await Promise.all(['One?', 'Two?'].map((text) => ask(text)))).join();
  const porter = await stage.client('porter', key);
  const { id: taskId } = taskOf(await porter.sendMessage(notified('where', configOf(receiver))));
  const asked = await waitFor(
    async () => {
      const { rows } = await stage.database.pool.query<{ handoff_id: string }>(
        'select handoff_id from boxcar.handoff_messages',
      );
      return rows.length === 2 ? rows[0]?.handoff_id : undefined;
    },
    { message: 'both questions are open' },
  );
  const [first] = await receiver.reached(1);
  await delivered(1);
  const told = (await tool.messages(asked)).find(({ text }) => text === (first && asks(first)));
  // The reply is written inside the installation, so no reply over the protocol refers to the other question.
  await tool.reply(asked, 'yes', { question: told?.seq });
  await receiver.reached(2);
  expect(receiver.pushed.map(asks).toSorted()).toEqual(['One?', 'Two?']);
  await porter.sendMessage(request('no', { taskId }));
  await delivered(3);
  expect(receiver.pushed).toHaveLength(3);
});

test('a question that another attempt asks again is sent again', async () => {
  await using receiver = await openPushReceiver('1.0');
  const isTaken = gate();
  const asksAgain = gate();
  let attempts = 0;
  clerk = async (_input, { ask }) => {
    attempts += 1;
    if (attempts > 1) {
      await asksAgain.opened;
      return ask('Which quay?');
    }
    ask('Which quay?').catch(() => undefined);
    await isTaken.opened;
    throw Object.assign(new Error('for a moment'), { retryable: true });
  };
  const retry = { max_attempts: 2, base_seconds: 0.01 };
  const call = { tool: 'handoff', arguments: { target_agent: 'clerk', task: 'Find out.', retry } };
  await stage.agent('again', [{ calls: [call] }, { say: 'They say {{results/handoff}}' }], {
    tools: ['handoff'],
    delegation_policy: { target_profiles: null },
  });
  const again = await stage.client('again', key);
  await again.sendMessage(notified('where', configOf(receiver)));
  await receiver.reached(1);
  await delivered(1);
  isTaken.open();
  await waitFor(() => Promise.resolve(attempts === 2 || undefined), { message: 'another attempt' });
  asksAgain.open();
  const pushed = await receiver.reached(2);
  expect(pushed.map(asks)).toEqual(['Which quay?', 'Which quay?']);
  expect(new Set(pushed.map(({ id }) => id)).size).toBe(2);
});

test('no role but the owner may write notifications', async () => {
  const { rows } = await stage.database.pool.query(
    "select p.proname from pg_proc p where p.pronamespace = 'boxcar'::regnamespace and p.proname in ('push_event', 'push_asked') and has_function_privilege('public', p.oid, 'execute')",
  );
  expect(rows).toEqual([]);
});

test('a key of another name sets, sees and deletes no configuration, and eleven receivers are too many', async () => {
  await using receiver = await openPushReceiver('1.0');
  const echo = await stage.client('echo', key);
  const { id: taskId } = taskOf(await echo.sendMessage(request('mine')));
  const stranger = await stage.client('echo', await stage.key({ name: 'stranger' }));
  const ask = { tenant: '', taskId, id: 'inbox' };
  const unknown = { name: 'TaskNotFoundError' };
  await expect(
    stranger.createTaskPushNotificationConfig(configOf(receiver, { taskId })),
  ).rejects.toMatchObject(unknown);
  await expect(stranger.getTaskPushNotificationConfig(ask)).rejects.toMatchObject(unknown);
  await expect(stranger.deleteTaskPushNotificationConfig(ask)).rejects.toMatchObject(unknown);
  for (let n = 1; n <= 10; n += 1)
    await echo.createTaskPushNotificationConfig(configOf(receiver, { taskId, id: `inbox-${n}` }));
  await expect(
    echo.createTaskPushNotificationConfig(configOf(receiver, { taskId, id: 'one more' })),
  ).rejects.toMatchObject({ name: 'RequestMalformedError' });
  await delivered(10);
});

test('an answer that would add one receiver too many is refused, and answers nothing', async () => {
  await using receiver = await openPushReceiver('1.0');
  const porter = await stage.client('porter', key);
  const { id: taskId } = taskOf(await porter.sendMessage(request('where')));
  for (let n = 1; n <= 10; n += 1)
    await porter.createTaskPushNotificationConfig(configOf(receiver, { taskId, id: `inbox-${n}` }));
  const answer = (id: string) =>
    porter.sendMessage(notified('seven', configOf(receiver, { id }), { taskId }));
  await expect(answer('one more')).rejects.toMatchObject({ name: 'RequestMalformedError' });
  expect((await stage.database.pool.query('select from boxcar.handoff_messages')).rowCount).toBe(1);
  await answer('inbox-1');
  expect((await stage.database.pool.query('select from boxcar.handoff_messages')).rowCount).toBe(2);
  await receiver.reached(20);
});

test('an erased result is not sent, and all configurations and notifications are purged', async () => {
  await using receiver = await openPushReceiver('1.0');
  const echo = await stage.client('echo', key);
  const { id: taskId } = taskOf(await echo.sendMessage(notified('bye', configOf(receiver))));
  await receiver.reached(1);
  await delivered(1);
  await stage.database.pool.query(
    "select boxcar.erase_cards(array(select deliverable_card_id from boxcar.turns t join boxcar.handoffs h on h.turn_id = t.id where h.id = $1), 'asked')",
    [taskId],
  );
  await echo.createTaskPushNotificationConfig(configOf(receiver, { taskId, id: 'late' }));
  const [, late] = await receiver.reached(2);
  expect(JSON.stringify(late?.body)).not.toContain('You said bye');
  await delivered(2);
  await purgeRuns(stage.database.pool, { before: new Date(Date.now() + 60_000) });
  expect(await deliveries()).toEqual([]);
  expect((await stage.database.pool.query('select from boxcar.push_configs')).rowCount).toBe(0);
});

test('an installation without a secret sends no notifications, and its card says so', async () => {
  await using plain = await openStage({ database: stage.database, works: false });
  const client = await plain.client('echo', key);
  expect((await client.getAgentCard()).capabilities?.pushNotifications).toBe(false);
  const answer = await fetch(`${plain.url}/a2a/echo`, {
    method: 'POST',
    headers: { 'content-type': 'application/json', 'a2a-version': '1.0', ...bearer(key) },
    body: JSON.stringify({
      jsonrpc: '2.0',
      id: 1,
      method: 'CreateTaskPushNotificationConfig',
      params: { taskId: 'x', url: 'https://receiver.example/' },
    }),
  });
  expect(await answer.json()).toMatchObject({ error: { code: -32003 } });
});
