/** Callbacks on the command line: requested, listed, shown, and sent again manually. */
import { createServer, type Server } from 'node:http';
import type { AddressInfo } from 'node:net';
import { createWorker, HandoffTool } from '@boxcar/runtime';
import { type TestDatabase, testDatabase, waitFor } from '@boxcar/testkit';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { cliHere, type Env, prepare } from '../../testing/cli.js';

let database: TestDatabase;
let env: Env;
let stack: Awaited<ReturnType<typeof prepare>>;
let worker: Awaited<ReturnType<typeof createWorker>>;
let server: Server;
let url: string;
/** The status that the receiver answers, and the ids that it received. */
let answer = 410;
const got: string[] = [];

beforeAll(async () => {
  server = createServer((request, response) => {
    got.push(String(request.headers['webhook-id']));
    request.resume();
    response.writeHead(answer).end();
  });
  await new Promise<void>((settle) => server.listen(0, '127.0.0.1', settle));
  url = `http://127.0.0.1:${(server.address() as AddressInfo).port}/hook?token=abc`;
  database = await testDatabase();
  env = {
    DATABASE_URL: database.url,
    BOXCAR_HANDOFF_ENABLED: 'true',
    BOXCAR_WEBHOOK_SECRET: 'a secret text',
    BOXCAR_WEBHOOK_ALLOW_PRIVATE: '127.0.0.1',
  };
  stack = await prepare(env);
  worker = await createWorker(stack.runtime, { sweepMs: 100 });
});
afterAll(async () => {
  await worker.close();
  await stack[Symbol.asyncDispose]();
  server.closeAllConnections();
  await new Promise((settle) => server.close(settle));
  await database.close();
});

const json = async (...args: string[]) => JSON.parse((await cliHere([...args, '--json'], env)).stdout);
const submit = (callbackUrl: string, more: readonly string[] = [], settings: Env = env) =>
  cliHere(
    [
      ...['submit', 'handoff', '--arg', 'source_agent=main', '--arg', 'target_agent=writer'],
      ...['--arg', 'task=world', '--arg', `callback:=${JSON.stringify({ url: callbackUrl })}`, ...more],
    ],
    settings,
  );
const hasStatus = (status: string) =>
  waitFor(async () => (await json('webhooks', 'ls', '--status', status)).webhooks[0], {
    message: `a delivery is ${status}`,
    deadlineMs: 30_000,
  });

test('an address that is not public, and a missing secret, are refused when the handoff is requested', async () => {
  const refused = await submit('http://10.0.0.1/');
  expect(refused.code).toBe(1);
  expect(refused.stderr).toContain('arguments.callback.url is at an address that is not public');
  expect(refused.stderr).toContain('BOXCAR_WEBHOOK_ALLOW_PRIVATE');
  const { BOXCAR_WEBHOOK_SECRET: _secret, ...without } = env;
  const unsigned = await submit(url, [], without);
  expect(unsigned.code).toBe(1);
  expect(unsigned.stderr).toContain('Set BOXCAR_WEBHOOK_SECRET');
  expect((await cliHere(['webhooks', 'ls'], env)).stdout).toBe('no webhooks\n');
});

test('a failed delivery is listed, found by doctor, shown with its handoff, and sent again', async () => {
  expect((await submit(url, ['--wait'])).code).toBe(0);
  const failed = await hasStatus('failed');
  expect(failed).toMatchObject({
    event_type: 'handoff.completed',
    attempts: 1,
    last_status: 410,
    url: url.replace('token=abc', '…'),
  });
  const list = await cliHere(['webhooks', 'ls'], env);
  for (const part of [failed.delivery_id.slice(0, 8), 'failed', 'handoff.completed', 'HTTP 410'])
    expect(list.stdout).toContain(part);
  const shown = await cliHere(['webhooks', 'show', failed.delivery_id.slice(0, 8)], env);
  expect(shown.stdout).toContain(failed.handoff_id);
  const handoff = await cliHere(['handoffs', 'show', failed.handoff_id], env);
  expect(handoff.stdout).toContain(failed.delivery_id);
  expect(handoff.stdout + shown.stdout + list.stdout).not.toContain('token=abc');
  const { findings } = await json('doctor');
  expect(findings).toEqual(
    expect.arrayContaining([
      expect.objectContaining({ check: 'webhooks', level: 'warn', ids: [failed.delivery_id] }),
    ]),
  );
  answer = 200;
  const again = await json('webhooks', 'retry', failed.delivery_id.slice(0, 8));
  expect(again.webhook).toMatchObject({ delivery_id: failed.delivery_id });
  expect(await hasStatus('delivered')).toMatchObject({ delivery_id: failed.delivery_id, attempts: 2 });
  expect(new Set(got)).toEqual(new Set([failed.delivery_id]));
  const late = await cliHere(['webhooks', 'retry', failed.delivery_id], env);
  expect(late).toMatchObject({ code: 1, stdout: '' });
  expect(late.stderr).toContain('was delivered already');
});

test('a list is filtered, and continues by a cursor', async () => {
  const tool = new HandoffTool({ runtime: stack.runtime, concurrency: 0 });
  const { handoff_id } = await tool.handoff({
    source_agent: 'main',
    target_agent: 'writer',
    task: 'again',
    callback: { url },
  });
  const [newest, oldest] = await waitFor(
    async () => {
      const { webhooks } = await json('webhooks', 'ls', '--status', 'delivered');
      return webhooks.length === 2 ? webhooks : undefined;
    },
    { message: 'both are delivered', deadlineMs: 30_000 },
  );
  expect(newest.handoff_id).toBe(handoff_id);
  expect((await json('webhooks', 'ls', '--handoff', handoff_id.slice(0, 18))).webhooks).toEqual([newest]);
  expect((await json('webhooks', 'ls', '--status', 'failed')).webhooks).toEqual([]);
  const first = await cliHere(['webhooks', 'ls', '--limit', '1'], env);
  const cursor = /--cursor (\S+)/.exec(first.stderr)?.[1] ?? '';
  expect((await json('webhooks', 'ls', '--cursor', cursor)).webhooks).toEqual([oldest]);
  expect((await cliHere(['webhooks', 'ls', '--cursor', 'x'], env)).code).toBe(2);
});
