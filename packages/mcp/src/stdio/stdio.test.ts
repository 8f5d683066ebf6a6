/** The server as a program, for the clients that start it. */
import { PassThrough } from 'node:stream';
import type { JsonObject } from '@boxcar/kernel';
import { migrateQueues } from '@boxcar/runtime';
import { type NodeChild, nodeArguments, spawnNode, waitFor } from '@boxcar/testkit';
import { StdioClientTransport } from '@modelcontextprotocol/client/stdio';
import type { Client as OldClient } from '@modelcontextprotocol/sdk/client/index.js';
import { StdioClientTransport as OldStdioClientTransport } from '@modelcontextprotocol/sdk/client/stdio.js';
import type { Transport as OldTransport } from '@modelcontextprotocol/sdk/shared/transport.js';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { CLIENTS, type ClientKind, callTool, makeClient, openStage, type Stage } from '../testing/stage.js';
import { MAX_LINE_BYTES } from './checked-input.js';
import { serveClient } from './serve-client.js';

const SERVER = new URL('../server.ts', import.meta.url);
let stage: Stage;
let env: Record<string, string>;
let n = 0;
const fresh = (): string => `s-${++n}`;

beforeAll(async () => {
  stage = await openStage({ works: false });
  await migrateQueues(stage.database.url);
  env = { DATABASE_URL: stage.database.url };
});
afterAll(() => stage[Symbol.asyncDispose]());

function transportFor(kind: ClientKind, args: readonly string[]) {
  const server = {
    command: process.execPath,
    args: [...nodeArguments(SERVER), ...args],
    env,
    stderr: 'pipe' as const,
  };
  return kind === '1.x' ? new OldStdioClientTransport(server) : new StdioClientTransport(server);
}

const isThere = (pid: number): boolean => {
  try {
    return process.kill(pid, 0);
  } catch {
    return false;
  }
};

describe.each(CLIENTS)('client %s', (kind) => {
  test('starts the server, works with a session, and leaves no process', async () => {
    const client = makeClient(kind);
    const transport = transportFor(kind, []);
    await (client as OldClient).connect(transport as OldTransport);
    const pid = transport.pid ?? 0;
    const session_key = fresh();
    const registered = await callTool(client, 'register_session', { session_key, agent_from: 'claude' });
    expect(registered.body).toMatchObject({ success: true, session: { session_key } });
    const content = 'x'.repeat(1_048_576);
    const updated = await callTool(client, 'update_context', { session_key, context_type: 'file', content });
    expect(updated.body).toMatchObject({ context_entry: { sequence_number: 2, content_length: 1_048_576 } });
    await client.close();
    await waitFor(async () => (isThere(pid) ? undefined : true), { message: 'the server to end' });
  });
});

const start = (...args: string[]): NodeChild => spawnNode(SERVER, args, env);
const INITIALIZE = {
  jsonrpc: '2.0',
  id: 0,
  method: 'initialize',
  params: { protocolVersion: '2025-11-25', capabilities: {}, clientInfo: { name: 'raw', version: '1' } },
};
const called = (id: number, name: string, args: JsonObject) => ({
  jsonrpc: '2.0',
  id,
  method: 'tools/call',
  params: { name, arguments: args },
});
const INITIALIZED = { jsonrpc: '2.0', method: 'notifications/initialized' };

/** The output line that answers a request. */
const answerTo = async (child: NodeChild, id: string): Promise<JsonObject> =>
  JSON.parse(await child.line(new RegExp(`"id":${id}[,}]`))) as JsonObject;

describe('an invalid line is answered, and the connection continues:', () => {
  test.each([
    ['a line that is not JSON', '{"jsonrpc":', 'null', -32700],
    ['a value that is not an object', '[1,2]', 'null', -32600],
    ['another protocol', '{"jsonrpc":"1.0","id":7,"method":"x"}', '7', -32600],
    ['a method that is not a text', '{"jsonrpc":"2.0","id":"a","method":7}', '"a"', -32600],
    ['a very long line', 'x'.repeat(MAX_LINE_BYTES + 1), 'null', -32600],
  ])('%s', async (_what, line, id, code) => {
    await using child = start();
    child.writeLine(line);
    expect(await answerTo(child, id)).toMatchObject({ error: { code } });
    child.writeLine(JSON.stringify(INITIALIZE));
    expect(await answerTo(child, '0')).toMatchObject({ result: { serverInfo: { name: 'boxcar' } } });
  });
});

test('stdout has only messages of the protocol; logs are on stderr, with the ids of calls', async () => {
  await using child = start();
  for (const message of [INITIALIZE, INITIALIZED, called(1, 'get_summary', { session_key: 'nowhere' })])
    child.writeLine(JSON.stringify(message));
  const { result } = await answerTo(child, '1');
  const { request_id } = (result as { readonly _meta: JsonObject })._meta;
  for (const line of child.stdout.trimEnd().split('\n'))
    expect(JSON.parse(line)).toMatchObject({ jsonrpc: '2.0' });
  await waitFor(async () => (child.stderr.includes('"mcp.call"') ? true : undefined), {
    message: 'the log of the call',
  });
  expect(child.stderr).toContain(String(request_id));
});

describe('the process ends', () => {
  test('at SIGTERM', async () => {
    await using child = start();
    child.writeLine(JSON.stringify(INITIALIZE));
    await answerTo(child, '0');
    await child.kill('SIGTERM');
    expect(await child.exited).toMatchObject({ code: 0 });
  });

  test('when the client vanishes during a call', async () => {
    await using child = start();
    child.writeLine(JSON.stringify(INITIALIZE));
    await answerTo(child, '0');
    child.stopReading('stdout');
    child.writeLine(JSON.stringify(called(1, 'register_session', { session_key: fresh(), agent_from: 'x' })));
    expect(await child.exited).toMatchObject({ code: 0 });
  });

  test.each([
    ['an unknown agent', ['--agent', 'nobody'], 'not_found'],
    ['an unknown project', ['--project', 'nowhere'], 'not_found'],
    ['an unknown group', ['--tools', 'all'], 'bad_request'],
    ['an unknown option', ['--agnt', 'x'], 'It takes --agent NAME'],
  ])('when the command line names %s', async (_what, args, said) => {
    await using child = start(...args);
    expect(await child.exited).toMatchObject({ code: 1 });
    expect(child.stderr).toContain(said);
    expect(child.stdout).toBe('');
  });
});

/** A connection within this process. */
function connect(graceMs: number) {
  const stdin = new PassThrough();
  const stdout = new PassThrough();
  const stop = new AbortController();
  let said = '';
  stdout.setEncoding('utf8').on('data', (text: string) => {
    said += text;
  });
  const ended = serveClient(stage.scope(), { stdin, stdout, stop: stop.signal, graceMs });
  const send = (message: object): void => void stdin.write(`${JSON.stringify(message)}\n`);
  send(INITIALIZE);
  send(INITIALIZED);
  return { stdin, stop, ended, send, said: () => said };
}

/** Holds a lock that blocks writes to a session. */
async function hold(session_key: string) {
  const client = await stage.database.pool.connect();
  await client.query('begin');
  await client.query('select from boxcar.handoff_sessions where session_key = $1 for update', [session_key]);
  return async (): Promise<void> => {
    await client.query('commit');
    client.release();
  };
}

const isWaiting = () =>
  waitFor(
    async () => {
      const { rows } = await stage.database.pool.query(
        `select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'`,
      );
      return rows.length > 0 ? true : undefined;
    },
    { message: 'the call to wait for the row' },
  );

describe.each([
  ['the client closes stdin', (of: ReturnType<typeof connect>) => void of.stdin.end()],
  ['the process is asked to stop', (of: ReturnType<typeof connect>) => of.stop.abort()],
])('when %s,', (_what, end) => {
  const update = (session_key: string) =>
    called(1, 'update_context', { session_key, context_type: 'message', content: 'late' });
  const session = async (): Promise<string> => {
    const session_key = fresh();
    await using connection = await stage.connect();
    await connection.call('register_session', { session_key, agent_from: 'x' });
    return session_key;
  };

  test('a call in progress is answered first', async () => {
    const session_key = await session();
    const release = await hold(session_key);
    const connection = connect(60_000);
    connection.send(update(session_key));
    await isWaiting();
    end(connection);
    await release();
    await connection.ended;
    expect(connection.said()).toContain('"id":1');
    expect(connection.said()).toContain('Context updated successfully');
  });

  test('a call that takes longer than the limit is given up', async () => {
    const session_key = await session();
    const release = await hold(session_key);
    const connection = connect(10);
    connection.send(update(session_key));
    await isWaiting();
    end(connection);
    await connection.ended;
    expect(connection.said()).not.toContain('"id":1');
    await release();
  });
});
