/** Changes of resources over stdio, in both revisions: this process writes, and the process that a client has started reports. */
import { PassThrough } from 'node:stream';
import { SCOPES } from '@boxcar/kernel';
import { migrateQueues, openHandoffSessions, silentLog } from '@boxcar/runtime';
import { nodeArguments, waitFor } from '@boxcar/testkit';
import { Client } from '@modelcontextprotocol/client';
import { StdioClientTransport } from '@modelcontextprotocol/client/stdio';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { DEFAULT_GROUPS, OPERATOR } from '../client-scope.js';
import { changeWatchOf } from '../resources/change-watch.js';
import { openStage, type Stage } from '../testing/http-stage.js';
import { makeSession, say } from '../testing/world.js';
import { serveClient } from './serve-client.js';

const SERVER = new URL('../server.ts', import.meta.url);
let stage: Stage;

beforeAll(async () => {
  stage = await openStage();
  await migrateQueues(stage.database.url);
});
afterAll(() => stage[Symbol.asyncDispose]());

async function start(mode: 'legacy' | 'auto'): Promise<{ readonly client: Client; readonly told: string[] }> {
  const client = new Client({ name: 'test', version: '1.0.0' }, { versionNegotiation: { mode } });
  const told: string[] = [];
  client.setNotificationHandler(
    'notifications/resources/updated',
    ({ params }) => void told.push(params.uri),
  );
  await client.connect(
    new StdioClientTransport({
      command: process.execPath,
      args: nodeArguments(SERVER),
      env: { DATABASE_URL: stage.database.url },
      stderr: 'pipe',
    }),
  );
  return { client, told };
}

test.each(['legacy', 'auto'] as const)(
  'a client (%s) is notified until it ends the subscription',
  async (mode) => {
    const sessions = await openHandoffSessions(stage.opened.runtime);
    const key = `stdio-${mode}`;
    const uri = `handoff://context/${key}`;
    await makeSession(sessions, key, [], 'claude');
    await makeSession(sessions, `other-${mode}`, [], 'claude');
    const { client, told } = await start(mode);
    const until = (times: number) =>
      waitFor(() => told.length >= times, { message: `${times} changes to be told` });
    let end: () => Promise<unknown>;
    if (mode === 'legacy') {
      await client.subscribeResource({ uri });
      end = () => client.unsubscribeResource({ uri });
    } else {
      const listening = await client.listen({ resourceSubscriptions: [uri] });
      expect(listening.honoredFilter).toEqual({ resourceSubscriptions: [uri] });
      end = () => listening.close();
      // The resource is reported once when following begins.
      await until(1);
    }
    const before = told.length;
    await say(sessions, `other-${mode}`, 'x');
    await say(sessions, key, 'x');
    await until(before + 1);
    await say(sessions, key, 'y');
    await until(before + 2);
    expect(new Set(told)).toEqual(new Set([uri]));
    await end();
    // When a later request has an answer, the end has been processed.
    await client.listResources();
    const after = told.length;
    await say(sessions, key, 'z');
    await client.readResource({ uri });
    await client.close();
    expect(told.length).toBe(after);
  },
);

test('an open stream does not delay the end of a connection', async () => {
  const [stdin, stdout] = [new PassThrough(), new PassThrough()];
  const scope = { runtime: stage.opened.runtime, projectId: 'default', as: OPERATOR, scopes: SCOPES };
  const said: string[] = [];
  stdout.on('data', (chunk: Buffer) => said.push(chunk.toString()));
  const served = serveClient(
    { ...scope, groups: DEFAULT_GROUPS, log: silentLog },
    { stdin, stdout, stop: new AbortController().signal, graceMs: 600_000 },
  );
  const meta = {
    protocolVersion: '2026-07-28',
    clientInfo: { name: 'raw', version: '1' },
    clientCapabilities: {},
  };
  const params = {
    notifications: { resourceSubscriptions: ['handoff://sessions'] },
    _meta: Object.fromEntries(
      Object.entries(meta).map(([name, value]) => [`io.modelcontextprotocol/${name}`, value]),
    ),
  };
  stdin.write(`${JSON.stringify({ jsonrpc: '2.0', id: 1, method: 'subscriptions/listen', params })}\n`);
  await waitFor(() => said.join('').includes('acknowledged'), { message: 'the stream to be open' });
  stdin.end();
  await served;
  expect(changeWatchOf(stage.opened.runtime).size).toBe(0);
});
