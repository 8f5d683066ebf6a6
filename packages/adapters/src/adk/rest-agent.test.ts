/** Agents over HTTP+JSON, the other transport of A2A. */
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { afterEach, beforeEach, expect, test, vi } from 'vitest';
import { failureOf, LOCAL } from '../testing/ask-agent.js';
import { requestFor } from '../testing/cards.js';
import { PLATFORM_KEY } from '../testing/platform-server.js';
import { ADKHandoffAdapter } from './adk-adapter.js';

beforeEach(() => {
  vi.stubEnv('HARBOUR_KEY', PLATFORM_KEY);
});
afterEach(() => {
  vi.unstubAllEnvs();
  vi.restoreAllMocks();
});

interface Reply {
  readonly status: number;
  readonly type: string;
  readonly body: string;
}

/** An agent that answers every request except the one for its card with the same reply. */
async function openAgent({ status, type, body }: Reply) {
  const paths: string[] = [];
  const server = createServer(({ url = '' }, response) => {
    const card = {
      supportedInterfaces: [
        { url: `${origin}/rest`, protocolBinding: 'HTTP+JSON', protocolVersion: '1.0', tenant: 'acme' },
      ],
      capabilities: { streaming: true },
    };
    if (url === '/card.json') return void response.end(JSON.stringify(card));
    paths.push(url);
    response.writeHead(status, { 'content-type': type }).end(body);
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  const origin = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
  const target = { platform: 'adk', card_url: `${origin}/card.json`, api_key_env: 'HARBOUR_KEY' } as const;
  const signal = new AbortController().signal;
  return {
    paths,
    run: () =>
      new ADKHandoffAdapter(LOCAL).executeHandoff(requestFor(target), {
        signal,
        attempt: 1,
        idempotencyKey: 'k',
      }),
    cancel: () => new ADKHandoffAdapter(LOCAL).cancel({ target }, { signal, remoteId: 't' }),
    [Symbol.asyncDispose]: () => new Promise<void>((resolve) => server.close(() => resolve())),
  };
}

const ids = { taskId: 't', contextId: 'c' };
const EVENTS = [
  { task: { id: 't', contextId: 'c', status: { state: 'TASK_STATE_WORKING' } } },
  { artifactUpdate: { ...ids, artifact: { artifactId: 'a', parts: [{ text: 'Done.' }] } } },
  { statusUpdate: { ...ids, status: { state: 'TASK_STATE_COMPLETED' } } },
];

test('an agent over HTTP+JSON answers, at the path of its tenant', async () => {
  const body = EVENTS.map((event) => `data: ${JSON.stringify(event)}\n\n`).join('');
  await using agent = await openAgent({ status: 200, type: 'text/event-stream', body });
  const { result, remote_id } = await agent.run();
  expect([result, remote_id, agent.paths]).toEqual(['Done.', 't', ['/rest/acme/message:stream']]);
});

test('an event that cannot be read is never printed', async () => {
  const printed = vi.spyOn(console, 'error').mockReturnValue();
  const body = `data: {"half ${PLATFORM_KEY}\n\n`;
  await using agent = await openAgent({ status: 200, type: 'text/event-stream', body });
  expect((await failureOf(agent.run())).code).toBe('platform_failed');
  expect(printed.mock.calls).toEqual([]);
});

test('a cancellation that the agent refuses is reported as refused, whatever its status', async () => {
  for (const status of [400, 404, 409]) {
    await using agent = await openAgent({
      status,
      type: 'application/json',
      body: '{"error":{"message":"no"}}',
    });
    expect(await agent.cancel()).toBe(false);
  }
  await using agent = await openAgent({ status: 503, type: 'application/json', body: '{}' });
  expect((await failureOf(agent.cancel())).code).toBe('platform_unavailable');
});
