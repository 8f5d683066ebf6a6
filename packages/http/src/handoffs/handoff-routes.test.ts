/** Handoffs over HTTP. */
import { HandoffTool } from '@boxcar/runtime';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { bearer, openStage, type Stage } from '../testing/stage.js';

let stage: Stage;
let tool: HandoffTool;
let writer: string;
let foreign: string;
let agents: string;
let letGo = (): void => undefined;

beforeAll(async () => {
  stage = await openStage({ heartbeatMs: 50, handoffs: true });
  const { runtime } = stage.opened;
  await runtime.createProject({ name: 'other' });
  await runtime.applyProfile({ name: 'desk', instructions: 'x', model: 'scripted' });
  await runtime.submit('provision_agent', { action: 'create', agent_id: 'bob', profile_name: 'desk' });
  const both = ['handoffs:read', 'handoffs:write'] as const;
  writer = await stage.key(both);
  foreign = await stage.key(both, { projectId: 'other' });
  agents = await stage.key(both, { agent: 'bob' });
  tool = new HandoffTool({ runtime });
  tool.registerAgent('echo', (input) => input);
  tool.registerAgent('asker', async (_input, { ask }) => `it is ${await ask('Which?')}`, { retry: 'safe' });
  tool.registerAgent('poet', async (_input, { write }) => {
    write('roses ');
    await new Promise<void>((settle) => {
      letGo = settle;
    });
    write('are red');
    return 'roses are red';
  });
  // From here on a worker serves its functions.
  await tool.handoff({ source_agent: 'main', target_agent: 'echo', task: 'x' });
});
afterAll(async () => {
  await tool.close();
  await stage[Symbol.asyncDispose]();
});

type Body = Record<string, unknown>;
async function ask(
  path: string,
  { key = writer, body }: { readonly key?: string; readonly body?: unknown } = {},
): Promise<{ readonly status: number; readonly body: Body }> {
  const response = await fetch(`${stage.url}${path}`, {
    headers: { ...bearer(key), 'content-type': 'application/json', 'x-request-id': 'same' },
    ...(body === undefined ? {} : { method: 'POST', body: JSON.stringify(body) }),
  });
  return { status: response.status, body: (await response.json()) as Body };
}
async function begin(target_agent: string, rest: object = {}): Promise<string> {
  const { status, body } = await ask('/handoffs', { body: { target_agent, task: 'x', ...rest } });
  expect([status, body]).toMatchObject([202, { status: 'pending' }]);
  return String(body.handoff_id);
}

test('a handoff is requested, and is shown with its log', async () => {
  const id = await begin('echo', { payload: { n: 1 }, source_agent: 'main' });
  await tool.waitForHandoff(id);
  expect(await ask(`/handoffs/${id}`)).toMatchObject({
    status: 200,
    body: {
      handoff: { handoff_id: id, status: 'completed', result: { n: 1 }, source_agent: 'main' },
      events: [{ event_type: 'handoff.requested' }, {}, { event_type: 'handoff.completed' }],
    },
  });
  expect(await ask(`/handoffs/${id.slice(0, 13)}`)).toMatchObject({ body: { handoff: { handoff_id: id } } });
  const request = { target_agent: 'echo', task: 'y', payload: 7, cache: { ttl_seconds: 60 } };
  const first = await ask('/handoffs', { body: request });
  await tool.waitForHandoff(String(first.body.handoff_id));
  expect(await ask('/handoffs', { body: request })).toMatchObject({
    status: 200,
    body: { status: 'completed', result: 7 },
  });
});

test('handoffs are listed by their filters, page by page', async () => {
  const ids: string[] = [];
  for (const n of [1, 2, 3]) ids.push(await begin('echo', { payload: n, run_id: 'r/1' }));
  await Promise.all(ids.map((id) => tool.waitForHandoff(id)));
  const first = await ask('/handoffs?run=r%2F1&limit=2&status=completed');
  expect(first).toMatchObject({
    status: 200,
    body: { handoffs: [{ handoff_id: ids[2] }, { handoff_id: ids[1] }] },
  });
  const cursor = encodeURIComponent(String(first.body.next_cursor));
  expect(await ask(`/handoffs?run=r%2F1&limit=2&cursor=${cursor}`)).toMatchObject({
    body: { handoffs: [{ handoff_id: ids[0] }], next_cursor: null },
  });
  for (const query of ['limit=0', 'limit=x', 'status=open', 'cursor=x', 'other=1', 'run=1&run=2'])
    expect([query, (await ask(`/handoffs?${query}`)).status]).toEqual([query, 400]);
});

test('an invalid request is refused with the words of the tool', async () => {
  for (const [body, status, code] of [
    [{ task: 'x' }, 400, 'bad_request'],
    [{ target_agent: 'nobody', task: 'x' }, 404, 'not_found'],
    [{ target_agent: 'echo', task: 'x', platform: 'moon' }, 400, 'bad_request'],
    [[], 400, 'bad_request'],
    [{ target_agent: 'echo', task: 'x', surprise: 1 }, 400, 'bad_request'],
  ] as const)
    expect([body, await ask('/handoffs', { body })]).toMatchObject([body, { status, body: { code } }]);
});

test('objects of another project or agent are answered like unknown objects', async () => {
  const id = await begin('asker');
  const missing = '00000000-0000-7000-8000-00000000000f';
  const bodies: string[] = [];
  for (const [key, ref] of [
    [writer, missing],
    [foreign, id],
    [agents, id],
  ] as const)
    for (const [path, body] of [
      ['', undefined],
      ['/events', undefined],
      ['/messages', undefined],
      ['/messages', { text: 'x' }],
    ] as const) {
      const answer = await ask(`/handoffs/${ref}${path}`, { key, body });
      expect([path, answer.status]).toEqual([path, 404]);
      bodies.push(JSON.stringify({ ...answer.body, instance: '' }).replaceAll(ref, 'ID'));
    }
  expect(new Set(bodies).size).toBe(1);
  expect(JSON.stringify(await ask('/handoffs', { key: foreign }))).not.toContain(id);
  expect(await ask('/handoffs', { key: agents })).toMatchObject({ body: { handoffs: [] } });
  expect(await ask('/handoffs?source_agent=main', { key: agents })).toMatchObject({ body: { handoffs: [] } });
});

test('a key of an agent requests in its name, and sees the agent’s own requests', async () => {
  const { status, body } = await ask('/handoffs', { key: agents, body: { target_agent: 'echo', task: 'x' } });
  expect(status).toBe(202);
  expect(await ask(`/handoffs/${String(body.handoff_id)}`, { key: agents })).toMatchObject({
    body: { handoff: { source_agent: 'bob' } },
  });
  expect(await ask('/handoffs', { key: agents })).toMatchObject({
    body: { handoffs: [{ source_agent: 'bob' }] },
  });
  const other = { target_agent: 'echo', task: 'x', source_agent: 'main' };
  expect(await ask('/handoffs', { key: agents, body: other })).toMatchObject({
    status: 400,
    body: { code: 'bad_request' },
  });
});

test('a question is answered with the key of the request, once', async () => {
  const id = await begin('asker');
  await expect.poll(async () => (await ask(`/handoffs/${id}/messages`)).body.messages).toHaveLength(1);
  const replied = await ask(`/handoffs/${id}/messages`, { body: { text: 'this', question: 1 } });
  expect(replied).toMatchObject({
    status: 200,
    body: {
      messages: [{ state: 'answered' }, { text: 'this', by: expect.stringMatching(/^[0-9a-f-]{36}$/) }],
    },
  });
  expect(await tool.waitForHandoff(id)).toMatchObject({ result: 'it is this' });
  expect(await ask(`/handoffs/${id}/messages`, { body: { text: 'that' } })).toMatchObject({
    status: 409,
    body: { code: 'question_closed' },
  });
  expect(await ask(`/handoffs/${id}/messages`, { body: { text: ' ' } })).toMatchObject({ status: 400 });
});

test('a handoff is read while it is written, and a returning reader continues after the parts that it has seen', async () => {
  const id = await begin('poet');
  const follow = (headers: Readonly<Record<string, string>> = {}) =>
    fetch(`${stage.url}/handoffs/${id}/events`, { headers: { ...bearer(writer), ...headers } });
  const response = await follow();
  const reader = (response.body as ReadableStream<Uint8Array>)
    .pipeThrough(new TextDecoderStream())
    .getReader();
  let seen = '';
  // The first part arrives while the function is still held.
  while (!seen.includes('roses ')) seen += (await reader.read()).value ?? '';
  expect(seen).not.toContain('red');
  letGo();
  for (let part = await reader.read(); !part.done; part = await reader.read()) seen += part.value;
  const eventsOf = (text: string) =>
    [...text.matchAll(/id: (\d+)\nevent: (\S+)\ndata: (.*)\n\n/g)].map(([, at, event, data]) => [
      at,
      event,
      JSON.parse(data ?? '').text ?? null,
    ]);
  expect(eventsOf(seen)).toEqual([
    ['1', 'handoff.text', 'roses '],
    ['2', 'handoff.text', 'are red'],
    ['3', 'handoff.result', null],
  ]);
  expect(eventsOf(await (await follow({ 'last-event-id': '1' })).text()).map(([at]) => at)).toEqual([
    '2',
    '3',
  ]);
  expect((await follow({ 'last-event-id': '3' })).status).toBe(204);
  expect((await follow({ 'last-event-id': 'x' })).status).toBe(400);
});

test('without the feature no handoff can be requested, and existing handoffs can be read', async () => {
  await using off = await openStage();
  const key = await off.key(['handoffs:read', 'handoffs:write']);
  const answer = await fetch(`${off.url}/handoffs`, {
    method: 'POST',
    headers: bearer(key),
    body: JSON.stringify({ target_agent: 'echo', task: 'x' }),
  });
  expect([answer.status, ((await answer.json()) as Body).code]).toEqual([503, 'feature_disabled']);
  expect((await fetch(`${off.url}/handoffs`, { headers: bearer(key) })).status).toBe(200);
});
