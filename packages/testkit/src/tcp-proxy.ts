import { type AddressInfo, connect, createServer, type Server, type Socket } from 'node:net';

/** A server that can become unreachable: connections through its URL can be cut off, held up, and let through again. */
export interface TcpProxy extends AsyncDisposable {
  /** The URL of the target, with the address of the proxy. */
  readonly url: string;
  /** The number of present connections. */
  readonly connectionCount: number;
  /** The number of connections that it has broken or refused so far, as a proof that a fault struck. */
  readonly brokenCount: number;
  /** Breaks every connection and refuses new ones. */
  cut(): Promise<void>;
  /**
   * Keeps connections open and accepts new ones, but passes nothing on: a server that does not answer.
   *
   * @param isMeant - Chooses connections by their first message; for Postgres it contains user, database and application name.
   */
  stall(isMeant?: (hello: string) => boolean): void;
  /** Passes nothing on over the present connections, and leaves them open; new connections work. */
  stallOpen(): void;
  /** Passes requests on and holds the answers back: requests take effect, but no client learns of it. */
  stallAnswers(): void;
  /** Passes answers on and holds the requests back: requests have no effect for now, and no client learns of it. */
  stallQuestions(): void;
  /** Delays all data by this time, in both directions; 0 ends the delay. */
  delay(ms: number): void;
  /** Breaks every connection once; new connections work. */
  breakOnce(): void;
  /** Breaks each present connection in the middle of its next message: half of the message still gets through. */
  breakInMessage(): void;
  /** Lets everything through again. */
  restore(): Promise<void>;
  close(): Promise<void>;
}

interface Pair {
  readonly inner: Socket;
  readonly outer: Socket;
  isToBreak: boolean;
  /** The first message of the client; undefined before the client has sent a message. */
  hello: string | undefined;
}

/** Opens a proxy in front of a Postgres or Redis URL. */
export async function tcpProxy(targetUrl: string): Promise<TcpProxy> {
  const target = new URL(targetUrl);
  const defaultPort = target.protocol.startsWith('redis') ? 6379 : 5432;
  const pairs = new Set<Pair>();
  let stalled: 'no' | 'questions' | 'answers' | 'all' = 'no';
  let isMeant: (hello: string) => boolean = () => true;
  let delayMs = 0;
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
  const hold = ({ inner, outer, hello }: Pair): void => {
    if (!isMeant(hello ?? '')) return;
    if (stalled === 'all' || stalled === 'questions') inner.pause();
    if (stalled === 'all' || stalled === 'answers') outer.pause();
  };
  const stall = (
    what: 'questions' | 'answers' | 'all',
    isOne: (hello: string) => boolean = () => true,
  ): void => {
    stalled = what;
    isMeant = isOne;
    for (const pair of pairs) hold(pair);
  };
  const pass = (pair: Pair, chunk: Buffer, to: Socket): void => {
    if (!pair.isToBreak) {
      to.write(chunk);
      return;
    }
    brokenCount += 1;
    to.end(chunk.subarray(0, Math.floor(chunk.length / 2)));
    (to === pair.inner ? pair.outer : pair.inner).destroy();
    pairs.delete(pair);
  };
  const accept = (inner: Socket): void => {
    const outer = connect({ host: target.hostname, port: Number(target.port) || defaultPort });
    const pair: Pair = { inner, outer, isToBreak: false, hello: undefined };
    pairs.add(pair);
    const end = (): void => {
      // A connection that was given half a message was removed from `pairs`, and ends by itself.
      if (!pairs.delete(pair)) return;
      inner.destroy();
      outer.destroy();
    };
    for (const [from, to] of [
      [inner, outer],
      [outer, inner],
    ] as const) {
      // Broken connections are the purpose of this proxy.
      from.on('error', end).on('close', end);
      let late = 0;
      let lateMs = 0;
      from.setNoDelay(true).on('data', (chunk) => {
        if (pair.hello === undefined && from === inner) {
          pair.hello = chunk.toString('latin1');
          hold(pair);
        }
        // Data that follows delayed data is delayed too, so that the order stays the same.
        lateMs = late === 0 ? delayMs : Math.max(lateMs, delayMs);
        if (lateMs === 0) {
          pass(pair, chunk, to);
          return;
        }
        late += 1;
        setTimeout(() => {
          late -= 1;
          pass(pair, chunk, to);
        }, lateMs);
      });
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
    delayMs = 0;
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
    stall: (isOne) => stall('all', isOne),
    stallOpen: () => {
      for (const { inner, outer } of pairs) {
        inner.pause();
        outer.pause();
      }
    },
    stallAnswers: () => stall('answers'),
    stallQuestions: () => stall('questions'),
    delay: (ms) => {
      delayMs = ms;
    },
    breakOnce: breakAll,
    breakInMessage: () => {
      for (const pair of pairs) pair.isToBreak = true;
    },
    restore,
    close: shut,
    [Symbol.asyncDispose]: shut,
  };
}
