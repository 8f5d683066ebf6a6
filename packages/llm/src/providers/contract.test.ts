import type { ModelRequest } from '@boxcar/kernel';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { modelContract } from '../internal.js';
import { askFor, routerTo } from '../testing/ask-provider.js';
import { type Behave, openProviderServer, type ProviderServer } from '../testing/provider-server.js';
import { WIRES } from '../testing/wires.js';

/** The model on the server: its behavior follows from its name alone. */
const behave: Behave = ({ prompt }) => {
  switch (prompt?.model) {
    case 'text':
      return { answer: { text: 'Hello, you.' } };
    case 'calls':
      return {
        answer: {
          text: 'I look.',
          calls: [
            { id: 'call_a', name: 'list_files', arguments: '{"path":"src"}' },
            { id: 'call_b', name: 'tape__handoff', arguments: '{ "name" : "next" }' },
          ],
        },
      };
    case 'slow':
      return { hang: true };
    case 'limited':
      return { status: 429, error: { message: 'slow down' }, headers: { 'retry-after': '2' } };
    case 'long':
      return { status: 400, error: { message: 'prompt is too long: 9 tokens > 8 maximum' } };
    default:
      return { status: 404, error: { message: 'no such model', type: 'not_found_error' } };
  }
};

const kinds = WIRES.flatMap((wire) =>
  [true, false].map((stream) => ({
    name: `${wire.provider}, ${stream ? 'streamed' : 'whole'}`,
    wire,
    stream,
  })),
);

describe.each(kinds)('the adapter of $name keeps the contract of Model:', ({ wire, stream }) => {
  let server: ProviderServer;
  beforeAll(async () => {
    server = await openProviderServer(wire, behave);
  });
  afterAll(async () => {
    expect(server.refusals).toEqual([]);
    await server[Symbol.asyncDispose]();
  });

  const request = (model: string): ModelRequest => askFor(wire, { model, settings: { stream } });
  const cases = modelContract({
    create: () => routerTo(wire, server.baseUrl),
    text: request('text'),
    calls: request('calls'),
    slow: request('slow'),
    failures: [
      { request: request('limited'), code: 'model_rate_limited', canRetry: true, retryAfterMs: 2000 },
      { request: request('long'), code: 'context_overflow', canRetry: false },
      { request: request('nope'), code: 'model_unknown', canRetry: false },
      { request: { ...request('x'), model: `${wire.provider}:` }, code: 'model_unknown', canRetry: false },
    ],
  });
  for (const { name, run } of cases) it(name, run);
});
