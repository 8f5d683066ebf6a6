/** Push notifications: asked for by the official SDK's client, sent to a receiver that checks what it gets. */
import { type SendMessageRequest, type TaskPushNotificationConfig, TaskState } from '@a2a-js/sdk';
import { HandoffTool } from '@boxcar/runtime';
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
import { bearer, openStage, request, type Stage, taskOf, type Version } from './testing/stage.js';

const WEBHOOKS = { secret: PUSH_SECRET, allowPrivate: ['127.0.0.1'], retrySeconds: 0.05 };

let stage: Stage;
let tool: HandoffTool;
let key: string;

beforeEach(async () => {
  stage = await openStage({
    handoffs: { enabled: true, webhooks: WEBHOOKS },
    agents: { clerk: async (_input, { ask }) => ask('Which quay?') },
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

/** A message with a configuration, which does not wait. */
function notified(words: string, config: TaskPushNotificationConfig, rest: object = {}): SendMessageRequest {
  const message = request(words, { returnImmediately: true, ...rest });
  return {
    ...message,
    configuration: { acceptedOutputModes: [], returnImmediately: true, taskPushNotificationConfig: config },
  };
}

/** The state as the notification has it, in both protocols. */
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
  test('the card says so, and the question and the end of a task are sent, signed and with the token', async () => {
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

  test('a configuration is set, shown, listed, changed and deleted, and ended tasks are sent at once', async () => {
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

  test('a message that is sent again with its configuration is one task and one notification', async () => {
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

  test('what may not be sent to, and what a header cannot carry, is refused before there is a task', async () => {
    const echo = await stage.client('echo', key, version);
    for (const wrong of [
      { url: 'http://169.254.169.254/latest' },
      { url: 'http://2130706434/' },
      { url: 'http://[::ffff:10.0.0.1]/' },
      { url: 'file:///etc/passwd' },
      { url: 'http://user:word@receiver.example/' },
      { url: 'nothing' },
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

test('a notification that is not taken is sent again under its id, and given up when its receiver is gone', async () => {
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

test('a receiver that was taken back, or whose address has changed, is sent nothing more', async () => {
  await using receiver = await openPushReceiver('1.0');
  await using other = await openPushReceiver('1.0');
  const porter = await stage.client('porter', key);
  for (const [change, n] of [
    ['delete', 1],
    ['set', 2],
  ] as const) {
    receiver.statuses.push(...Array.from({ length: 200 }, () => 503));
    const { id: taskId } = taskOf(await porter.sendMessage(notified(change, configOf(receiver))));
    await waitFor(
      async () =>
        (await deliveries()).some(({ status, attempts }) => status === 'pending' && attempts > 0) ||
        undefined,
      {
        message: 'it has failed once',
      },
    );
    if (change === 'delete')
      await porter.deleteTaskPushNotificationConfig({ tenant: '', taskId, id: 'inbox' });
    else await porter.createTaskPushNotificationConfig(configOf(other, { taskId }));
    await waitFor(
      async () =>
        (await deliveries()).filter(({ last_error }) => last_error?.includes('taken back')).length === n ||
        undefined,
      { message: 'it is given up', deadlineMs: 15_000 },
    );
    await porter.sendMessage(request('seven', { taskId }));
  }
  await other.reached(1);
  expect(other.pushed.map((one) => taskIn(one)?.status?.state)).toEqual([TaskState.TASK_STATE_COMPLETED]);
});

test('a key of another name sets, sees and deletes none, and eleven receivers are too many', async () => {
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

test('a result that was erased is not sent, and all of it goes at a purge', async () => {
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

test('an installation without a secret sends none, and its card says so', async () => {
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
