/** Approvals over HTTP. */
import type { ProjectId } from '@boxcar/kernel';
import { ApprovalGate, createKey } from '@boxcar/runtime';
import { afterAll, beforeAll, describe, expect, test, vi } from 'vitest';
import { bearer, openStage, type Stage } from '../testing/stage.js';

let stage: Stage;
let reader: string;
let writer: string;
let foreign: string;

beforeAll(async () => {
  stage = await openStage({ heartbeatMs: 50 });
  await stage.opened.runtime.createProject({ name: 'other' });
  reader = await stage.key(['approvals:read']);
  writer = await stage.key(['approvals:read', 'approvals:write']);
  foreign = await stage.key(['approvals:read', 'approvals:write'], { projectId: 'other' });
});
afterAll(() => stage[Symbol.asyncDispose]());

type Body = Record<string, unknown>;
async function ask(
  path: string,
  { key = reader, body }: { readonly key?: string; readonly body?: unknown } = {},
): Promise<{ readonly status: number; readonly body: Body }> {
  const response = await fetch(`${stage.url}${path}`, {
    headers: { ...bearer(key), 'content-type': 'application/json', 'x-request-id': 'same' },
    ...(body === undefined ? {} : { method: 'POST', body: JSON.stringify(body) }),
  });
  return { status: response.status, body: (await response.json()) as Body };
}
const decide = (id: string, body: unknown, path = '/runs/run-1/approvals') =>
  ask(`${path}/${id}`, { key: writer, body });

test('tickets are listed by run, agent and status, page by page, without secrets', async () => {
  const ids = [];
  for (const n of [1, 2, 3]) ids.push(await stage.ticket({ n }, { runId: 'team/a b' }));
  const run = `/runs/${encodeURIComponent('team/a b')}/approvals`;
  const first = await ask(`${run}?limit=2&status=pending&agent=main`);
  expect(first).toMatchObject({
    status: 200,
    body: { approvals: [{ ticket_id: ids[2], tool_args: { n: 3 } }, { ticket_id: ids[1] }] },
  });
  const cursor = encodeURIComponent(String(first.body.next_cursor));
  expect(await ask(`${run}?limit=2&cursor=${cursor}`)).toMatchObject({
    body: { approvals: [{ ticket_id: ids[0] }], next_cursor: null },
  });
  expect(await ask(`${run}?agent=nobody`)).toMatchObject({ body: { approvals: [] } });
  expect(await ask('/runs/none/approvals')).toMatchObject({ status: 200, body: { approvals: [] } });
  expect((await ask('/approvals?limit=1')).body.approvals).toHaveLength(1);
  for (const query of [
    'limit=0',
    'limit=x',
    'limit=99999',
    'status=open',
    'cursor=x',
    'other=1',
    'limit=1&limit=2',
  ])
    expect([query, (await ask(`/approvals?${query}`)).status]).toEqual([query, 400]);
});

test('a ticket is shown and decided with the key of the request, within its run and directly', async () => {
  const { key, key_id } = await createKey(stage.database.pool, {
    scopes: ['approvals:write'],
    name: 'desk',
  });
  for (const [path, action, status] of [
    ['/runs/run-1/approvals', 'approve', 'approved'],
    ['/approvals', 'deny', 'denied'],
  ] as const) {
    const id = await stage.ticket({ path });
    expect(await ask(`${path}/${id}`)).toMatchObject({
      status: 200,
      body: { ticket_id: id, status: 'pending' },
    });
    const body = { action, resolved_by: 'desk', reason: 'order 77', response: { note: 'ok' } };
    expect(await ask(`${path}/${id}`, { key, body })).toMatchObject({
      status: 200,
      body: {
        ticket_id: id,
        status,
        resolved_by: key_id,
        decision_reason: 'order 77',
        response: { note: 'ok' },
      },
    });
    const { rows } = await stage.database.pool.query('select principal from boxcar.approvals where id = $1', [
      id,
    ]);
    expect(rows).toEqual([{ principal: { id: key_id, kind: 'key', scopes: ['approvals:write'] } }]);
  }
});

test('a ticket is decided once', async () => {
  const id = await stage.ticket({ once: true });
  const answers = await Promise.all(
    ['approve', 'deny', 'approve', 'deny'].map((action) => decide(id, { action })),
  );
  expect(answers.map(({ status }) => status).sort()).toEqual([200, 409, 409, 409]);
  expect(answers.find(({ status }) => status === 409)?.body).toMatchObject({
    code: 'approval_resolved',
    detail: expect.stringMatching(/^Approval ticket \S+ already (approved|denied)$/),
  });
  const late = await stage.ticket({ late: true }, { timeoutMs: 1 });
  expect(await decide(late, { action: 'approve' })).toMatchObject({
    status: 409,
    body: { detail: `Approval ticket ${late} already expired` },
  });
});

test('an invalid decision is refused and decides nothing', async () => {
  const id = await stage.ticket({ bad: true });
  for (const body of [
    {},
    { action: 'maybe' },
    { action: 'approve', resolved_by: 'somebody else' },
    { action: 'approve', reason: '' },
    { action: 'approve', response: [] },
    { action: 'approve', more: 1 },
    [],
    'approve',
  ])
    expect([body, (await decide(id, body)).status]).toEqual([body, 400]);
  expect(await ask(`/approvals/${id}`)).toMatchObject({ body: { status: 'pending' } });
});

test('an id of another project or run is answered like an unknown id', async () => {
  const { rows } = await stage.database.pool.query<{ id: ProjectId }>(
    "select id from boxcar.projects where name = 'other'",
  );
  const own = await stage.ticket({ own: true });
  const theirs = await stage.ticket({ theirs: true }, { projectId: rows[0]?.id ?? ('' as ProjectId) });
  const missing = '00000000-0000-7000-8000-00000000000f';
  const bodies = [];
  for (const [key, id, run] of [
    [reader, missing, 'run-1'],
    [reader, theirs, 'run-1'],
    [reader, own, 'run-2'],
    [foreign, own, 'run-1'],
  ] as const)
    for (const path of [`/runs/${run}/approvals/${id}`, `/runs/${run}/approvals/${id}/events`]) {
      const { status, body } = await ask(path, { key });
      expect([path, status]).toEqual([path, 404]);
      bodies.push(JSON.stringify({ ...body, instance: '' }).replaceAll(id, 'ID'));
    }
  expect(new Set(bodies).size).toBe(1);
  expect(await ask(`/approvals/${own}`, { key: foreign })).toMatchObject({ status: 404 });
  expect((await ask(`/approvals/${own}`, { key: foreign, body: { action: 'deny' } })).status).toBe(404);
  expect(JSON.stringify(await ask('/approvals', { key: foreign }))).not.toContain(own);
  expect(await ask(`/approvals/${own}`)).toMatchObject({ body: { status: 'pending' } });
  expect((await ask('/approvals/nothing')).status).toBe(400);
});

test('each request makes a constant number of statements', async () => {
  const id = await stage.ticket({ counted: true });
  const { key } = await createKey(stage.database.pool, { scopes: ['approvals:read'] });
  // The use of the key is recorded once.
  await ask('/approvals', { key });
  const count = async (path: string): Promise<readonly unknown[]> => {
    const sent = vi.spyOn(stage.opened.runtime.pool, 'query');
    await ask(path, { key });
    const { calls } = sent.mock;
    sent.mockRestore();
    // The record of the key's use is written in parallel to the request.
    return calls.filter(([query]) => !JSON.stringify(query).includes('keys.note_use'));
  };
  expect(await count('/approvals')).toHaveLength(2);
  expect(await count(`/approvals/${id}`)).toHaveLength(3);
});

describe('the events of a ticket', () => {
  const follow = (id: string, headers: Readonly<Record<string, string>> = {}) =>
    fetch(`${stage.url}/runs/run-1/approvals/${id}/events`, { headers: { ...bearer(reader), ...headers } });
  const eventsOf = (text: string) =>
    text
      .split('\n\n')
      .filter((part) => part !== '' && !part.startsWith(':'))
      .map((part) => {
        const [, id, event, data] = /^id: (.*)\nevent: (.*)\ndata: (.*)$/.exec(part) ?? [];
        return { id, event, ticket: JSON.parse(data ?? '') as Body };
      });

  test('begin with the request, continue with a decision from any process, and then the stream ends', async () => {
    const id = await stage.ticket({ followed: 1 });
    const responses = await Promise.all([follow(id), follow(id), follow(id)]);
    const texts = responses.map((response) => response.text());
    await new ApprovalGate({ runtime: stage.opened.runtime }).deny(id, { reason: 'no' });
    for (const text of await Promise.all(texts))
      expect(eventsOf(text)).toMatchObject([
        { id: '1', event: 'approval.required', ticket: { ticket_id: id, status: 'pending' } },
        { id: '2', event: 'approval.updated', ticket: { status: 'denied', decision_reason: 'no' } },
      ]);
    // A reconnecting reader gets the events that it missed, or nothing more.
    expect(eventsOf(await (await follow(id, { 'last-event-id': '1' })).text()).map((one) => one.id)).toEqual([
      '2',
    ]);
    expect((await follow(id, { 'last-event-id': '2' })).status).toBe(204);
    expect(eventsOf(await (await follow(id)).text()).map((one) => one.event)).toEqual([
      'approval.required',
      'approval.updated',
    ]);
  });

  test('include the expiry of a ticket, also without a worker', async () => {
    const id = await stage.ticket({ followed: 2 }, { timeoutMs: 200 });
    expect(eventsOf(await (await follow(id)).text()).at(-1)).toMatchObject({
      event: 'approval.updated',
      ticket: { status: 'expired', resolved_by: 'system:auto-expire' },
    });
  });
});

test('continue from the rows after the frame was killed and started again', async () => {
  const id = await stage.ticket({ restart: true });
  await using again = await openStage();
  void again;
  await decide(id, { action: 'approve' });
  expect(await ask(`/approvals/${id}`)).toMatchObject({ body: { status: 'approved' } });
});

test('report in every route when there is no gate', async () => {
  await using off = await openStage({ approvalMs: null });
  const key = await off.key(['approvals:read', 'approvals:write']);
  for (const { method, path } of off.frame.routes.filter(({ path }) => path.includes('approvals'))) {
    const answer = await fetch(`${off.url}${path}`, {
      method,
      headers: bearer(key),
      ...(method === 'POST' ? { body: '{}' } : {}),
    });
    expect([path, answer.status, ((await answer.json()) as Body).code]).toEqual([
      path,
      503,
      'feature_disabled',
    ]);
  }
});
