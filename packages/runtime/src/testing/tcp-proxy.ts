import { type AddressInfo, connect, createServer, type Server, type Socket } from 'node:net';

/** A server that can be away: what connects through its URL can be cut off, held up, and let through again. */
export interface TcpProxy extends AsyncDisposable {
  /** The target's URL with the proxy in its place. */
  readonly url: string;
  /** Connections through it now. */
  readonly connectionCount: number;
  /** Connections it has broken or refused so far: shows that a fault struck. */
  readonly brokenCount: number;
  /** Breaks every connection and refuses new ones. */
  cut(): Promise<void>;
  /** Keeps connections open and accepts new ones, but passes nothing on: a server that does not answer. */
  stall(): void;
  /** Passes questions on and holds the answers back: what is asked takes effect, but nobody learns of it. */
  stallAnswers(): void;
  /** Breaks every connection once; new ones get through. */
  breakOnce(): void;
  /** Lets everything through again. */
  restore(): Promise<void>;
  close(): Promise<void>;
}

interface Pair {
  readonly inner: Socket;
  readonly outer: Socket;
}

/** Opens a proxy in front of a Postgres or Redis URL. */
export async function tcpProxy(targetUrl: string): Promise<TcpProxy> {
  const target = new URL(targetUrl);
  const defaultPort = target.protocol.startsWith('redis') ? 6379 : 5432;
  const pairs = new Set<Pair>();
  let stalled: 'no' | 'answers' | 'all' = 'no';
  let brokenCount = 0;
  let server: Server | undefined;

  const breakAll = (): void => {
    for (const { inner, outer } of pairs) {
      brokenCount += 1;
      inner.destroy();
      outer.destroy();
    }
    pairs.clear();
  };
  const hold = ({ inner, outer }: Pair): void => {
    if (stalled === 'all') inner.pause();
    if (stalled !== 'no') outer.pause();
  };
  const stall = (what: 'answers' | 'all'): void => {
    stalled = what;
    for (const pair of pairs) hold(pair);
  };
  const accept = (inner: Socket): void => {
    const outer = connect({ host: target.hostname, port: Number(target.port) || defaultPort });
    const pair = { inner, outer };
    pairs.add(pair);
    const end = (): void => {
      pairs.delete(pair);
      inner.destroy();
      outer.destroy();
    };
    for (const [from, to] of [
      [inner, outer],
      [outer, inner],
    ] as const) {
      // A broken connection is what this is for.
      from.on('error', end).on('close', end);
      from.setNoDelay(true).on('data', (chunk) => to.write(chunk));
    }
    hold(pair);
  };
  /** @returns The port. */
  const listen = (port: number): Promise<number> =>
    new Promise((settle, fail) => {
      const opened = createServer(accept);
      opened.once('error', fail);
      opened.listen({ host: '127.0.0.1', port }, () => {
        server = opened;
        settle((opened.address() as AddressInfo).port);
      });
    });
  const shut = async (): Promise<void> => {
    const closing = server;
    server = undefined;
    const closed = new Promise<void>((settle) => {
      if (closing === undefined) settle();
      else closing.close(() => settle());
    });
    breakAll();
    await closed;
  };

  const port = await listen(0);
  const url = new URL(targetUrl);
  url.hostname = '127.0.0.1';
  url.port = String(port);

  const restore = async (): Promise<void> => {
    stalled = 'no';
    for (const { inner, outer } of pairs) {
      inner.resume();
      outer.resume();
    }
    if (server === undefined) await listen(port);
  };
  return {
    url: url.href,
    get connectionCount() {
      return pairs.size;
    },
    get brokenCount() {
      return brokenCount;
    },
    cut: shut,
    stall: () => stall('all'),
    stallAnswers: () => stall('answers'),
    breakOnce: breakAll,
    restore,
    close: shut,
    [Symbol.asyncDispose]: shut,
  };
}
