/** Which keys reach which public agents, and how all other requests are refused. */
import { TaskState } from '@a2a-js/sdk';
import { ApprovalGate, createKey, revokeKey } from '@boxcar/runtime';
import { waitFor } from '@boxcar/testkit';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { bearer, openClient, openStage, request, resultOf, type Stage, taskOf } from './testing/stage.js';

const POLICY = `
tools:
  handoff: { permission: ALWAYS }
rules:
  - { condition: { context: { target_agent: secret } }, permission: NEVER }
  - { condition: { context: { source_agent: "a2a:banned" } }, permission: NEVER }
  - { condition: { context: { target_agent: guarded } }, permission: REQUIRE_APPROVAL }
`;

let stage: Stage;
let key: string;

beforeAll(async () => {
  stage = await openStage({ policy: POLICY, bodyLimitBytes: 20_000 });
  key = await stage.key({ name: 'desk' });
  await stage.agent('echo', [{ say: 'You said {{instruction}}' }], {
    description: 'Repeats.',
    tags: ['words'],
  });
  await stage.agent('private', [{ say: 'never' }], { public: undefined });
  await stage.agent('not-public', [{ say: 'never' }], { public: false });
  await stage.agent('secret', [{ say: 'never' }]);
  await stage.agent('guarded', [{ say: 'allowed' }]);
  await stage.opened.runtime.createProject({ name: 'other' });
});
afterAll(() => stage[Symbol.asyncDispose]());

const counts = async (): Promise<readonly unknown[]> =>
  (
    await stage.database.pool.query(
      'select (select count(*) from boxcar.handoffs) as handoffs, (select count(*) from boxcar.turns) as turns, (select count(*) from boxcar.cards) as cards, (select count(*) from boxcar.agents) as agents',
    )
  ).rows;

const card = (agent: string, headers: Readonly<Record<string, string>> = bearer(key)) =>
  fetch(`${stage.url}/a2a/${agent}/.well-known/agent-card.json`, { headers });
const post = (agent: string, body: unknown, headers: Readonly<Record<string, string>> = {}) =>
  fetch(`${stage.url}/a2a/${agent}`, {
    method: 'POST',
    headers: { 'content-type': 'application/json', 'a2a-version': '1.0', ...bearer(key), ...headers },
    body: typeof body === 'string' ? body : JSON.stringify(body),
  });
const say = (words: string, id = words) => ({
  jsonrpc: '2.0',
  id: 1,
  method: 'SendMessage',
  params: { message: { messageId: id, role: 'ROLE_USER', parts: [{ text: words }] } },
});

describe('the check of keys', () => {
  test('refuses a missing, wrong, revoked or expired key on both routes, and a key without the scope', async () => {
    const before = await counts();
    const { key: revoked, key_id } = await createKey(stage.database.pool, { scopes: ['a2a:call'] });
    await revokeKey(stage.database.pool, key_id);
    const { key: expired, key_id: expiredId } = await createKey(stage.database.pool, {
      scopes: ['a2a:call'],
    });
    await stage.database.pool.query(
      "update boxcar.api_keys set expires_at = now() - interval '1 second' where id = $1",
      [expiredId],
    );
    const wrongScope = await stage.key({
      scopes: ['approvals:read', 'approvals:write', 'handoffs:read', 'handoffs:write'],
    });
    for (const [what, headers, status] of [
      ['no key', { authorization: '' }, 401],
      ['a wrong key', bearer('boxcar_x'), 401],
      ['a revoked key', bearer(revoked), 401],
      ['an expired key', bearer(expired), 401],
      ['a key without the scope', bearer(wrongScope), 403],
    ] as const) {
      expect([what, (await card('echo', headers)).status]).toEqual([what, status]);
      expect([what, (await post('echo', say('x'), headers)).status]).toEqual([what, status]);
    }
    expect(await counts()).toEqual(before);
  });

  test('answers for an agent of another project, or an agent that is not public, as for an unknown agent', async () => {
    const foreign = await stage.key({ projectId: 'other' });
    const before = await counts();
    const bodies = [];
    for (const [agent, headers] of [
      ['echo', bearer(foreign)],
      ['private', {}],
      ['not-public', {}],
      ['nobody', {}],
      ['ECHO', {}],
      ['profile:echo', {}],
      ['agent:echo', {}],
      [encodeURIComponent(' echo'), {}],
      ['echo%00', {}],
      ['%E0%A4%A', {}],
    ] as const)
      for (const response of [
        await card(agent, { ...bearer(key), ...headers }),
        await post(agent, say('x'), headers),
      ]) {
        expect([agent, response.status]).toEqual([agent, agent === '%E0%A4%A' ? 400 : 404]);
        const { title, code } = (await response.json()) as Record<string, unknown>;
        if (response.status === 404) bodies.push(JSON.stringify({ title, code }));
      }
    expect(new Set(bodies).size).toBe(1);
    expect(await counts()).toEqual(before);
  });

  test('answers for a task of another name, agent or project as for an unknown task', async () => {
    await stage.opened.runtime.applyProfile({
      name: 'caller',
      instructions: '',
      model: 'scripted',
      script: [{ say: 'x' }],
      delegation_policy: { target_profiles: ['echo'] },
    });
    for (const agent_id of ['sam', 'kim'])
      await stage.opened.runtime.submit('provision_agent', {
        action: 'create',
        profile_name: 'caller',
        agent_id,
      });
    const keys = [
      key,
      await stage.key({ name: 'other' }),
      await stage.key({ agent: 'sam' }),
      await stage.key({ agent: 'kim' }),
    ];
    const clients = await Promise.all(keys.map((one) => stage.client('echo', one)));
    const tasks = await Promise.all(
      clients.map(async (client) =>
        taskOf(await client.sendMessage(request('mine', { messageId: 'same', contextId: 'same' }))),
      ),
    );
    expect(new Set(tasks.map(({ id }) => id)).size).toBe(4);
    expect(tasks.map(({ status }) => status?.state)).toEqual(tasks.map(() => TaskState.TASK_STATE_COMPLETED));
    for (const [n, client] of clients.entries()) {
      const all = {
        tenant: '',
        contextId: 'same',
        status: 0,
        pageToken: '',
        statusTimestampAfter: undefined,
      };
      expect((await client.listTasks(all)).tasks.map(({ id }) => id)).toEqual([tasks[n]?.id]);
      for (const [m, { id }] of tasks.entries()) {
        const seen = client.getTask({ tenant: '', id });
        if (m === n) expect((await seen).id).toBe(id);
        else {
          await expect(seen).rejects.toMatchObject({ name: 'TaskNotFoundError' });
          await expect(client.cancelTask({ tenant: '', id, metadata: undefined })).rejects.toMatchObject({
            name: 'TaskNotFoundError',
          });
          await expect(client.resubscribeTask({ tenant: '', id }).next()).rejects.toMatchObject({
            name: 'TaskNotFoundError',
          });
        }
      }
    }
    const agents = await stage.database.pool.query(
      "select distinct t.agent_id from boxcar.handoffs h join boxcar.turns t on t.id = h.turn_id where h.conversation = 'same'",
    );
    expect(agents.rowCount).toBe(4);
    // An agent's key reaches the tasks of that agent. It does not reach the tasks of a project key with the same name.
    const again = await stage.key({ name: 'desk' });
    expect(
      (await (await stage.client('echo', again)).getTask({ tenant: '', id: tasks[0]?.id ?? '' })).id,
    ).toBe(tasks[0]?.id);
  });

  test('gives separate tasks to keys whose names are as long as allowed', async () => {
    const ids: string[] = [];
    for (const end of ['1', '2']) {
      const client = await stage.client('echo', await stage.key({ name: `${'n'.repeat(199)}${end}` }));
      ids.push(taskOf(await client.sendMessage(request('mine', { messageId: 'long' }))).id);
    }
    expect(new Set(ids).size).toBe(2);
  });

  test('lets an agent’s key ask in the agent’s name, within the delegation policy of its profile', async () => {
    const client = await stage.client('guarded', await stage.key({ agent: 'sam' }));
    const task = taskOf(await client.sendMessage(request('may I?')));
    expect(task.status?.state).toBe(TaskState.TASK_STATE_FAILED);
    expect(task.metadata).toMatchObject({ code: 'delegation_denied' });
    const { rows } = await stage.database.pool.query(
      'select source_agent, turn_id from boxcar.handoffs where id = $1',
      [task.id],
    );
    expect(rows).toEqual([{ source_agent: 'sam', turn_id: null }]);
  });
});

describe('under a policy', () => {
  test('a forbidden target is a rejected task in every spelling, in both protocols, and none of it runs', async () => {
    const [before] = (await counts()) as { turns: string; agents: string }[];
    let tried = 0;
    for (const name of ['secret', '%73ecret', 's%65cret'])
      for (const version of ['1.0', '0.3'] as const)
        for (const key of [await stage.key(), await stage.key({ name: 'banned' })]) {
          const client = await stage.client(name, key, version);
          const contextId = `c${tried++}`;
          const task = taskOf(await client.sendMessage(request('run', { contextId })));
          expect(task.status?.state).toBe(TaskState.TASK_STATE_REJECTED);
          expect(task.status?.message?.parts[0]?.content?.value).toContain('not allowed by policy');
          const events = [];
          for await (const { payload } of client.sendMessageStream(request('run', { contextId })))
            events.push(payload);
          expect(events[0]).toMatchObject({ value: { status: { state: TaskState.TASK_STATE_REJECTED } } });
        }
    const banned = await stage.client('echo', await stage.key({ name: 'banned' }));
    expect(taskOf(await banned.sendMessage(request('run'))).status?.state).toBe(
      TaskState.TASK_STATE_REJECTED,
    );
    const [after] = (await counts()) as { turns: string; agents: string }[];
    expect([after?.turns, after?.agents]).toEqual([before?.turns, before?.agents]);
  });

  test('a task that needs an approval waits as submitted, and continues in its context when it is approved', async () => {
    const client = await stage.client('guarded', key);
    const ask = (words: string) =>
      client.sendMessage(request(words, { contextId: 'guarded', returnImmediately: true })).then(taskOf);
    const tasks = [await ask('one'), await ask('two')];
    for (const { status } of tasks) {
      expect(status?.state).toBe(TaskState.TASK_STATE_SUBMITTED);
      expect(status?.message?.parts[0]?.content?.value).toBe('The task waits for an approval.');
    }
    const gate = new ApprovalGate({ runtime: stage.opened.runtime });
    const streams = tasks.map(({ id }) => client.resubscribeTask({ tenant: '', id }));
    for (const stream of streams) expect((await stream.next()).value?.payload?.$case).toBe('task');
    for (const { ticket_id } of (await gate.list({ status: 'pending' })).approvals)
      await gate.approve(ticket_id);
    for (const stream of streams) {
      const events = [];
      for await (const { payload } of stream) events.push(payload);
      expect(events.at(-1)).toMatchObject({ value: { status: { state: TaskState.TASK_STATE_COMPLETED } } });
    }
    for (const { id } of tasks) expect(resultOf(await client.getTask({ tenant: '', id }))).toBe('allowed');
    const agents = await stage.database.pool.query(
      "select distinct t.agent_id from boxcar.handoffs h join boxcar.turns t on t.id = h.turn_id where h.conversation = 'guarded'",
    );
    expect(agents.rowCount).toBe(1);
  });

  test('a task that waits for an approval can be canceled, and a later approval begins nothing', async () => {
    const client = await stage.client('guarded', key);
    const { id } = taskOf(await client.sendMessage(request('stop', { returnImmediately: true })));
    const gate = new ApprovalGate({ runtime: stage.opened.runtime });
    const [ticket] = (await gate.list({ status: 'pending' })).approvals;
    const canceled = await client.cancelTask({ tenant: '', id, metadata: undefined });
    expect(canceled.status?.state).toBe(TaskState.TASK_STATE_CANCELED);
    await gate.approve(ticket?.ticket_id ?? '').catch(() => undefined);
    await expect(client.cancelTask({ tenant: '', id, metadata: undefined })).rejects.toMatchObject({
      name: 'TaskNotCancelableError',
    });
    const { rows } = await stage.database.pool.query(
      'select turn_id, phase from boxcar.handoffs where id = $1',
      [id],
    );
    expect(rows).toEqual([{ turn_id: null, phase: 'canceled' }]);
  });

  test('a denied task is rejected with the reason', async () => {
    const client = await stage.client('guarded', key);
    const waiting = client.sendMessage(request('please'));
    const gate = new ApprovalGate({ runtime: stage.opened.runtime });
    const ticket = await waitFor(async () => (await gate.list({ status: 'pending' })).approvals[0], {
      message: 'a ticket',
    });
    await gate.deny(ticket.ticket_id, { reason: 'not today' });
    const task = taskOf(await waiting);
    expect(task.status?.state).toBe(TaskState.TASK_STATE_REJECTED);
    expect(task.status?.message?.parts[0]?.content?.value).toContain('not today');
  });
});

describe('the card of an agent', () => {
  test('describes the agent, and contains nothing of its instructions, tools and model', async () => {
    const one = await card('echo', { ...bearer(key), 'a2a-version': '1.0' });
    expect(await one.json()).toMatchObject({
      name: 'echo',
      description: 'Repeats.',
      supportedInterfaces: [
        { url: `${stage.url}/a2a/echo`, protocolBinding: 'JSONRPC', protocolVersion: '1.0' },
        { url: `${stage.url}/a2a/echo`, protocolBinding: 'JSONRPC', protocolVersion: '0.3' },
      ],
      capabilities: { streaming: true },
      skills: [{ id: 'echo', tags: ['words'] }],
    });
    const old = await card('echo');
    const text = await old.text();
    expect(JSON.parse(text)).toMatchObject({
      name: 'echo',
      protocolVersion: '0.3.0',
      url: `${stage.url}/a2a/echo`,
      capabilities: { pushNotifications: false },
    });
    expect(text).not.toContain('You are');
    expect(text).not.toContain('scripted');
    expect(one.headers.get('vary')?.toLowerCase()).toContain('a2a-version');
  });

  test('can be read by an allowed web page, and the answer varies by version and origin', async () => {
    const origin = 'https://desk.example';
    await using other = await openStage({
      database: stage.database,
      works: false,
      allowedOrigins: [origin],
    });
    const address = `${other.url}/a2a/echo/.well-known/agent-card.json`;
    const asked = await fetch(address, {
      method: 'OPTIONS',
      headers: { origin, 'access-control-request-method': 'GET' },
    });
    expect(asked.headers.get('access-control-allow-headers')).toContain('a2a-version');
    const { headers } = await fetch(address, { headers: { ...bearer(key), origin } });
    expect(headers.get('vary')?.toLowerCase()).toBe('a2a-version, origin');
  });

  test('behind a proxy has the address that clients use', async () => {
    await using other = await openStage({
      database: stage.database,
      works: false,
      publicUrl: 'https://agents.example/boxcar/',
    });
    const response = await fetch(`${other.url}/a2a/echo/.well-known/agent-card.json`, {
      headers: bearer(key),
    });
    expect(await response.json()).toMatchObject({ url: 'https://agents.example/boxcar/a2a/echo' });
    for (const publicUrl of [
      'agents.example',
      'ftp://agents.example',
      'https://agents.example?x=1',
      'https://:secret@agents.example',
    ])
      await expect(openStage({ database: stage.database, works: false, publicUrl })).rejects.toMatchObject({
        code: 'bad_config',
      });
  });
});

describe('bad input and errors:', () => {
  interface Answer {
    readonly id?: unknown;
    readonly error?: { readonly code: number; readonly message: string };
  }
  const message = (rest: object) => ({
    ...say('x'),
    params: { message: { messageId: 'm', role: 'ROLE_USER', parts: [{ text: 'x' }], ...rest } },
  });

  test('a body that is not a message is refused with the error of the protocol, and leaves nothing', async () => {
    const before = await counts();
    for (const [body, code] of [
      ['', -32700],
      ['{', -32700],
      ['\xff', -32700],
      ['[]', -32602],
      ['null', -32602],
      ['"x"', -32602],
      [{}, -32602],
      [{ jsonrpc: '1.0', id: 1, method: 'SendMessage' }, -32602],
      [{ jsonrpc: '2.0', id: {}, method: 'SendMessage' }, -32602],
      [{ jsonrpc: '2.0', id: 1, method: 'Nothing', params: {} }, -32601],
      [{ jsonrpc: '2.0', id: 1, method: 'message/send', params: {} }, -32601],
      [{ jsonrpc: '2.0', id: 1, method: 'SendMessage' }, -32602],
      [{ jsonrpc: '2.0', id: 1, method: 'SendMessage', params: [] }, -32602],
      [{ jsonrpc: '2.0', id: 1, method: 'SendMessage', params: {} }, -32602],
      [{ jsonrpc: '2.0', id: 1, method: 'SendMessage', params: { message: 1 } }, -32602],
      [message({ parts: [{ text: 'a\u0000' }] }), -32602],
      [message({ parts: [{ text: 'a\ud800' }] }), -32602],
      [message({ messageId: '' }), -32602],
      [message({ messageId: 'a\nb' }), -32602],
      [message({ messageId: 'x'.repeat(501) }), -32602],
      [message({ contextId: 'x'.repeat(501) }), -32602],
      [message({ contextId: 'a\u0007' }), -32602],
      [message({ role: 'ROLE_AGENT' }), -32602],
      [message({ role: 'nobody' }), -32602],
      [message({ role: undefined }), -32602],
      [message({ parts: [] }), -32602],
      [message({ parts: 'x' }), -32602],
      [message({ parts: [null] }), -32602],
      [message({ parts: [1] }), -32602],
      [message({ parts: [{}] }), -32602],
      [message({ parts: [{ text: '   ' }] }), -32602],
      [message({ parts: [{ data: null }] }), -32602],
      [message({ parts: [{ raw: 'eA==' }] }), -32005],
      [message({ parts: [{ raw: 7 }] }), -32602],
      [message({ parts: [{ url: 'https://x.example' }] }), -32005],
      [message({ taskId: 'nothing' }), -32001],
      [{ ...message({}), params: { ...message({}).params, configuration: { historyLength: -1 } } }, -32602],
      [
        {
          ...message({}),
          params: {
            ...message({}).params,
            configuration: { taskPushNotificationConfig: { url: 'https://x.example' } },
          },
        },
        -32003,
      ],
      [{ jsonrpc: '2.0', id: 1, method: 'GetTask', params: {} }, -32602],
      [{ jsonrpc: '2.0', id: 1, method: 'GetTask', params: { id: 'x' } }, -32001],
      [
        {
          jsonrpc: '2.0',
          id: 1,
          method: 'CancelTask',
          params: { id: '0198c1f2-5d21-7ae1-821d-cb1b3af8b547' },
        },
        -32001,
      ],
      [{ jsonrpc: '2.0', id: 1, method: 'SubscribeToTask', params: { id: 'x' } }, -32001],
      [{ jsonrpc: '2.0', id: 1, method: 'ListTasks', params: { status: 'x' } }, -32602],
      [{ jsonrpc: '2.0', id: 1, method: 'GetExtendedAgentCard' }, -32004],
      [
        {
          jsonrpc: '2.0',
          id: 1,
          method: 'CreateTaskPushNotificationConfig',
          params: { taskId: 'x', url: 'https://x.example' },
        },
        -32003,
      ],
      [{ jsonrpc: '2.0', id: 1, method: 'ListTaskPushNotificationConfigs', params: { taskId: 'x' } }, -32003],
    ] as const) {
      const response = await post('echo', body);
      const { error } = (await response.json()) as Answer;
      expect([body, response.status, error?.code]).toEqual([body, 200, code]);
    }
    expect(await counts()).toEqual(before);
  });

  test('the same holds in protocol 0.3, with the errors of that protocol', async () => {
    const before = await counts();
    const old = (params: unknown, method = 'message/send') => ({ jsonrpc: '2.0', id: 7, method, params });
    const words = { messageId: 'm', role: 'user', kind: 'message', parts: [{ kind: 'text', text: 'x' }] };
    for (const [body, code] of [
      ['{', -32700],
      [[], -32600],
      [old({}, 'SendMessage'), -32601],
      [old(undefined), -32602],
      [old({}), -32602],
      [old({ message: null }), -32602],
      [old({ message: { ...words, messageId: '' } }), -32602],
      [old({ message: { ...words, role: 'x' } }), -32602],
      [old({ message: { ...words, parts: [{ kind: 'x' }] } }), -32602],
      [old({ message: { ...words, parts: [{ kind: 'text' }] } }), -32602],
      [old({ message: { ...words, parts: [{ kind: 'text', text: 7 }] } }), -32602],
      [old({ message: { ...words, parts: [{ kind: 'file' }] } }), -32602],
      [old({ message: { ...words, parts: [{ kind: 'file', file: { uri: 'https://x.example' } }] } }), -32005],
      [old({ message: { ...words, contextId: 7 } }), -32602],
      [old({ message: { ...words, taskId: {} } }), -32602],
      [old({ id: 'x' }, 'tasks/get'), -32001],
      [old({ id: 7 }, 'tasks/get'), -32602],
      [old({ id: 'x' }, 'tasks/cancel'), -32001],
      [old({ id: 'x' }, 'tasks/resubscribe'), -32001],
      [old({}, 'agent/getAuthenticatedExtendedCard'), -32004],
      [
        old(
          { taskId: 'x', pushNotificationConfig: { url: 'https://x.example' } },
          'tasks/pushNotificationConfig/set',
        ),
        -32003,
      ],
      [old({ taskId: 'x' }, 'tasks/pushNotificationConfig/set'), -32602],
    ] as const) {
      const response = await post('echo', body, { 'a2a-version': '' });
      const { error } = (await response.json()) as Answer;
      expect([body, response.status, error?.code]).toEqual([body, 200, code]);
    }
    expect(await counts()).toEqual(before);
  });

  test('an unknown version, another content type and a body that is too large are refused', async () => {
    const before = await counts();
    const codeOf = async (response: Response) => ((await response.json()) as Answer).error?.code;
    expect(await codeOf(await post('echo', say('x'), { 'a2a-version': '2.0' }))).toBe(-32009);
    expect(await codeOf(await post('echo', say('x'), { 'a2a-version': 'new' }))).toBe(-32009);
    expect(await codeOf(await post('echo', say('x'), { 'content-type': 'text/plain' }))).toBe(-32005);
    expect((await post('echo', say('x'.repeat(30_000)))).status).toBe(413);
    expect(await counts()).toEqual(before);
    const patch = (await (await post('echo', say('patched'), { 'a2a-version': '1.0.2' })).json()) as {
      result?: object;
    };
    expect(patch.result).toMatchObject({ task: { status: { state: 'TASK_STATE_COMPLETED' } } });
  });

  test('an error on our side is reported by its code, and is in the log', async () => {
    await using apart = await openStage({ works: false });
    await apart.agent('echo', [{ say: 'x' }]);
    const client = await openClient(`${apart.url}/a2a/echo`, await apart.key(), '1.0');
    await apart.database.pool.query('alter table boxcar.handoffs rename column message_id to gone');
    await expect(client.sendMessage(request('x'))).rejects.toMatchObject({ envelopeCode: -32603 });
    const failed = apart.log.filter(({ event }) => event === 'a2a.failed');
    expect(failed).toHaveLength(1);
    await expect(client.sendMessage(request('y'))).rejects.toThrow(/^(?!.*message_id).*$/s);
  });

  test('a refusal by a budget is reported without the model and the account', async () => {
    await using poor = await openStage({ works: false });
    const project = 'poor';
    await poor.opened.runtime.createProject({ name: project, limits: { run_budget: { cost_usd: 1 } } });
    await poor.opened.runtime.applyProfile(
      { name: 'echo', instructions: '', model: 'openai:gpt-unpriced', public: true },
      { projectId: project },
    );
    const client = await poor.client('echo', await poor.key({ projectId: project }));
    const refused = client.sendMessage(request('x'));
    // The message itself is valid: the client may send it again when the budget allows it.
    await expect(refused).rejects.toMatchObject({ envelopeCode: -32603 });
    await expect(refused).rejects.toThrow(/^(?!.*(gpt-unpriced|boxcar prices|Budget 0)).*$/s);
  });
});

test('public agents are off when handoffs are switched off', async () => {
  process.env.BOXCAR_HANDOFF_ENABLED = 'false';
  try {
    const client = await stage.client('echo', key);
    await expect(client.sendMessage(request('x'))).rejects.toMatchObject({
      name: 'UnsupportedOperationError',
    });
  } finally {
    delete process.env.BOXCAR_HANDOFF_ENABLED;
  }
});
