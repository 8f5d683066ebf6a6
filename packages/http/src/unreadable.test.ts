/** Input that is not a valid HTTP request is answered with problem details, like every other error. */
import { once } from 'node:events';
import { connect } from 'node:net';
import { waitFor } from '@boxcar/testkit';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { openStage, type Stage } from './testing/stage.js';

/** A placeholder, replaced by the key in each request. */
const KEY = '<key>';

let stage: Stage;
let key: string;
beforeAll(async () => {
  stage = await openStage({
    headersMs: 200,
    requestMs: 300,
    routes: [
      {
        method: 'POST',
        path: '/echo',
        scope: 'handoffs:write',
        handle: async ({ json }) => Response.json(await json()),
      },
      {
        method: 'GET',
        path: '/stream',
        scope: 'handoffs:read',
        handle: ({ events }) =>
          events(async function* ({ signal }) {
            yield { data: 'first' };
            await once(signal, 'abort');
          }),
      },
    ],
  });
  key = await stage.key(['handoffs:write', 'handoffs:read']);
});
afterAll(() => stage[Symbol.asyncDispose]());

/** All bytes that arrive until the server closes the connection. */
async function answerTo(
  text: string,
  more?: { readonly after: string; readonly text: string },
): Promise<string> {
  const socket = connect(stage.port, '127.0.0.1');
  socket.on('error', () => undefined);
  let answer = '';
  socket.setEncoding('utf8').on('data', (chunk: string) => {
    answer += chunk;
  });
  const closed = once(socket, 'close');
  socket.write(text.replaceAll(KEY, key));
  if (more !== undefined) {
    await waitFor(() => Promise.resolve(answer.includes(more.after)), { message: more.after });
    socket.write(more.text);
  }
  await closed;
  return answer;
}

interface Answer {
  readonly status: number;
  readonly headers: Readonly<Record<string, string>>;
  readonly body: Readonly<Record<string, unknown>>;
}

function read(answer: string): Answer {
  const [head = '', body = ''] = answer.split('\r\n\r\n');
  const [first = '', ...lines] = head.split('\r\n');
  return {
    status: Number(first.split(' ')[1]),
    headers: Object.fromEntries(
      lines.map((line) => {
        const at = line.indexOf(':');
        return [line.slice(0, at).toLowerCase(), line.slice(at + 1).trim()];
      }),
    ),
    body: JSON.parse(body) as Answer['body'],
  };
}

const HEAD = `host: localhost\r\nauthorization: Bearer ${KEY}\r\n`;
const POST = `POST /echo HTTP/1.1\r\n${HEAD}`;

test.each<[string, string, number, string]>([
  ['is not HTTP', `hello ${KEY}\r\n\r\n`, 400, 'bad_request'],
  ['has an invalid header', `GET /healthz HTTP/1.1\r\n${HEAD}a b\r\n\r\n`, 400, 'bad_request'],
  ['has two lengths', `${POST}content-length: 1\r\ncontent-length: 2\r\n\r\n1`, 400, 'bad_request'],
  ['has no host', `GET /healthz HTTP/1.1\r\nconnection: close\r\n\r\n`, 400, 'bad_request'],
  ['has headers that never end', `GET /healthz HTTP/1.1\r\n${HEAD}`, 408, 'bad_request'],
  ['has a body that never ends', `${POST}content-length: 100\r\n\r\n{`, 408, 'bad_request'],
  [
    'has long extensions between its chunks',
    `${POST}transfer-encoding: chunked\r\n\r\n2;${'x'.repeat(20_000)}\r\n{}\r\n0\r\n\r\n`,
    413,
    'payload_too_large',
  ],
  [
    'has an expectation that is not supported',
    `GET /healthz HTTP/1.1\r\n${HEAD}expect: wonders\r\n\r\n`,
    417,
    'bad_request',
  ],
  [
    'has headers that are too long',
    `GET /healthz HTTP/1.1\r\n${HEAD}x-long: ${'x'.repeat(20_000)}\r\n\r\n`,
    431,
    'bad_request',
  ],
])(
  'a request that %s is refused with problem details, and its connection ends',
  async (_name, text, status, code) => {
    stage.log.length = 0;
    const { headers, body, ...answer } = read(await answerTo(text));
    expect(answer.status).toBe(status);
    expect(headers).toMatchObject({
      'content-type': 'application/problem+json',
      'cache-control': 'no-store',
      connection: 'close',
      'x-request-id': body.request_id,
    });
    expect(body).toMatchObject({
      type: `urn:boxcar:error:${code}`,
      status,
      code,
      detail: expect.stringMatching(/\.$/),
      next: expect.stringMatching(/\.$/),
      request_id: expect.any(String),
    });
    expect(JSON.stringify(body)).not.toContain(key);
    const lines = stage.log.filter(({ event }) => event === 'http.unreadable');
    expect(lines.map(({ fields }) => fields.request_id)).toEqual([body.request_id]);
    expect(JSON.stringify(lines)).not.toContain(key);
    expect(await (await fetch(`${stage.url}/healthz`)).json()).toEqual({ status: 'ok' });
  },
);

test('an answer that has begun is cut, and no other answer is put into it', async () => {
  const answer = await answerTo(`GET /stream HTTP/1.1\r\n${HEAD}\r\n`, {
    after: 'data: "first"',
    text: 'hello\r\n\r\n',
  });
  expect(answer.match(/HTTP\/1\.1/g)).toEqual(['HTTP/1.1']);
});
