/**
 * A provider on loopback: a real HTTP server that speaks one wire format and refuses the requests that the provider would refuse. The
 * test decides how it treats each request.
 */

import { createServer, type IncomingMessage, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { setTimeout as sleep } from 'node:timers/promises';
import { errorText } from '@boxcar/kernel';
import type { ReadPrompt, ServerAnswer, Wire, WireError } from './wire.js';

/** The server's behavior after some frames of a stream. */
export type StreamEnd =
  | 'end'
  | 'destroy'
  | 'hang'
  | { readonly error: WireError }
  | { readonly frame: string };

export type Behaviour =
  | {
      readonly answer: ServerAnswer;
      /** Frames to send before `after`; default: all. */
      readonly frames?: number;
      readonly after?: StreamEnd;
      /** Pause before each frame. */
      readonly frameMs?: number;
    }
  | {
      readonly status: number;
      readonly error?: WireError;
      readonly headers?: Readonly<Record<string, string>>;
      readonly body?: string;
    }
  | { readonly drop: true }
  | { readonly hang: true };

export interface ServedRequest {
  readonly method: string;
  readonly path: string;
  readonly headers: Readonly<Record<string, string | readonly string[] | undefined>>;
  readonly body: unknown;
  /** The body as received. */
  readonly text: string;
  /** Undefined when the wire format refuses the body. */
  readonly prompt: ReadPrompt | undefined;
}

export type Behave = (request: ServedRequest, index: number) => Behaviour | Promise<Behaviour>;

export interface ProviderServer extends AsyncDisposable {
  /** For the variable of the provider's base URL. */
  readonly baseUrl: string;
  readonly requests: readonly ServedRequest[];
  /** The requests that the provider would have refused. */
  readonly refusals: readonly string[];
  /** The number of answers that the caller gave up before their end. */
  readonly abandoned: number;
  /**
   * Forgets the answers it has given, as a real provider does. Data that is missing from them is then refused only where it is required.
   */
  forget(): void;
}

export const SERVER_KEY = 'sk-test-0123456789abcdef';

/** One behavior after the other; the last one repeats. */
export const inOrder =
  (...behaviours: readonly Behaviour[]): Behave =>
  (_request, index) =>
    behaviours[Math.min(index, behaviours.length - 1)] ?? { hang: true };

async function readBody(request: IncomingMessage): Promise<string> {
  const chunks: Buffer[] = [];
  for await (const chunk of request) chunks.push(chunk as Buffer);
  return Buffer.concat(chunks).toString('utf8');
}

function sendJson(response: ServerResponse, status: number, body: unknown): void {
  response.writeHead(status, { 'content-type': 'application/json' }).end(JSON.stringify(body));
}

async function sendStream(
  response: ServerResponse,
  wire: Wire,
  behaviour: Extract<Behaviour, { readonly answer: ServerAnswer }>,
): Promise<void> {
  response.writeHead(200, {
    'content-type': 'text/event-stream; charset=utf-8',
    'cache-control': 'no-cache',
  });
  const { answer, frames, after = 'end', frameMs } = behaviour;
  for (const frame of wire.events(answer).slice(0, frames)) {
    if (frameMs !== undefined) await sleep(frameMs);
    if (response.destroyed) return;
    response.write(frame);
  }
  if (after === 'end') response.end();
  else if (after === 'hang') response.flushHeaders();
  else if (after === 'destroy') {
    // The written bytes must be sent before the connection breaks.
    response.write('', () => response.destroy());
  } else response.end('error' in after ? wire.errorEvent(after.error) : after.frame);
}

const isPathOf = ({ base, path }: Wire, given: string): boolean =>
  typeof path === 'string'
    ? given === base + path
    : given.startsWith(base) && path.test(given.slice(base.length));

export async function openProviderServer(
  wire: Wire,
  behave: Behave,
  options: { readonly key?: string | null; readonly port?: number } = {},
): Promise<ProviderServer> {
  const { key = SERVER_KEY, port = 0 } = options;
  const requests: ServedRequest[] = [];
  const refusals: string[] = [];
  const answers: ServerAnswer[] = [];
  let abandoned = 0;

  function readPrompt(body: unknown, path: string): ReadPrompt | undefined {
    try {
      return wire.read(body, { path, answers });
    } catch (error) {
      refusals.push(errorText(error));
      return undefined;
    }
  }

  async function serve(request: IncomingMessage, response: ServerResponse): Promise<void> {
    const { method = '', url: path = '', headers } = request;
    response.on('close', () => {
      if (!response.writableFinished) abandoned += 1;
    });
    const text = await readBody(request);
    const body: unknown = JSON.parse(text);
    if (method !== 'POST' || !isPathOf(wire, path))
      return sendJson(
        response,
        404,
        wire.error({ message: `no ${method} ${path}`, type: 'not_found_error' }),
      );
    const [header, prefix] = wire.keyHeader;
    if (key !== null && headers[header] !== `${prefix}${key}`)
      return sendJson(response, 401, wire.error({ message: 'wrong key', type: 'authentication_error' }));
    const prompt = readPrompt(body, path);
    const served: ServedRequest = { method, path, headers, body, text, prompt };
    requests.push(served);
    if (prompt === undefined)
      return sendJson(response, 400, wire.error({ message: refusals.at(-1) ?? 'refused' }));
    const behaviour = await behave(served, requests.length - 1);
    if ('hang' in behaviour) return;
    if ('drop' in behaviour) {
      response.destroy();
      return;
    }
    if ('status' in behaviour) {
      const { status, error, body: plain = '' } = behaviour;
      const json = error === undefined ? plain : JSON.stringify(wire.error(error));
      const type = error === undefined ? {} : { 'content-type': 'application/json' };
      response.writeHead(status, { ...type, ...behaviour.headers }).end(json);
      return;
    }
    answers.push(behaviour.answer);
    if (prompt.isStreaming) await sendStream(response, wire, behaviour);
    else sendJson(response, 200, wire.whole(behaviour.answer));
  }

  const server = createServer((request, response) => {
    serve(request, response).catch((error: unknown) => {
      refusals.push(`the server failed: ${String(error)}`);
      response.destroy();
    });
  });
  await new Promise<void>((resolve) => server.listen(port, '127.0.0.1', resolve));
  const address = server.address() as AddressInfo;
  return {
    baseUrl: `http://127.0.0.1:${address.port}${wire.base}`,
    requests,
    refusals,
    get abandoned() {
      return abandoned;
    },
    forget: () => void answers.splice(0),
    [Symbol.asyncDispose]: () =>
      new Promise<void>((resolve, reject) => {
        server.close((error) => (error === undefined ? resolve() : reject(error)));
        server.closeAllConnections();
      }),
  };
}
