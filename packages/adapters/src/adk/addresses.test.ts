import { afterEach, beforeEach, expect, test, vi } from 'vitest';
import { agent, failureOf, run } from '../testing/ask-agent.js';
import { PLATFORM_KEY } from '../testing/platform-server.js';

beforeEach(() => {
  vi.stubEnv('HARBOUR_KEY', PLATFORM_KEY);
});
afterEach(() => {
  vi.unstubAllEnvs();
});

test('a private address of a card is refused before anything is sent, in every notation', async () => {
  await using server = await agent();
  const { port } = new URL(server.origin);
  for (const host of ['127.0.0.1', '127.1', '2130706433', '[::ffff:127.0.0.1]', 'localhost']) {
    const cardUrl = `http://${host}:${port}/card.json`;
    const error = await failureOf(run(server, { adapter: { allowPrivate: [] }, cardUrl }));
    expect([host, error.code, error.message.includes(port)]).toEqual([host, 'bad_request', false]);
  }
  expect(server.requests).toEqual([]);
});

test('a private address that a card names is refused, although the card itself is allowed', async () => {
  for (const url of ['http://10.0.0.9:9/rpc', 'http://[::1]:9/rpc', 'file:///etc/passwd']) {
    await using server = await agent({ urlOf: () => url });
    const error = await failureOf(run(server));
    expect([url, error.code, error.message.includes(url)]).toEqual([url, 'bad_request', false]);
    expect(server.works).toEqual([]);
  }
});

test('a host name in a card is judged by the address of the connection', async () => {
  await using server = await agent({
    urlOf: (origin) => origin.replace('127.0.0.1', 'localhost').concat('/rpc'),
  });
  const refused = await failureOf(run(server, { adapter: { allowPrivate: ['10.0.0.0/8'] } }));
  expect(refused.code).toBe('bad_request');
  const byName = { allowPrivate: ['127.0.0.1', 'localhost'], pollMs: 1 };
  await failureOf(run(server, { adapter: byName }));
  expect(server.refusals).toEqual(['wrong key']);
});

test('exceptions of the environment are used when the program gives none', async () => {
  await using server = await agent();
  vi.stubEnv('BOXCAR_TARGETS_ALLOW_PRIVATE', '10.0.0.0/8, 127.0.0.1');
  expect((await run(server, { adapter: {} })).result).toBe('Done.');
});

test('the key is sent to the origin of the card, and to no other origin in the card', async () => {
  await using other = await agent();
  await using server = await agent({ urlOf: () => `${other.origin}/rpc` });
  const error = await failureOf(run(server));
  expect(error.code).toBe('platform_unauthorized');
  expect(server.requests[0]?.headers.authorization).toBe(`Bearer ${PLATFORM_KEY}`);
  expect(other.requests.map(({ headers }) => headers.authorization)).toEqual([undefined]);
});

test('an invalid card is a failure of the platform', async () => {
  await using server = await agent();
  for (const path of ['/rpc', '/none'])
    expect((await failureOf(run(server, { cardUrl: `${server.origin}${path}` }))).code).toBe(
      'platform_failed',
    );
});
