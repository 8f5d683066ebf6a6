/** Streams of events: where a reader resumes, the cost of a slow reader, and the end of a stream. */
import { once } from 'node:events';
import { connect, type Socket } from 'node:net';
import { revokeKey } from '@boxcar/runtime';
import { waitFor } from '@boxcar/testkit';
import { afterEach, beforeEach, expect, test } from 'vitest';
import type { EventSource, ServerEvent } from './event-stream.js';
import { bearer, openStage, type Stage } from './testing/stage.js';

let stage: Stage;
let key: string;
let source: EventSource;
/** Records the calls of the source, and how it ended. */
const seen = { given: 0, ended: 0, from: [] as (string | undefined)[] };

let signals: AbortSignal[] = [];

async function* counted(of: Parameters<EventSource>[0]): AsyncGenerator<ServerEvent> {
  seen.from.push(of.lastEventId);
  try {
    for await (const event of source(of)) {
      seen.given += 1;
      yield event;
    }
  } finally {
    seen.ended += 1;
  }
}

beforeEach(async () => {
  Object.assign(seen, { given: 0, ended: 0, from: [] });
  signals = [];
  stage = await openStage({
    heartbeatMs: 50,
    stallMs: 300,
    routes: [
      {
        method: 'GET',
        path: '/stream',
        scope: 'handoffs:read',
        handle: (call) =>
          call.events((of) => {
            signals.push(of.signal);
            return counted(of);
          }),
      },
    ],
  });
  key = await stage.key(['handoffs:read']);
});
afterEach(() => stage[Symbol.asyncDispose]());

const endless = (text: string) =>
  async function* (): AsyncGenerator<ServerEvent> {
    for (let id = 1; ; id += 1) yield { id: String(id), event: 'part', data: { text } };
  };
const silent: EventSource = async function* ({ signal }) {
  yield { data: 'first' };
  await once(signal, 'abort');
};
const get = (headers: Readonly<Record<string, string>> = {}, signal?: AbortSignal) =>
  fetch(`${stage.url}/stream`, {
    headers: { ...bearer(key), ...headers },
    ...(signal === undefined ? {} : { signal }),
  });
const ended = (count = 1) =>
  waitFor(async () => (seen.ended === count ? true : undefined), { message: 'the end of the source' });

async function* textsOf(response: Response): AsyncGenerator<string> {
  if (response.body === null) throw new Error('no body');
  for await (const chunk of response.body) yield Buffer.from(chunk).toString();
}

test('events have the form of the standard, and a reader continues after the last event that it saw', async () => {
  source = async function* ({ lastEventId }) {
    for (let id = Number(lastEventId ?? 0) + 1; id <= 3; id += 1)
      yield { id: String(id), event: 'part', data: `a\nb${id}` };
  };
  const first = await get();
  expect(first.headers.get('content-type')).toBe('text/event-stream; charset=utf-8');
  expect(await first.text()).toBe(
    [1, 2, 3].map((id) => `id: ${id}\nevent: part\ndata: "a\\nb${id}"\n\n`).join(''),
  );
  expect(await (await get({ 'last-event-id': '2' })).text()).toBe('id: 3\nevent: part\ndata: "a\\nb3"\n\n');
  expect(seen.from).toEqual([undefined, '2']);
  expect((await get({ 'last-event-id': 'x'.repeat(201) })).status).toBe(400);
});

test('a silent stream sends signs of life, and ends when the client leaves', async () => {
  source = silent;
  const client = new AbortController();
  const texts = textsOf(await get({}, client.signal));
  let text = '';
  while (!text.includes(': \n\n: \n\n')) text += (await texts.next()).value ?? '';
  expect(text).toMatch(/^data: "first"\n\n: \n\n/);
  client.abort();
  await ended();
});

/** A reader that reads the headers, and then nothing more. */
async function deafReader(): Promise<Socket> {
  const socket = connect(stage.port, '127.0.0.1');
  socket.on('error', () => undefined);
  socket.write(`GET /stream HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer ${key}\r\n\r\n`);
  await once(socket, 'readable');
  return socket;
}

test('a reader that never reads is dropped, and the source is asked for no more than the buffers hold', async () => {
  source = endless('x'.repeat(65_536));
  const socket = await deafReader();
  await ended();
  // The buffers of the operating system for a connection hold only some megabytes.
  expect(seen.given).toBeLessThan(1_000);
  expect(stage.log.map(({ event }) => event)).toContain('http.reader_dropped');
  socket.destroy();
});

test('a client that leaves while its key is checked leaves no source open', async () => {
  source = silent;
  const { pool } = stage.database;
  const db = await pool.connect();
  await db.query('begin');
  await db.query('lock table boxcar.api_keys');
  const socket = connect(stage.port, '127.0.0.1');
  socket.write(`GET /stream HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer ${key}\r\n\r\n`);
  const isLookedAt =
    "select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock' and query like '%keys.find_usable%'";
  await waitFor(async () => (await pool.query(isLookedAt)).rowCount === 1, {
    message: 'the key to be looked at',
  });
  const gone = once(socket, 'close');
  socket.destroy();
  await gone;
  // By the time the server answers the next client, it has noticed the closed connection.
  await fetch(`${stage.url}/healthz`);
  await db.query('rollback');
  db.release();
  await waitFor(() => Promise.resolve(signals.length === 1), { message: 'the stream' });
  expect(signals.map(({ aborted }) => aborted)).toEqual([true]);
  // After `close`, every source that has begun has also ended.
  await stage.frame.close({ graceMs: 60_000 });
  expect([seen.from.length, seen.ended]).toEqual([0, 0]);
});

test('a HEAD request ends its stream at once', async () => {
  const response = await fetch(`${stage.url}/stream`, { method: 'HEAD', headers: bearer(key) });
  expect([response.status, response.headers.get('content-type')]).toEqual([
    200,
    'text/event-stream; charset=utf-8',
  ]);
  expect(signals.map(({ aborted }) => aborted)).toEqual([true]);
  expect(seen.from).toEqual([]);
});

test('a slow reader gets everything', async () => {
  const count = 200;
  source = async function* () {
    for (let id = 1; id <= count; id += 1) yield { id: String(id), data: 'x'.repeat(65_536) };
  };
  let bytes = 0;
  for await (const text of textsOf(await get())) {
    bytes += text.length;
    await new Promise((resolve) => setImmediate(resolve));
  }
  expect(bytes).toBeGreaterThan(count * 65_536);
});

test('a stream ends when its key is revoked', async () => {
  source = silent;
  const response = await get();
  const { rows } = await stage.database.pool.query<{ id: string }>('select id from boxcar.api_keys');
  await revokeKey(stage.database.pool, rows[0]?.id ?? '');
  expect(await response.text()).toMatch(/^data: "first"/);
  await ended();
});

test('a source that fails ends the stream, and the log gives the reason', async () => {
  source = async function* () {
    yield { data: 1 };
    throw new Error('out of events');
  };
  expect(await (await get()).text()).toBe('data: 1\n\n');
  expect(stage.log).toContainEqual(expect.objectContaining({ event: 'http.stream_failed', level: 'error' }));
});

test('the end of the frame ends the streams at once, and their readers see a complete answer', async () => {
  source = silent;
  const responses = await Promise.all([get(), get()]);
  const texts = responses.map((response) => response.text());
  await stage.frame.close({ graceMs: 60_000 });
  for (const text of await Promise.all(texts)) expect(text).toMatch(/^data: "first"/);
  await ended(2);
});
