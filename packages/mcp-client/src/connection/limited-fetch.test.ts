import { createServer, type RequestListener } from 'node:http';
import type { AddressInfo } from 'node:net';
import { AddressRules } from '@boxcar/adapters/wire';
import { expect, test } from 'vitest';
import { limitedFetch } from './limited-fetch.js';

const MAX = 10_000;

async function read(type: string, body: string): Promise<number> {
  const listener: RequestListener = (_request, response) =>
    response.setHeader('content-type', type).end(body);
  const server = createServer(listener);
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  try {
    const fetch = limitedFetch(new AddressRules(['127.0.0.1']), MAX);
    const answer = await fetch(`http://127.0.0.1:${(server.address() as AddressInfo).port}/`);
    return (await answer.text()).length;
  } finally {
    server.closeAllConnections();
    await new Promise((resolve) => server.close(resolve));
  }
}

test('a document is read up to the limit', async () => {
  expect(await read('application/json', 'x'.repeat(MAX))).toBe(MAX);
  await expect(read('application/json', 'x'.repeat(MAX + 1))).rejects.toThrow(/larger than 10000 bytes/);
});

test.each(['\n', '\r\n'])(
  'a stream has any number of events, each up to the limit; lines end with %j',
  async (line) => {
    const event = `data: ${'x'.repeat(1_000)}${line}${line}`;
    const events = event.repeat(100);
    expect(await read('text/event-stream', events)).toBe(events.length);
    const long = `data: ${'x'.repeat(1_000)}${line}`.repeat(11) + line;
    await expect(read('text/event-stream', events + long)).rejects.toThrow(/larger than 10000 bytes/);
  },
);
