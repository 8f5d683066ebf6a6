import { createServer } from 'node:net';
import { inspect } from 'node:util';
import { type ModelError, ModelError as ModelErrorClass, type ModelReply } from '@boxcar/kernel';
import { describe, expect, it } from 'vitest';
import { ask } from '../fixtures/requests.js';
import { createModelRouter } from '../router.js';
import { askFor, routerTo } from '../testing/ask-provider.js';
import { type Behaviour, inOrder, openProviderServer, SERVER_KEY } from '../testing/provider-server.js';
import type { ServerAnswer, Wire, WireError } from '../testing/wire.js';
import { responsesWire } from '../testing/wire-responses.js';
import { WIRES } from '../testing/wires.js';

async function failureOf(work: Promise<ModelReply>): Promise<ModelError> {
  const error: unknown = await work.then(
    (reply) => expect.unreachable(`it answered ${JSON.stringify(reply)}`),
    (thrown: unknown) => thrown,
  );
  if (!(error instanceof ModelErrorClass)) throw error;
  // Nothing that is logged or stored may hold the key, not even the stack and the causes.
  expect(inspect(error, { depth: 20 })).not.toContain(SERVER_KEY);
  expect(JSON.parse(JSON.stringify(error.toJSON()))).toEqual(error.toJSON());
  expect(error.details).toMatchObject({ turnId: expect.any(String), step: 1, model: expect.any(String) });
  return error;
}

async function failWith(
  wire: Wire,
  behaviour: Behaviour,
  options: { readonly stream?: boolean; readonly idleTimeoutMs?: number } = {},
): Promise<ModelError> {
  const { stream = true, ...rest } = options;
  await using server = await openProviderServer(wire, inOrder(behaviour));
  const request = askFor(wire, { settings: { stream } });
  const error = await failureOf(ask(routerTo(wire, server.baseUrl, rest), request));
  // The request is never repeated.
  expect(server.requests).toHaveLength(1);
  return error;
}

const kinds = WIRES.flatMap((wire) => [true, false].map((stream) => [wire.provider, stream, wire] as const));
const ANSWER: ServerAnswer = { text: 'A text that takes three pieces.', calls: [] };
const inAnHour = () => new Date(Date.now() + 3_600_000).toUTCString();

type Expected = readonly [
  code: string,
  canRetry: boolean,
  message?: RegExp | undefined,
  retryAfterMs?: number,
];

/** Errors with codes that Google does not have. */
const BY_CODE = [
  '429 for an account without credit',
  'a context overflow by code',
  'a filter of the provider',
];

const casesOf = <T extends readonly [name: string, ...rest: unknown[]]>(
  { provider }: Wire,
  cases: readonly T[],
): readonly T[] => cases.filter(([name]) => provider !== 'google' || !BY_CODE.includes(name));

const responses: readonly (readonly [name: string, Behaviour, Expected])[] = [
  [
    '429 with seconds',
    { status: 429, error: { message: 'slow down' }, headers: { 'retry-after': '1.5' } },
    ['model_rate_limited', true, /answered 429: slow down/, 1500],
  ],
  [
    '429 with milliseconds',
    { status: 429, error: { message: 'x' }, headers: { 'retry-after-ms': '250', 'retry-after': '9' } },
    ['model_rate_limited', true, undefined, 250],
  ],
  [
    '429 with nonsense to wait for',
    { status: 429, error: { message: 'x' }, headers: { 'retry-after': 'soon' } },
    ['model_rate_limited', true],
  ],
  [
    '429 with a date that has passed',
    { status: 429, error: { message: 'x' }, headers: { 'retry-after': 'Wed, 21 Oct 2015 07:28:00 GMT' } },
    ['model_rate_limited', true, undefined, 0],
  ],
  [
    '429 for a request that can never fit',
    { status: 429, error: { message: 'Request too large for model: Limit 30000, Requested 40000' } },
    ['model_rate_limited', false],
  ],
  [
    '429 for an account without credit',
    {
      status: 429,
      error: { message: 'You exceeded your quota', type: 'insufficient_quota', code: 'insufficient_quota' },
    },
    ['model_unauthorized', false, /Check [A-Z_]+_API_KEY/],
  ],
  [
    '529 with seconds',
    {
      status: 529,
      error: { message: 'Overloaded', type: 'overloaded_error' },
      headers: { 'retry-after': '3' },
    },
    ['model_unavailable', true, /answered 529: Overloaded/, 3000],
  ],
  ['503', { status: 503, error: { message: 'busy' } }, ['model_unavailable', true, /503: busy/]],
  ['500 without a body', { status: 500 }, ['model_unavailable', true, /answered 500/]],
  [
    '502 as a page of a proxy',
    {
      status: 502,
      body: '<html><head><title>502 Bad Gateway</title></head></html>',
      headers: { 'content-type': 'text/html' },
    },
    ['model_unavailable', true, /answered 502 with a web page: 502 Bad Gateway/],
  ],
  ['400', { status: 400, error: { message: 'bad field' } }, ['model_failed', false, /400: bad field/]],
  ['400 as text', { status: 400, body: 'no such field' }, ['model_failed', false, /400: no such field/]],
  [
    '401 that repeats the key',
    {
      status: 401,
      error: { message: `Incorrect API key provided: ${SERVER_KEY}.`, type: 'authentication_error' },
    },
    [
      'model_unauthorized',
      false,
      /Incorrect API key provided: \[secret: [A-Z_]+_API_KEY\].*Check [A-Z_]+_API_KEY of the workers/,
    ],
  ],
  ['403', { status: 403, error: { message: 'not for you' } }, ['model_unauthorized', false]],
  ['402', { status: 402, error: { message: 'pay' } }, ['model_unauthorized', false]],
  [
    '404 for a model',
    { status: 404, error: { message: 'The model `x` does not exist', code: 'model_not_found' } },
    ['model_unknown', false, /Check the model's name and [A-Z_]+_BASE_URL/],
  ],
  [
    '413',
    { status: 413, error: { message: 'too big', type: 'request_too_large' } },
    ['context_overflow', false],
  ],
  [
    'a context overflow by code',
    {
      status: 400,
      error: { message: 'no', code: 'context_length_exceeded', type: 'context_length_exceeded' },
    },
    ['context_overflow', false],
  ],
  [
    'a context overflow in words',
    { status: 400, error: { message: 'prompt is too long: 210000 tokens > 200000 maximum' } },
    ['context_overflow', false, /prompt is too long/],
  ],
  [
    'a filter of the provider',
    { status: 400, error: { message: 'filtered', code: 'content_filter', type: 'content_filter' } },
    ['model_refused', false],
  ],
  [
    'a redirect, which is not followed',
    { status: 307, headers: { location: 'https://elsewhere.example/v1?token=1' } },
    ['model_failed', false, /answered 307: it redirects to elsewhere\.example/],
  ],
  [
    'a page with status 200',
    { status: 200, body: '<!DOCTYPE html><title>Sign in</title>', headers: { 'content-type': 'text/html' } },
    ['model_failed', false, /answered 200 with a web page: Sign in/],
  ],
  [
    'a page of 6 MB with many titles',
    { status: 502, body: `<html>${'<title'.repeat(1_000_000)}`, headers: { 'content-type': 'text/html' } },
    ['model_unavailable', true, /answered 502 with a web page/],
  ],
  [
    'an error of 6 MB as a text',
    { status: 400, body: 'max_'.repeat(1_500_000) },
    ['model_failed', false, /answered 400: max_/],
  ],
  ['an empty body', { status: 200 }, ['model_unavailable', true, /gave an empty answer/]],
  [
    'broken JSON',
    { status: 200, body: '{"id": "x", ', headers: { 'content-type': 'application/json' } },
    ['model_failed', false],
  ],
  [
    'JSON that is no answer',
    { status: 200, body: '[1]', headers: { 'content-type': 'application/json' } },
    ['model_failed', false],
  ],
  [
    'an error in a body with status 200',
    {
      status: 200,
      body: '{"error":{"message":"upstream is down","code":502}}',
      headers: { 'content-type': 'application/json' },
    },
    ['model_unavailable', true, /upstream is down/],
  ],
  ['a connection that is dropped', { drop: true }, ['model_unavailable', true, /cannot be reached/]],
];

describe.each(kinds)('%s, streamed: %s:', (_name, stream, wire) => {
  it.each(casesOf(wire, responses))(
    '%s',
    async (_case, behaviour, [code, canRetry, message, retryAfterMs]) => {
      const error = await failWith(wire, behaviour, { stream });
      // In a whole answer, broken JSON is a temporary fault. Where a stream was requested, the body is not a stream.
      const isWhole = !stream && 'body' in behaviour && /^(\{"id|\[1)/.test(behaviour.body ?? '');
      expect(error).toMatchObject({ code, canRetry: isWhole ? true : canRetry });
      expect(error.retryAfterMs).toBe(retryAfterMs);
      if (message !== undefined) expect(error.message).toMatch(message);
    },
  );

  it('the wait is read from a 429 with a date', async () => {
    const headers = { 'retry-after': inAnHour() };
    const error = await failWith(wire, { status: 429, error: { message: 'x' }, headers }, { stream });
    expect(error.retryAfterMs).toBeGreaterThan(3_500_000);
    expect(error.retryAfterMs).toBeLessThanOrEqual(3_600_000);
  });

  it('a provider that is down can be called again', async () => {
    const probe = createServer();
    await new Promise<void>((resolve) => probe.listen(0, '127.0.0.1', resolve));
    const address = probe.address();
    const port = typeof address === 'object' ? address?.port : undefined;
    await new Promise((resolve) => probe.close(resolve));
    const request = askFor(wire, { settings: { stream } });
    const down = await failureOf(ask(routerTo(wire, `http://127.0.0.1:${port}/v1`), request));
    expect(down).toMatchObject({ code: 'model_unavailable', canRetry: true });
    expect(down.message).toMatch(/cannot be reached \(ECONNREFUSED\)/);
    const nowhere = await failureOf(ask(routerTo(wire, 'http://nowhere.invalid/v1'), request));
    expect(nowhere).toMatchObject({ code: 'model_unavailable', canRetry: true });
    expect(nowhere.details).toMatchObject({ host: 'nowhere.invalid' });
  });
});

const wires = WIRES.map((wire) => [wire.provider, wire] as const);

describe.each(wires)('%s, in the middle of a stream:', (_name, wire) => {
  it.each([
    ['ends', 'end'],
    ['is destroyed', 'destroy'],
  ] as const)('a stream that %s before its end is not an answer', async (_how, after) => {
    for (const frames of [1, 4]) {
      const error = await failWith(wire, { answer: ANSWER, frames, after });
      expect(error).toMatchObject({ code: 'model_unavailable', canRetry: true });
      expect(error.message).toMatch(/broke its answer off/);
    }
  });

  it('a call whose arguments are cut by the end of the stream does not count', async () => {
    const calls = [{ id: 'a', name: 'list_files', arguments: '{"path":"src"}' }];
    const all = wire.events({ calls }).length;
    for (let frames = 1; frames < all - 2; frames += 1) {
      const error = await failWith(wire, { answer: { calls }, frames, after: 'end' });
      expect(error).toMatchObject({ code: 'model_unavailable', canRetry: true });
    }
  });

  it('silence is noticed', async () => {
    const error = await failWith(wire, { answer: ANSWER, frames: 4, after: 'hang' }, { idleTimeoutMs: 200 });
    expect(error).toMatchObject({ code: 'model_timeout', canRetry: true });
    expect(error.message).toMatch(/fell silent for 0\.2 s after [1-9]\d* bytes/);
  });

  it('a slow stream that continues is accepted', async () => {
    await using server = await openProviderServer(wire, inOrder({ answer: ANSWER, frameMs: 30 }));
    const reply = await ask(routerTo(wire, server.baseUrl, { idleTimeoutMs: 2_000 }), askFor(wire));
    expect(reply.text).toBe(ANSWER.text);
  });

  it('an event that is not valid JSON fails the call', async () => {
    const after = { frame: 'data: {"type": "cut", \n\n' };
    const error = await failWith(wire, { answer: ANSWER, frames: 2, after });
    expect(error).toMatchObject({ code: 'model_failed', canRetry: true });
  });

  const events: readonly (readonly [WireError, string, boolean])[] = [
    [{ message: 'Overloaded', type: 'overloaded_error' }, 'model_unavailable', true],
    [
      { message: 'slow down', type: 'rate_limit_error', code: 'rate_limit_exceeded' },
      'model_rate_limited',
      true,
    ],
    [{ message: 'oops', type: 'server_error', code: 'server_error' }, 'model_unavailable', true],
    [
      { message: 'too long', type: 'invalid_request_error', code: 'context_length_exceeded' },
      'context_overflow',
      false,
    ],
    [{ message: 'prompt is too long: 9 > 8', type: 'invalid_request_error' }, 'context_overflow', false],
    [{ message: 'bad', type: 'invalid_request_error' }, 'model_failed', false],
  ];
  it.each(events)('an error event in a 200 stream fails the call: %o', async (sent, code, canRetry) => {
    // Anthropic's errors have no code; Google's codes are names of statuses.
    const error =
      wire.provider === 'anthropic' || wire.provider === 'google'
        ? {
            message: `${sent.message} ${sent.code === 'context_length_exceeded' ? 'maximum context' : ''}`,
            type: sent.type ?? '',
          }
        : sent;
    for (const frames of [0, 1, 4]) {
      const failure = await failWith(wire, { answer: ANSWER, frames, after: { error } });
      expect([frames, failure.code, failure.canRetry]).toEqual([frames, code, canRetry]);
      expect(failure.message).toContain(sent.message);
    }
  });

  it('an abort ends the stream at once with its reason, closes the connection, and later data is ignored', async () => {
    await using server = await openProviderServer(wire, inOrder({ answer: ANSWER, frameMs: 40 }));
    const controller = new AbortController();
    const reason = new Error('canceled');
    const call = routerTo(wire, server.baseUrl).generate(askFor(wire), { signal: controller.signal });
    const failure = call.catch((error: unknown) => error);
    await expect.poll(() => server.requests.length).toBe(1);
    controller.abort(reason);
    expect(await failure).toBe(reason);
    await expect.poll(() => server.abandoned).toBe(1);
  });
});

// Mistral has no error code for it.
it.each(wires.filter(([provider]) => provider !== 'mistral'))(
  '%s: an answer that the filter left empty is refused, and an answer with text is accepted',
  async (_name, wire) => {
    const error = await failWith(wire, { answer: { finish: 'content_filter' } });
    expect(error).toMatchObject({ code: 'model_refused', canRetry: false });
    await using server = await openProviderServer(
      wire,
      inOrder({ answer: { text: 'I may not.', finish: 'content_filter' } }),
    );
    await expect(ask(routerTo(wire, server.baseUrl), askFor(wire))).resolves.toMatchObject({
      text: 'I may not.',
      finishReason: 'content_filter',
    });
  },
);

/** The providers whose API has a separate place for the text of a refusal. */
const refusing = WIRES.filter(({ provider }) =>
  ['openai', 'openai-chat', 'deepseek', 'openai-compatible'].includes(provider),
).flatMap((wire) => [true, false].map((stream) => [wire.provider, stream, wire] as const));

it.each(refusing)(
  '%s, streamed: %s: an answer that is a refusal fails with its text',
  async (_name, stream, wire) => {
    const answer = { refusal: "I'm sorry, I can't help with that.", finish: 'stop' as const };
    await using server = await openProviderServer(wire, inOrder({ answer }));
    const request = askFor(wire, { settings: { stream } });
    const error = await failureOf(ask(routerTo(wire, server.baseUrl), request));
    expect(error).toMatchObject({
      code: 'model_refused',
      canRetry: false,
      details: { refusal: "I'm sorry, I can't help with that." },
    });
    expect(error.message).toMatch(/refused to answer: I'm sorry, I can't help with that\.$/);
  },
);

describe.each(wires)('%s, before any call:', (_name, wire) => {
  it('a missing setting is reported with its variable', async () => {
    const bare = createModelRouter();
    const failure = await failureOf(ask(bare, askFor(wire)));
    const variable = {
      openai: 'OPENAI_API_KEY',
      'openai-chat': 'OPENAI_API_KEY',
      anthropic: 'ANTHROPIC_API_KEY',
      google: 'GEMINI_API_KEY',
      mistral: 'MISTRAL_API_KEY',
      deepseek: 'DEEPSEEK_API_KEY',
      'openai-compatible': 'OPENAI_COMPATIBLE_BASE_URL',
    }[wire.provider];
    expect(failure).toMatchObject({
      code: wire.provider === 'openai-compatible' ? 'bad_config' : 'model_unauthorized',
      canRetry: false,
      details: { variable },
    });
    expect(failure.message).toContain(`${variable} is not set where this worker runs`);
  });

  it('a wrong key is refused with the name of the variable', async () => {
    await using server = await openProviderServer(wire, inOrder({ answer: ANSWER }), { key: 'another' });
    const failure = await failureOf(ask(routerTo(wire, server.baseUrl), askFor(wire)));
    expect(failure).toMatchObject({
      code: 'model_unauthorized',
      details: { status: 401, variable: expect.stringMatching(/_API_KEY$/) },
    });
    expect(server.requests).toEqual([]);
  });

  it('a wrong base URL is reported', async () => {
    await using server = await openProviderServer(wire, inOrder({ answer: ANSWER }));
    const failure = await failureOf(ask(routerTo(wire, `${server.baseUrl}/nope`), askFor(wire)));
    expect(failure).toMatchObject({ code: 'model_unknown', details: { status: 404 } });
    expect(failure.message).toMatch(/_BASE_URL/);
  });
});

it('openai: a response that failed without a message is not an answer', async () => {
  const frame = 'data: {"type":"response.failed","sequence_number":9,"response":{"error":null}}\n\n';
  const error = await failWith(responsesWire, { answer: ANSWER, frames: 4, after: { frame } });
  expect(error).toMatchObject({ code: 'model_unavailable', canRetry: true });
});

it('a server without a key is sent no key', async () => {
  const wire = WIRES.find(({ provider }) => provider === 'openai-compatible');
  if (wire === undefined) throw new Error('no wire');
  await using server = await openProviderServer(wire, inOrder({ answer: ANSWER }), { key: null });
  await ask(routerTo(wire, server.baseUrl, { key: '' }), askFor(wire));
  expect(server.requests[0]?.headers.authorization).toBeUndefined();
});
