/** The server below the frame: it limits slow clients and stops within a time limit. */
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import type { Duplex } from 'node:stream';
import { KernelError } from '@boxcar/kernel/base';
import { withinTime } from '@boxcar/runtime';
import type { Binding } from './loopback.js';
import type { Unreadable } from './unreadable.js';

export interface ServerLimits {
  /** How long the headers of a request may take to arrive. */
  readonly headersMs: number;
  /** How long a whole request may take to arrive. */
  readonly requestMs: number;
}

const KEEP_ALIVE_MS = 5_000;
/** The interval of the search for slow clients. */
const LOOK_MS = 1_000;

type Listener = (incoming: IncomingMessage, outgoing: ServerResponse) => unknown;

/** An HTTP server that tracks its unfinished answers. */
export class HttpServer {
  readonly #server: Server;
  readonly #open = new Set<ServerResponse>();
  #isClosing = false;
  #whenIdle: (() => void) | undefined;

  constructor(
    listener: Listener,
    { unreadable, ...limits }: ServerLimits & { readonly unreadable: Unreadable },
  ) {
    this.#server = createServer(
      {
        headersTimeout: limits.headersMs,
        requestTimeout: limits.requestMs,
        keepAliveTimeout: KEEP_ALIVE_MS,
        connectionsCheckingInterval: Math.min(LOOK_MS, limits.headersMs),
        // The frame reports a missing host header itself.
        requireHostHeader: false,
      },
      (incoming, outgoing) => {
        this.#watch(outgoing);
        listener(incoming, outgoing);
      },
    );
    this.#server.on('clientError', (error, socket) =>
      unreadable.refuseBytes(error, socket, this.#hasBegun(socket)),
    );
    this.#server.on('checkExpectation', (incoming, outgoing) => {
      this.#watch(outgoing);
      unreadable.refuseExpectation(incoming, outgoing);
    });
  }

  #hasBegun(socket: Duplex): boolean {
    return [...this.#open].some((outgoing) => outgoing.socket === socket && outgoing.headersSent);
  }

  #watch(outgoing: ServerResponse): void {
    this.#open.add(outgoing);
    if (this.#isClosing) outgoing.shouldKeepAlive = false;
    outgoing.once('close', () => {
      this.#open.delete(outgoing);
      if (this.#open.size === 0) this.#whenIdle?.();
    });
  }

  /** @throws KernelError `port_in_use`, `bad_config`. */
  async listen({ address }: Binding, port: number): Promise<AddressInfo> {
    await new Promise<void>((resolve, reject) => {
      const fail = (error: NodeJS.ErrnoException): void => reject(toListenError(error, { address, port }));
      this.#server.once('error', fail);
      this.#server.listen({ host: address, port }, () => {
        this.#server.off('error', fail);
        resolve();
      });
    });
    const found = this.#server.address();
    if (found === null || typeof found === 'string') throw new Error('the server has no address');
    return found;
  }

  /** Refuses new requests, waits for unfinished answers, and cuts off those that take longer than `graceMs`. */
  async close(graceMs: number): Promise<void> {
    this.#isClosing = true;
    for (const outgoing of this.#open) outgoing.shouldKeepAlive = false;
    if (!this.#server.listening) return;
    const closed = new Promise<void>((resolve) => this.#server.close(() => resolve()));
    const idle = new Promise<void>((resolve) => {
      this.#whenIdle = resolve;
      if (this.#open.size === 0) resolve();
    });
    await withinTime(idle, graceMs, 'the end of open requests').catch(() => undefined);
    this.#server.closeAllConnections();
    await closed;
  }
}

function toListenError(
  error: NodeJS.ErrnoException,
  { address, port }: { readonly address: string; readonly port: number },
): KernelError {
  const details = { address, port };
  if (error.code === 'EADDRINUSE')
    return new KernelError('port_in_use', {
      message: `Port ${port} of ${address} is taken.`,
      details,
      cause: error,
    });
  return new KernelError('bad_config', {
    message: `The server cannot listen on ${address}, port ${port}: ${error.message}.`,
    next: 'Give an address of this machine, and a port that this account may use.',
    details,
    cause: error,
  });
}
