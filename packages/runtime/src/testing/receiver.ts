/** A receiver of callbacks: a real HTTP server on loopback that verifies the requests. */
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { waitFor } from '@boxcar/testkit';
import { Webhook } from 'standardwebhooks';

export const WEBHOOK_SECRET = `whsec_${Buffer.from('a secret of thirty-two characters').toString('base64')}`;

/** The reaction to a request: a status, or a custom function. */
export type ReceiverBehaviour = number | ((response: ServerResponse) => void);

export interface Received {
  readonly id: string;
  readonly body: Readonly<Record<string, unknown>>;
  /** The signature was made with the secret. */
  readonly isGenuine: boolean;
  readonly path: string;
}

export interface Receiver extends AsyncDisposable {
  readonly url: string;
  readonly port: number;
  readonly received: readonly Received[];
  /** The reactions to the next requests. After them, every request gets 204. */
  readonly behaviours: ReceiverBehaviour[];
  /** Waits until this many requests have arrived. */
  reached(count: number): Promise<readonly Received[]>;
}

async function readBody(request: IncomingMessage): Promise<string> {
  const parts: Buffer[] = [];
  for await (const part of request) parts.push(part as Buffer);
  return Buffer.concat(parts).toString('utf8');
}

function isGenuine(text: string, { headers }: IncomingMessage, webhook: Webhook): boolean {
  try {
    webhook.verify(text, headers as Record<string, string>);
    return true;
  } catch {
    return false;
  }
}

export async function openReceiver(
  behaviours: ReceiverBehaviour[] = [],
  webhook = new Webhook(WEBHOOK_SECRET),
): Promise<Receiver> {
  const received: Received[] = [];
  const answer = async (request: IncomingMessage, response: ServerResponse): Promise<void> => {
    const text = await readBody(request);
    received.push({
      id: String(request.headers['webhook-id']),
      body: JSON.parse(text) as Received['body'],
      isGenuine: isGenuine(text, request, webhook),
      path: request.url ?? '',
    });
    const behaviour = behaviours.shift() ?? 204;
    if (typeof behaviour === 'function') behaviour(response);
    else response.writeHead(behaviour).end();
  };
  const server = createServer((request, response) => {
    answer(request, response).catch(() => response.destroy());
  });
  await new Promise<void>((settle) => server.listen(0, '127.0.0.1', settle));
  const { port } = server.address() as AddressInfo;
  return {
    url: `http://127.0.0.1:${port}/hook`,
    port,
    received,
    behaviours,
    reached: (count) =>
      waitFor(() => Promise.resolve(received.length >= count ? received : undefined), {
        message: `the receiver got ${count} requests`,
        deadlineMs: 30_000,
      }),
    [Symbol.asyncDispose]: () => {
      server.closeAllConnections();
      return new Promise((settle) => server.close(() => settle()));
    },
  };
}
