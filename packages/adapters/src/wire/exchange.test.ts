import type { AddressInfo } from 'node:net';
import { createServer, type Server } from 'node:net';
import { expect, test } from 'vitest';
import { AdapterError } from '../adapter-error.js';
import { Concealer } from './conceal.js';
import { Exchange, type ExchangeOptions } from './exchange.js';
import { createFetch } from './http-fetch.js';

/** A server that answers each connection with these bytes, and then closes it or keeps it open. */
async function openRaw(bytes: string, isOpen = false) {
  let closed: () => void = () => undefined;
  const whenClosed = new Promise<void>((resolve) => {
    closed = resolve;
  });
  const server: Server = createServer((socket) => {
    socket.on('error', () => undefined).on('close', closed);
    socket.once('data', () => (isOpen ? socket.write(bytes) : socket.end(bytes)));
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  return {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}/`,
    whenClosed,
    [Symbol.asyncDispose]: () => new Promise<void>((resolve) => server.close(() => resolve())),
  };
}

const exchangeWith = (given: Partial<ExchangeOptions> = {}) =>
  new Exchange({
    fetch: createFetch(),
    signal: new AbortController().signal,
    caller: {
      platform: 'openai',
      handoffId: 'h',
      attempt: 1,
      keyVariable: undefined,
      concealer: new Concealer({}),
    },
    ...given,
  });

async function failureOf(work: Promise<unknown>): Promise<AdapterError> {
  const error: unknown = await work.catch((thrown: unknown) => thrown);
  if (error instanceof AdapterError) return error;
  throw new Error(`not an AdapterError: ${String(error)}`);
}

const OK = 'HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\n';

test('an open connection is closed when the exchange is over', async () => {
  await using server = await openRaw(`${OK}content-length: 100\r\n\r\nhalf`, true);
  {
    using exchange = exchangeWith();
    const response = await exchange.fetch(server.url);
    expect(response.status).toBe(200);
  }
  await server.whenClosed;
});

test('an answer over the size limit is given up, and not tried again', async () => {
  await using server = await openRaw(`${OK}\r\n${'x'.repeat(5_000)}`, true);
  using exchange = exchangeWith({ maxAnswerBytes: 1_000 });
  const response = await exchange.fetch(server.url);
  const error = await failureOf(response.text());
  expect([error.code, error.retryable, error.message.includes('1000 bytes')]).toEqual([
    'platform_failed',
    false,
    true,
  ]);
  expect(exchange.failure).toBe(error);
  await server.whenClosed;
});

test('a body that is shorter than its announced length is a broken connection', async () => {
  await using server = await openRaw(`${OK}content-length: 100\r\n\r\nhalf`);
  using exchange = exchangeWith();
  const error = await failureOf((await exchange.fetch(server.url)).text());
  expect([error.code, error.retryable]).toEqual(['platform_unavailable', true]);
});

test('bytes that are not HTTP, and unknown HTTP statuses, are not answers', async () => {
  for (const bytes of ['SSH-2.0-OpenSSH\r\n', 'HTTP/1.1 999 Odd\r\ncontent-length: 0\r\n\r\n']) {
    await using server = await openRaw(bytes);
    using exchange = exchangeWith();
    const error = await failureOf(exchange.fetch(server.url));
    expect([error.code, error.retryable]).toEqual(['platform_failed', false]);
  }
});

test('of an error’s body at most 64 KiB are read', async () => {
  const words = `{"error":{"message":"${'no '.repeat(200_000)}`;
  await using server = await openRaw(
    `HTTP/1.1 400 Bad\r\ncontent-type: application/json\r\n\r\n${words}`,
    true,
  );
  using exchange = exchangeWith();
  const error = await failureOf(exchange.fetch(server.url));
  expect([error.code, error.message.length < 1_000]).toEqual(['platform_failed', true]);
  await server.whenClosed;
});

test('an answer that changes the protocol is not an answer, and does not keep the caller waiting', async () => {
  await using server = await openRaw(
    'HTTP/1.1 101 Switching\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n',
    true,
  );
  using exchange = exchangeWith();
  const error = await failureOf(exchange.fetch(server.url));
  expect([error.code, error.retryable]).toEqual(['platform_failed', false]);
  await server.whenClosed;
});

test('the status of an error counts although its body does not end', async () => {
  const headers = 'content-type: application/json\r\nretry-after: 7\r\ncontent-length: 100';
  await using server = await openRaw(`HTTP/1.1 429 Busy\r\n${headers}\r\n\r\n{"error":`, true);
  using exchange = exchangeWith({ errorBodyMs: 20 });
  const error = await failureOf(exchange.fetch(server.url));
  expect([error.code, error.retryAfterMs]).toEqual(['platform_rate_limited', 7_000]);
  await server.whenClosed;
});

test('an answer that its reader has stopped reading is not a failure of the exchange', async () => {
  await using server = await openRaw(`${OK}content-length: 100\r\n\r\nhalf`, true);
  using exchange = exchangeWith();
  const { body } = await exchange.fetch(server.url);
  const reader = body?.pipeThrough(new TextDecoderStream()).getReader();
  await reader?.read();
  await reader?.cancel();
  await server.whenClosed;
  expect(exchange.failure).toBeUndefined();
});

test('an answer without a body is an answer', async () => {
  await using server = await openRaw('HTTP/1.1 204 No Content\r\n\r\n');
  using exchange = exchangeWith();
  expect(await (await exchange.fetch(server.url)).text()).toBe('');
});
