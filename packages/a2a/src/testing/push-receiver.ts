/** A receiver of push notifications on loopback. It checks each notification as the protocol demands, and records the faults. */
import { createHmac } from 'node:crypto';
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { StreamResponse, type Task } from '@a2a-js/sdk';
import { waitFor } from '@boxcar/testkit';
import type { Version } from './stage.js';

const KEY = Buffer.from('a secret of thirty-two characters');
export const PUSH_SECRET = `whsec_${KEY.toString('base64')}`;
export const TOKEN = 'token-of-the-receiver';

export interface Pushed {
  /** The id of the event. */
  readonly id: string;
  readonly headers: IncomingMessage['headers'];
  readonly body: Readonly<Record<string, unknown>>;
}

export interface PushReceiver extends AsyncDisposable {
  readonly url: string;
  readonly pushed: readonly Pushed[];
  readonly refusals: readonly string[];
  /** The answers to the next requests; after them, every request gets 204. */
  readonly statuses: (number | ((response: ServerResponse) => void))[];
  reached(count: number): Promise<readonly Pushed[]>;
}

/** The faults of a notification. */
function findingsOf({ headers }: IncomingMessage, text: string, version: Version): readonly string[] {
  const { 'webhook-id': id, 'webhook-timestamp': at, 'webhook-signature': signature } = headers;
  const sign = createHmac('sha256', KEY).update(`${id}.${at}.${text}`).digest('base64');
  const type = version === '1.0' ? 'application/a2a+json' : 'application/json';
  return [
    ...(signature === `v1,${sign}` ? [] : ['signature']),
    ...(headers['content-type']?.split(';')[0] === type ? [] : ['content-type']),
    ...(headers['x-a2a-notification-token'] === TOKEN ? [] : ['token']),
    ...(Math.abs(Date.now() / 1000 - Number(at)) < 300 ? [] : ['timestamp']),
  ];
}

/** The task of a protocol 1.0 notification, as the SDK reads it. */
export function taskIn({ body }: Pushed): Task | undefined {
  const { payload } = StreamResponse.fromJSON(body);
  return payload?.$case === 'task' ? payload.value : undefined;
}

export async function openPushReceiver(version: Version): Promise<PushReceiver> {
  const pushed: Pushed[] = [];
  const refusals: string[] = [];
  const statuses: PushReceiver['statuses'] = [];
  const take = async (request: IncomingMessage, response: ServerResponse): Promise<void> => {
    let text = '';
    for await (const part of request.setEncoding('utf8')) text += part as string;
    refusals.push(...findingsOf(request, text, version));
    const { headers } = request;
    pushed.push({ id: String(headers['webhook-id']), headers, body: JSON.parse(text) as Pushed['body'] });
    const next = statuses.shift() ?? 204;
    if (typeof next === 'function') next(response);
    else response.writeHead(next).end();
  };
  const server = createServer((request, response) => {
    take(request, response).catch(() => response.destroy());
  });
  await new Promise<void>((settle) => server.listen(0, '127.0.0.1', settle));
  return {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}/push`,
    pushed,
    refusals,
    statuses,
    reached: (count) =>
      waitFor(async () => (pushed.length >= count ? pushed : undefined), {
        message: `the receiver got ${count} notifications`,
        deadlineMs: 30_000,
      }),
    [Symbol.asyncDispose]: () => {
      server.closeAllConnections();
      return new Promise((settle) => server.close(() => settle()));
    },
  };
}
