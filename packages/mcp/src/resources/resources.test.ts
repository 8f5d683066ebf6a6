/** Resources over HTTP, read by clients of both revisions. */
import type { Client } from '@modelcontextprotocol/client';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { openClient, openLegacyClient, openStage, type Stage } from '../testing/http-stage.js';
import { grantUpto, makeAgents, makeSession, say, sessionsOf } from '../testing/world.js';

let stage: Stage;
let client: Client;
let ada: Client;
let bob: Client;

type Json = Record<string, unknown>;

async function readText(of: Client, uri: string): Promise<string> {
  const { contents } = await of.readResource({ uri });
  const [content] = contents;
  expect(content?.uri).toBe(uri);
  return (content as { readonly text: string }).text;
}
const read = async (of: Client, uri: string): Promise<Json> => JSON.parse(await readText(of, uri)) as Json;
const entriesOf = (body: Json): readonly Json[] => body.entries as readonly Json[];

/** The protocol error, which names the resource. */
async function refusalOf(of: Client, uri: string): Promise<unknown> {
  const error = (await of.readResource({ uri }).then(
    () => undefined,
    (thrown: unknown) => thrown,
  )) as { readonly code: number; readonly data: unknown } | undefined;
  return { code: error?.code, data: error?.data };
}
const notFound = (uri: string) => ({ code: -32602, data: { uri } });

beforeAll(async () => {
  stage = await openStage();
  await makeAgents(stage, ['ada', 'bob']);
  client = await openClient(stage.url, await stage.key());
  ada = await openClient(stage.url, await stage.key({ agent: 'ada' }));
  bob = await openClient(stage.url, await stage.key({ agent: 'bob' }));
});
afterAll(async () => {
  for (const each of [client, ada, bob]) await each.close();
  await stage[Symbol.asyncDispose]();
});

test('all resources and templates are listed in both revisions', async () => {
  const legacy = await openLegacyClient(stage.url, await stage.key());
  const uris = (await client.listResources()).resources.map(({ uri }) => uri);
  expect(uris).toEqual(['handoff://sessions', 'handoff://health', 'handoff://metrics']);
  const templates = (await client.listResourceTemplates()).resourceTemplates.map((one) => one.uriTemplate);
  expect(templates).toEqual([
    'handoff://sessions{?cursor}',
    'handoff://context/{session_key}',
    'handoff://context/{session_key}{?cursor}',
    'handoff://summary/{session_key}',
    'handoff://agents/{agent_id}/sessions',
    'handoff://agents/{agent_id}/sessions{?cursor}',
    'tape://{workspace}/{+tape}/entry/{position}',
    'tape://{workspace}/{+tape}/anchor/{+name}',
    'boxcar://runs/{run_id}',
    'boxcar://runs/{run_id}{?cursor}',
    'boxcar://turns/{turn_id}/context',
    'boxcar://turns/{turn_id}/context{?cursor}',
  ]);
  const old = await legacy.listResourceTemplates();
  expect(old.resourceTemplates.map((one) => one.uriTemplate)).toEqual(templates);
  expect((await legacy.listResources()).resources.map(({ uri }) => uri)).toEqual(uris);
  await legacy.close();
});

describe('the resource of a session', () => {
  test('has its entries, page by page, and its summary; its key may have any characters', async () => {
    const key = 'a/b?c=1 ü,&';
    const sessions = await sessionsOf(stage);
    await makeSession(sessions, key, ['one', 'two', 'three'], 'claude');
    const uri = `handoff://context/${encodeURIComponent(key)}`;
    const all = await read(client, uri);
    expect(all).toMatchObject({ session_key: key, has_more: false, next_cursor: null });
    expect(entriesOf(all).map(({ sequence_number, content }) => [sequence_number, content])).toEqual([
      [1, 'Session registered by agent: claude'],
      [2, 'one'],
      [3, 'two'],
      [4, 'three'],
    ]);
    expect(entriesOf(await read(client, `${uri}?cursor=2`)).map(({ content }) => content)).toEqual([
      'two',
      'three',
    ]);
    expect(await read(client, `handoff://summary/${encodeURIComponent(key)}`)).toEqual({
      session_key: key,
      summary: expect.stringContaining(`Session '${key}' initiated by claude.`),
      key_points: expect.arrayContaining(['First message: one']),
      participants: ['claude'],
      generated_at: expect.any(String),
    });
  });

  test('is read page by page without a gap when the session is long', async () => {
    const sessions = await sessionsOf(stage);
    await makeSession(sessions, 'long', [], 'claude');
    const entries = Array.from({ length: 500 }, (_, n) => ({ context_type: 'message', content: `m${n}` }));
    for (let batch = 0; batch < 2; batch += 1) await sessions.update({ session_key: 'long', entries });
    const numbers: unknown[] = [];
    let cursor: unknown = null;
    do {
      const page = await read(client, `handoff://context/long${cursor === null ? '' : `?cursor=${cursor}`}`);
      numbers.push(...entriesOf(page).map(({ sequence_number }) => sequence_number));
      cursor = page.next_cursor;
    } while (cursor !== null);
    expect(numbers).toEqual(Array.from({ length: 1_001 }, (_, n) => n + 1));
  });

  test('is listed newest first, and under the name of its agent', async () => {
    const sessions = await sessionsOf(stage);
    for (let n = 0; n < 51; n += 1) await makeSession(sessions, `many-${n}`, [], 'fleet');
    const first = await read(client, 'handoff://agents/fleet/sessions');
    expect(first).toMatchObject({ agent_id: 'fleet', total: 51, has_more: true });
    expect((first.sessions as readonly Json[])[0]).toMatchObject({
      session_key: 'many-50',
      status: 'active',
      agent_from: 'fleet',
      created_at: expect.any(String),
    });
    const next = encodeURIComponent(String(first.next_cursor));
    const rest = await read(client, `handoff://agents/fleet/sessions?cursor=${next}`);
    expect((rest.sessions as readonly Json[]).map(({ session_key }) => session_key)).toEqual(['many-0']);
    const all = await read(client, 'handoff://sessions');
    expect((all.sessions as readonly Json[]).length).toBe(50);
    expect(
      await read(client, `handoff://sessions?cursor=${encodeURIComponent(String(all.next_cursor))}`),
    ).toMatchObject({
      total: all.total,
    });
  });
});

describe('the right to read a resource', () => {
  test('of another agent’s session reaches up to the handoff, and excludes everything before the grant', async () => {
    const uri = 'handoff://context/secret';
    const owner = await sessionsOf(stage, 'ada');
    const boxId = await makeSession(owner, 'secret', ['one', 'two']);
    expect(await refusalOf(bob, uri)).toEqual(notFound(uri));
    expect(await refusalOf(bob, 'handoff://summary/secret')).toEqual(notFound('handoff://summary/secret'));
    expect(JSON.stringify(await read(bob, 'handoff://sessions'))).not.toContain('secret');
    await grantUpto(stage, { boxId, agent: 'bob', upto: 5 });
    await say(owner, 'secret', 'three');
    expect(
      entriesOf(await read(bob, uri))
        .map(({ content }) => content)
        .slice(1),
    ).toEqual(['one', 'two']);
    expect(entriesOf(await read(ada, uri)).length).toBe(4);
  });

  test('does not cross projects', async () => {
    await makeSession(await sessionsOf(stage), 'here', ['one'], 'claude');
    await stage.opened.runtime.createProject({ name: 'elsewhere' });
    const other = await openClient(stage.url, await stage.key({ projectId: 'elsewhere' }));
    for (const uri of [
      'handoff://context/here',
      'handoff://summary/here',
      'tape://default/session%2Fhere/entry/3',
    ])
      expect(await refusalOf(other, uri)).toEqual(notFound(uri));
    expect(await read(other, 'handoff://sessions')).toMatchObject({ sessions: [], total: 0 });
    await other.close();
  });

  test('is limited by scopes, for lists and for reading', async () => {
    const narrow = await openClient(stage.url, await stage.key({ scopes: ['mcp:call'] }));
    expect((await narrow.listResources()).resources.map(({ uri }) => uri)).toEqual(['handoff://health']);
    expect((await narrow.listResourceTemplates()).resourceTemplates).toEqual([]);
    expect(await refusalOf(narrow, 'handoff://sessions')).toEqual(notFound('handoff://sessions'));
    await narrow.close();
    expect((await ada.listResources()).resources.map(({ uri }) => uri)).not.toContain('handoff://metrics');
    expect(await refusalOf(ada, 'handoff://metrics')).toEqual(notFound('handoff://metrics'));
  });
});

describe('the resources of tapes, runs and turns are', () => {
  test('an entry, and an anchor with its following entries, as far as the reader may read', async () => {
    const { runtime } = stage.opened;
    const tape = await runtime.tape('notes: 1/2');
    await tape.append([{ kind: 'message', content: 'before' }]);
    await tape.handoff('phase/one', { state: { n: 1 } });
    await tape.append([{ kind: 'message', content: 'after' }]);
    const entry = await read(client, 'tape://default/notes:%201%2F2/entry/3');
    expect(entry).toMatchObject({ position: 3, head: 3, has_more: false });
    expect(JSON.stringify(entry.entries)).toContain('before');
    const anchor = await read(client, 'tape://default/notes:%201%2F2/anchor/phase%2Fone');
    expect(anchor).toMatchObject({ position: 4, head: 6, tape_ref: expect.stringContaining('?head=6') });
    expect(entriesOf(anchor).map(({ position }) => position)).toEqual([4, 5, 6]);
    const bound = await read(client, 'tape://default/notes:%201%2F2/anchor/phase%2Fone?head=5');
    expect(entriesOf(bound).map(({ position }) => position)).toEqual([4, 5]);
    for (const uri of [
      'tape://default/notes:%201%2F2/entry/99',
      'tape://default/notes:%201%2F2/anchor/none',
      'tape://default/none/entry/1',
      'tape://other/notes:%201%2F2/entry/1',
    ])
      expect(await refusalOf(client, uri)).toEqual(notFound(uri));
    const uri = 'tape://default/notes:%201%2F2/entry/3';
    expect(await refusalOf(bob, uri)).toEqual(notFound(uri));
  });

  test('a run with its turns, and the context of a turn, for readers that may know them', async () => {
    const { runtime } = stage.opened;
    const receipt = (await runtime.submit('launch_principal', {
      profile_name: 'idle',
      instruction: 'Count the apples.',
    })) as { readonly turn_id: string; readonly run_id: string; readonly agent_id: string };
    const worker = await openClient(stage.url, await stage.key({ agent: receipt.agent_id }));
    const run = `boxcar://runs/${receipt.run_id}`;
    const context = `boxcar://turns/${receipt.turn_id}/context`;
    for (const reader of [client, worker]) {
      expect(await read(reader, run)).toMatchObject({
        run_id: receipt.run_id,
        turns: [{ turn_id: receipt.turn_id, profile: 'idle' }],
        next_cursor: null,
      });
      const body = await read(reader, context);
      expect(body).toMatchObject({ turn_id: receipt.turn_id, run_id: receipt.run_id, has_more: false });
      expect(JSON.stringify(body.entries)).toContain('Count the apples.');
    }
    await worker.close();
    for (const uri of [run, context]) expect(await refusalOf(bob, uri)).toEqual(notFound(uri));
  });
});

describe('other requests:', () => {
  test('health and metrics are read', async () => {
    expect(await read(client, 'handoff://health')).toEqual({ status: 'ok', database: 'ok', live_workers: 0 });
    const metrics = await readText(client, 'handoff://metrics');
    expect(metrics).toMatch(
      /^# TYPE boxcar_handoff_sessions gauge\nboxcar_handoff_sessions\{status="active"\} \d+$/m,
    );
    expect(metrics).toMatch(/^boxcar_live_workers 0$/m);
    expect(metrics.endsWith('\n')).toBe(true);
  });

  test.each([
    'handoff://nothing',
    'handoff://context/none',
    'handoff://summary/none',
    'boxcar://runs/x',
    'boxcar://turns/00000000-0000-7000-8000-00000000000f/context',
    'other://x',
  ])('%s is not found', async (uri) => {
    expect(await refusalOf(client, uri)).toEqual(notFound(uri));
  });

  test('a wrong cursor is an error that says so', async () => {
    await makeSession(await sessionsOf(stage), 'paged', [], 'claude');
    for (const uri of ['handoff://context/paged?cursor=x', 'handoff://sessions?cursor=7'])
      expect(await refusalOf(client, uri)).toMatchObject({
        code: -32602,
        data: { uri, error_code: 'bad_request' },
      });
  });

  test('the prompt has the summary, and as many of the newest entries as the budget allows', async () => {
    const sessions = await sessionsOf(stage);
    const words = Array.from({ length: 120 }, (_, n) => `message ${n} ${'x'.repeat(200)}`);
    await makeSession(sessions, 'prompted', [], 'claude');
    await sessions.update({
      session_key: 'prompted',
      entries: words.map((content) => ({ context_type: 'message', content })),
    });
    const textOf = async (budget_tokens?: string): Promise<string> => {
      const { messages } = await client.getPrompt({
        name: 'continue_session',
        arguments: { session_key: 'prompted', ...(budget_tokens === undefined ? {} : { budget_tokens }) },
      });
      const [message] = messages;
      return message?.content.type === 'text' ? message.content.text : '';
    };
    const whole = await textOf('100000');
    expect(whole).toContain('All 121 entries:');
    expect(whole.indexOf('message 0 ')).toBeLessThan(whole.indexOf('message 119 '));
    const short = await textOf('1000');
    expect(short).toContain('message 119 ');
    expect(short).not.toContain('message 100 ');
    expect(Buffer.byteLength(short) / 4).toBeLessThan(1_100);
    expect(short).toContain("Session 'prompted'");
    await expect(textOf('0')).rejects.toMatchObject({ code: -32602 });
    await expect(
      client.getPrompt({ name: 'continue_session', arguments: { session_key: 'none' } }),
    ).rejects.toMatchObject({ code: -32602 });
  });
});
