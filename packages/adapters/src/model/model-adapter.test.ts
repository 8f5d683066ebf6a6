import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import {
  anthropicWire,
  type Behaviour,
  inOrder,
  openProviderServer,
  responsesWire,
  SERVER_KEY,
  type Wire,
} from '@boxcar/llm/testing';
import { afterEach, expect, test, vi } from 'vitest';
import type { AdapterResult, ExecuteOptions } from '../adapter.js';
import { AdapterError } from '../adapter-error.js';
import { requestFor } from '../testing/cards.js';
import { AnthropicHandoffAdapter, OpenAIHandoffAdapter } from './model-adapter.js';

afterEach(() => {
  vi.unstubAllEnvs();
});

const PLATFORMS = [
  ['openai', responsesWire, OpenAIHandoffAdapter],
  ['anthropic', anthropicWire, AnthropicHandoffAdapter],
] as const;
type Name = (typeof PLATFORMS)[number][0];

const ADAPTERS = { openai: OpenAIHandoffAdapter, anthropic: AnthropicHandoffAdapter };

/** A server that the platform's own variables point to, and a handoff to `model:writer` without an entry. */
async function open(name: Name, wire: Wire, ...behaviours: readonly Behaviour[]) {
  const server = await openProviderServer(wire, inOrder(...behaviours));
  vi.stubEnv(`${name.toUpperCase()}_API_KEY`, SERVER_KEY);
  vi.stubEnv(`${name.toUpperCase()}_BASE_URL`, `${server.baseUrl}/`);
  const run = (options: Partial<ExecuteOptions> = {}): Promise<AdapterResult> =>
    new ADAPTERS[name]().executeHandoff(requestFor({ platform: name, model: 'writer' }), {
      signal: new AbortController().signal,
      attempt: 2,
      idempotencyKey: 'k',
      ...options,
    });
  const fail = async (): Promise<AdapterError> => {
    const error: unknown = await run().catch((thrown: unknown) => thrown);
    if (error instanceof AdapterError) return error;
    throw error;
  };
  return { server, run, fail, [Symbol.asyncDispose]: () => server[Symbol.asyncDispose]() };
}

test.each(PLATFORMS)(
  '%s: a model without an entry uses the variables of the platform',
  async (name, wire) => {
    await using at = await open(name, wire, {
      answer: { text: 'Done.', usage: { input: 30, output: 4, cached: 10 } },
    });
    const { result, usage, remote_id, loss } = await at.run();
    expect([result, usage, loss]).toEqual([
      'Done.',
      { input_tokens: 30, output_tokens: 4 },
      { sent_cards: [], lost: [] },
    ]);
    expect(remote_id).toMatch(/^(resp|msg)_1$/);
    expect(at.server.requests[0]?.prompt).toMatchObject({ model: 'writer', tools: [], isStreaming: true });
  },
);

test.each(PLATFORMS)('%s: impossible usage is not charged', async (name, wire) => {
  for (const [usage, expected] of [
    [
      { input: 30.5, output: 4 },
      { input_tokens: 31, output_tokens: 4 },
    ],
    [{ input: 30, output: -4 }, null],
    [{ input: 1e300, output: 4 }, null],
  ] as const) {
    await using at = await open(name, wire, { answer: { text: 'Done.', usage } });
    expect((await at.run()).usage).toEqual(expected);
  }
});

test.each(PLATFORMS)('%s: a key that no header can hold is sent as its hash', async (name, wire) => {
  await using at = await open(name, wire, { answer: { text: 'Done.' } });
  await at.run({ idempotencyKey: 'Schlüssel\nzwei' });
  expect(at.server.requests[0]?.headers['idempotency-key']).toMatch(/^[0-9a-f]{64}$/);
});

test.each(PLATFORMS)(
  '%s: an error inside the stream counts like the corresponding status',
  async (name, wire) => {
    for (const [type, code, retryable] of [
      ['rate_limit_error', 'platform_rate_limited', true],
      ['overloaded_error', 'platform_unavailable', true],
      ['invalid_request_error', 'platform_failed', false],
      ['authentication_error', 'platform_unauthorized', false],
    ] as const) {
      const error = { message: 'not now, writer', type, code: type };
      await using at = await open(name, wire, {
        answer: { text: 'Half of it' },
        frames: 4,
        after: { error },
      });
      const failure = await at.fail();
      expect([failure.code, failure.retryable]).toEqual([code, retryable]);
      expect(failure.message).toContain('not now, [model]');
      expect(at.server.requests.length).toBe(1);
    }
  },
);

test.each(PLATFORMS)(
  '%s: a stream without an end is a broken answer, although the connection ended normally',
  async (name, wire) => {
    await using at = await open(name, wire, { answer: { text: 'Half of it' }, frames: 4 });
    const failure = await at.fail();
    expect([failure.code, failure.retryable]).toEqual(['platform_unavailable', true]);
  },
);

test.each([
  ['openai', OpenAIHandoffAdapter],
  ['anthropic', AnthropicHandoffAdapter],
] as const)(
  '%s: a web page or a document in place of a stream is not a broken stream',
  async (platform, Adapter) => {
    vi.stubEnv('WRITER_KEY', SERVER_KEY);
    for (const [type, body, code, words] of [
      ['text/html', '<html>Sign in</html>', 'platform_failed', 'text/html'],
      ['application/json', '{"id":"1","output":[]}', 'platform_failed', 'application/json'],
      [
        'application/json',
        '{"error":{"message":"slow down, writer","code":"rate_limit_exceeded"}}',
        'platform_rate_limited',
        'slow down, [model]',
      ],
    ] as const) {
      const server = createServer((_request, response) => {
        response.writeHead(200, { 'content-type': type }).end(body);
      });
      await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
      const target = {
        platform,
        model: 'writer',
        api_key_env: 'WRITER_KEY',
        base_url: `http://127.0.0.1:${(server.address() as AddressInfo).port}/v1`,
      };
      const options = { signal: new AbortController().signal, attempt: 1, idempotencyKey: 'k' };
      const error = await new Adapter().executeHandoff(requestFor(target), options).catch((thrown) => thrown);
      server.close();
      expect([error.code, error.message.includes(words)]).toEqual([code, true]);
    }
  },
);

test('usage that Anthropic reports at the beginning is the usage of an answer that broke off', async () => {
  await using at = await open('anthropic', anthropicWire, {
    answer: { text: 'Half of it', usage: { input: 70, output: 9 } },
    frames: 4,
    after: 'destroy',
  });
  const { usage, code } = await at.fail();
  expect([code, usage]).toEqual(['platform_unavailable', { input_tokens: 70, output_tokens: 1 }]);
});

test.each(PLATFORMS)('%s: refused, cut and empty answers are not results', async (name, wire) => {
  for (const [answer, code] of [
    [{ text: 'I will not.', finish: 'content_filter' }, 'platform_refused'],
    [{ text: 'Half of', finish: 'length' }, 'answer_cut'],
    [{ text: ' ' }, 'platform_failed'],
  ] as const) {
    await using at = await open(name, wire, { answer });
    const failure = await at.fail();
    expect([code, failure.code, failure.retryable]).toEqual([code, code, false]);
    expect(failure.usage).toEqual({ input_tokens: 1234, output_tokens: 56 });
  }
});

test.each(PLATFORMS)('%s: a context that is too long has its own code', async (name, wire) => {
  const message = 'prompt is too long: 250000 tokens > 200000 maximum';
  await using at = await open(name, wire, { status: 400, error: { message } });
  expect((await at.fail()).code).toBe('context_overflow');
});

test.each(PLATFORMS)(
  '%s: an invalid address in the environment is reported',
  async (name, _wire, Adapter) => {
    const variable = `${name.toUpperCase()}_BASE_URL`;
    vi.stubEnv(variable, 'not an address');
    vi.stubEnv(`${name.toUpperCase()}_API_KEY`, SERVER_KEY);
    const work = new Adapter().executeHandoff(requestFor({ platform: name, model: 'writer' }), {
      signal: new AbortController().signal,
      attempt: 1,
      idempotencyKey: 'k',
    });
    const { code, message } = (await work.then(String, (error: AdapterError) => error)) as AdapterError;
    expect([code, message.includes(variable), message.includes('not an address')]).toEqual([
      'platform_failed',
      true,
      false,
    ]);
  },
);

test('instructions of the operator are the system message, and the handed-over content is one user message', async () => {
  await using at = await open('openai', responsesWire, { answer: { text: 'Done.' } });
  const target = {
    platform: 'openai',
    model: 'writer',
    instructions: 'Be brief.',
    max_output_tokens: 77,
  } as const;
  await new OpenAIHandoffAdapter().executeHandoff(requestFor(target, { context: { a: 1 } }), {
    signal: new AbortController().signal,
    attempt: 1,
    idempotencyKey: 'k',
  });
  expect(at.server.requests[0]?.body).toMatchObject({
    store: false,
    max_output_tokens: 77,
    input: [
      { role: 'system', content: 'Be brief.' },
      {
        role: 'user',
        content: [{ text: '[context]\n{"a":1}' }, { text: 'Describe the harbour.' }],
      },
    ],
  });
});
