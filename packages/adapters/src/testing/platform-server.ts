/**
 * A platform on loopback: a real HTTP server that speaks one dialect and refuses the requests that the platform would refuse. The test
 * decides how it treats each work request. Other requests (cards, sessions, lists) are always served.
 */
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { errorText } from '@boxcar/kernel';

export interface ServedRequest {
  readonly method: string;
  readonly path: string;
  readonly headers: Readonly<Record<string, string | readonly string[] | undefined>>;
  /** The body as received. */
  readonly text: string;
}

export interface Reply {
  readonly status: number;
  readonly headers: Readonly<Record<string, string>>;
  readonly frames: readonly string[];
}

/** The server's treatment of a work request. */
export type Behaviour =
  | { readonly kind: 'answer'; readonly text: string }
  | {
      readonly kind: 'status';
      readonly status: number;
      readonly message?: string;
      readonly headers?: Readonly<Record<string, string>>;
      /** Replaces the error in the platform's form. */
      readonly body?: string;
    }
  /** The connection breaks without an answer. */
  | { readonly kind: 'drop' }
  /** The connection breaks after the headers and the first bytes of the answer. */
  | { readonly kind: 'cut'; readonly text: string }
  /** Bytes that are not a valid answer of the platform, with its content type. */
  | { readonly kind: 'garbage' }
  /** The first bytes of an answer, then nothing: the connection stays open. */
  | { readonly kind: 'endless'; readonly text: string }
  /** No answer at all. */
  | { readonly kind: 'silent' };

export interface Dialect {
  /** The header that carries the key, and the prefix of its value. */
  readonly keyHeader: readonly [name: string, prefix: string];
  /** Serves requests other than work; undefined for a work request. */
  serveOther?(request: ServedRequest, baseUrl: string): Promise<Reply | undefined> | Reply | undefined;
  /** Reads a work request as strictly as the platform does. @throws Error that names the fault. */
  read(request: ServedRequest): void;
  answer(text: string, request: ServedRequest): Promise<Reply> | Reply;
  error(status: number, message: string): unknown;
}

export interface PlatformServer extends AsyncDisposable {
  /** `http://127.0.0.1:<port>` */
  readonly origin: string;
  /** All requests, in order. */
  readonly requests: readonly ServedRequest[];
  /** The work requests. */
  readonly works: readonly ServedRequest[];
  /** The requests that the platform would have refused. */
  readonly refusals: readonly string[];
  /** Resolves when the caller has closed the connection of a work request before its answer ended. */
  abandoned(): Promise<void>;
  /** Resolves when the first bytes of an answer were sent, or a request that gets no answer has arrived. */
  reached(): Promise<void>;
}

export const PLATFORM_KEY = 'key-for-tests-0123456789abcdef';

export const json = (status: number, body: unknown): Reply => ({
  status,
  headers: { 'content-type': 'application/json' },
  frames: [JSON.stringify(body)],
});

async function readBody(request: IncomingMessage): Promise<string> {
  const chunks: Buffer[] = [];
  for await (const chunk of request) chunks.push(chunk as Buffer);
  return Buffer.concat(chunks).toString('utf8');
}

function send(response: ServerResponse, { status, headers, frames }: Reply): void {
  response.writeHead(status, { ...headers });
  for (const frame of frames) response.write(frame);
  response.end();
}

/** The first part of an answer: whole frames of a stream, else half of the body. */
function beginning({ frames }: Reply): string {
  const [first = ''] = frames;
  return frames.length > 1
    ? frames.slice(0, Math.ceil(frames.length / 2)).join('')
    : first.slice(0, first.length / 2);
}

interface Watch {
  reached(): void;
}

async function behaveLike(
  behaviour: Behaviour,
  {
    dialect,
    served,
    response,
    watch,
  }: {
    readonly dialect: Dialect;
    readonly served: ServedRequest;
    readonly response: ServerResponse;
    readonly watch: Watch;
  },
): Promise<void> {
  switch (behaviour.kind) {
    case 'answer':
      return send(response, await dialect.answer(behaviour.text, served));
    case 'status': {
      const { status, message = 'no', headers = {}, body } = behaviour;
      const reply = json(status, dialect.error(status, message));
      return send(response, {
        ...reply,
        headers: { ...reply.headers, ...headers },
        frames: body === undefined ? reply.frames : [body],
      });
    }
    case 'drop':
      response.destroy();
      return;
    case 'silent':
      return watch.reached();
    case 'garbage': {
      const { headers } = await dialect.answer('x', served);
      return send(response, { status: 200, headers, frames: ['data: {"half": \n\n', '{]not an answer'] });
    }
    case 'cut':
    case 'endless': {
      const reply = await dialect.answer(behaviour.text, served);
      response.writeHead(reply.status, { ...reply.headers });
      response.write(beginning(reply), () => {
        if (behaviour.kind === 'cut') response.destroy();
        else watch.reached();
      });
      return;
    }
    default:
      behaviour satisfies never;
  }
}

/** A promise together with the function that resolves it. */
function signalled(): { readonly promise: Promise<void>; readonly resolve: () => void } {
  let resolve: () => void = () => undefined;
  const promise = new Promise<void>((done) => {
    resolve = done;
  });
  return { promise, resolve };
}

/** @param behaviours - Used one after the other; the last one repeats. */
export async function openPlatform(
  dialect: Dialect,
  ...behaviours: readonly Behaviour[]
): Promise<PlatformServer> {
  const requests: ServedRequest[] = [];
  const works: ServedRequest[] = [];
  const refusals: string[] = [];
  const [abandoned, reached] = [signalled(), signalled()];
  let origin = '';

  const refuse = (response: ServerResponse, status: number, message: string): void => {
    refusals.push(message);
    send(response, json(status, dialect.error(status, message)));
  };

  async function serve(request: IncomingMessage, response: ServerResponse): Promise<void> {
    const { method = '', url: path = '', headers } = request;
    const served: ServedRequest = { method, path, headers, text: await readBody(request) };
    requests.push(served);
    const [header, prefix] = dialect.keyHeader;
    if (headers[header] !== `${prefix}${PLATFORM_KEY}`) return refuse(response, 401, 'wrong key');
    const other = await dialect.serveOther?.(served, origin);
    if (other !== undefined) return send(response, other);
    response.on('close', () => {
      if (!response.writableFinished) abandoned.resolve();
    });
    try {
      dialect.read(served);
    } catch (error) {
      return refuse(response, 400, errorText(error));
    }
    works.push(served);
    const behaviour = behaviours[Math.min(works.length, behaviours.length) - 1] ?? { kind: 'drop' };
    await behaveLike(behaviour, { dialect, served, response, watch: { reached: reached.resolve } });
  }

  const server = createServer((request, response) => {
    serve(request, response).catch((error: unknown) => {
      refusals.push(`the server failed: ${String(error)}`);
      response.destroy();
    });
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  origin = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
  return {
    origin,
    requests,
    works,
    refusals,
    abandoned: () => abandoned.promise,
    reached: () => reached.promise,
    [Symbol.asyncDispose]: () =>
      new Promise<void>((resolve, reject) => {
        server.close((error) => (error === undefined ? resolve() : reject(error)));
        server.closeAllConnections();
      }),
  };
}
