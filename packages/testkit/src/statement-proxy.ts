/**
 * A proxy in front of Postgres that knows statements, and can cut at exactly one of them.
 *
 * P1  Statements are numbered from 1 in the order in which they reach the proxy, on whatever connection.
 * P2  `before`: the server never sees the statement; what was sent earlier takes effect. `after`: the server has executed
 *     it, and what it answers is lost.
 * P3  A cut closes: what the server has in hand for the connection is finished or rolled back, as after a lost process.
 * P4  Silence closes no connection. The server and the client keep their ends open and receive nothing more, as when the process
 *     is stopped or its host is cut off: an open transaction keeps its locks. New connections of a silent process are silent
 *     from the start. `wake` lets everything that was held through, in order; only then does a side learn that the other side
 *     has closed meanwhile.
 */
import { type AddressInfo, connect, createServer } from 'node:net';
import { type Request, readAnswers, readRequests } from './pg-wire.js';

export interface StatementFault {
  /**
   * Which statement, from 1; or which time a text is sent (`behind`: directly after that one on its connection), wherever it stands
   * among others that are sent beside it.
   */
  readonly at: number | { readonly text: string; readonly nth: number; readonly behind?: string };
  readonly when: 'before' | 'after';
  /** Only its connection, or all of them for good: nothing gets through any more, as if the process had been killed. */
  readonly scope: 'connection' | 'process';
  /** Default: `cut`. */
  readonly effect?: 'cut' | 'silence';
}

export interface StatementProxyOptions {
  /** True for statements that wait on the server until an event: their outstanding answers do not count as owed. */
  readonly waits?: (text: string) => boolean;
}

export interface StatementProxy extends AsyncDisposable {
  /** The URL of the database, by way of the proxy. */
  readonly url: string;
  /** The texts of all statements since it was armed, in order. */
  readonly statements: readonly string[];
  /** For each of them what its connection had sent before, so that one `commit` can be told from another. */
  readonly places: readonly string[];
  /** For each of them the number of the transaction in which it stands, its begin and its end included; 0: in none but its own. */
  readonly transactions: readonly number[];
  /** For each of them whether its connection was owed nothing: of statements that are sent together only the first begins a round trip. */
  readonly begins: readonly boolean[];
  /** The statement that was struck, once it was. */
  readonly struck: string | undefined;
  /** Nothing gets through any more. */
  readonly isDead: boolean;
  /** Aborted when a `process` has been struck. */
  readonly life: AbortSignal;
  /** Aborted when a connection or the process has been struck. */
  readonly strike: AbortSignal;
  /** How many connections have been silent at some time since the proxy was armed. */
  readonly silentCount: number;
  /** The client ports of its connections, as the server sees them. */
  readonly serverPorts: readonly number[];
  /** How long nothing was asked or owed, in milliseconds; 0 while an answer is outstanding. */
  readonly quietMs: number;
  /** Begins anew, with the connections that there are: counts from 1, and strikes once if a fault is given. */
  arm(fault?: StatementFault): void;
  /** Ends the silence of a process or a connection: P4. */
  wake(): void;
}

interface Pair {
  readonly serverPort: number | undefined;
  cut(): void;
  fallSilent(): void;
  wake(): void;
}

interface Pending {
  readonly isStruck: boolean;
  /** The proxy is not quiet before this message is answered. */
  readonly isOwed: boolean;
  readonly text: string | undefined;
}

/** Opens the proxy; with a fault it strikes once. */
export async function statementProxy(
  databaseUrl: string,
  first?: StatementFault,
  { waits = () => false }: StatementProxyOptions = {},
): Promise<StatementProxy> {
  const target = new URL(databaseUrl);
  let fault = first;
  let statements: string[] = [];
  let places: string[] = [];
  let transactions: number[] = [];
  let begun = 0;
  let begins: boolean[] = [];
  const pairs = new Set<Pair>();
  let struck: string | undefined;
  let isDead = false;
  let isSilent = false;
  let silentCount = 0;
  let life = new AbortController();
  let struckAlready = new AbortController();
  let seen = 0;
  let owed = 0;
  let lastAt = performance.now();

  const isMeant = (text: string, before: string): boolean => {
    if (fault === undefined) return false;
    if (typeof fault.at === 'number') return statements.length === fault.at;
    if (text !== fault.at.text || before !== (fault.at.behind ?? before)) return false;
    seen += 1;
    return seen === fault.at.nth;
  };
  const server = createServer((client) => {
    if (isDead) {
      client.destroy();
      return;
    }
    const upstream = connect({ host: target.hostname, port: Number(target.port) || 5432 });
    const pending: Pending[] = [];
    let isCut = false;
    let last = '';
    let open = 0;
    /** The held work of a silent connection, done when it wakes; undefined while the connection is not silent. */
    let held: (() => void)[] | undefined;
    /** The data that the client sends after a statement that will silence it once executed, and the answer to that statement. */
    const after: (() => void)[] = [];
    const answers: Buffer[] = [];
    const pair: Pair = {
      get serverPort() {
        return upstream.localPort;
      },
      /** The server gets what was passed on, and then the end; the client gets nothing more. */
      cut: (): void => {
        if (isCut) return;
        isCut = true;
        pairs.delete(pair);
        owed -= pending.filter(({ isOwed }) => isOwed).length;
        client.destroy();
        upstream.end();
        upstream.resume();
      },
      fallSilent: () => {
        if (held !== undefined) return;
        held = [];
        silentCount += 1;
      },
      wake: () => {
        const waiting = held ?? [];
        held = undefined;
        for (const work of waiting) work();
      },
    };
    pairs.add(pair);
    /** Does the work at once, or when the connection wakes. */
    const orHeld = (work: () => void): void => {
      if (held === undefined) work();
      else held.push(work);
    };
    if (isSilent) pair.fallSilent();
    const strike = (text: string): void => {
      struck = text;
      lastAt = performance.now();
      const signals = [struckAlready];
      if (fault?.effect === 'silence') {
        isSilent = fault.scope === 'process';
        for (const one of isSilent ? pairs : [pair]) one.fallSilent();
        if (isSilent) signals.unshift(life);
      } else if (fault?.scope === 'process') {
        isDead = true;
        for (const other of [...pairs]) other.cut();
        signals.unshift(life);
      } else pair.cut();
      // When a listener wakes the process at once, the statement is already held and all connections are silent.
      queueMicrotask(() => {
        for (const signal of signals) signal.abort();
      });
    };
    const pass = (request: Request): void => {
      if (isCut) return;
      if (pending.some(({ isStruck }) => isStruck)) {
        if (fault?.effect === 'silence') after.push(() => pass(request));
        return;
      }
      let isStruck = false;
      if (request.statement !== undefined) {
        statements.push(request.statement);
        begins.push(pending.length === 0);
        places.push(last);
        if (request.statement.startsWith('begin')) open = ++begun;
        transactions.push(open);
        if (/^(commit|rollback)$/.test(request.statement)) open = 0;
        lastAt = performance.now();
        isStruck = struck === undefined && isMeant(request.statement, last);
        last = request.statement;
        if (isStruck && fault?.when === 'before') {
          strike(request.statement);
          held?.push(() => send(request, false));
          return;
        }
      }
      send(request, isStruck);
    };
    const send = (request: Request, isStruck: boolean): void => {
      if (isCut) return;
      if (request.isAnswered) {
        const isOwed = request.statement !== undefined && !waits(request.statement);
        if (isOwed) owed += 1;
        pending.push({ isStruck, isOwed, text: request.statement });
      }
      upstream.write(request.bytes);
    };
    const answer = (message: Buffer, isEnd: boolean): void => {
      if (isCut) return;
      const [current] = pending;
      if (current?.isStruck !== true) client.write(message);
      else if (fault?.effect === 'silence') answers.push(message);
      if (!isEnd) return;
      pending.shift();
      if (current?.isOwed) owed -= 1;
      lastAt = performance.now();
      if (!current?.isStruck) return;
      strike(current.text ?? '');
      held?.push(() => client.write(Buffer.concat(answers.splice(0))), ...after.splice(0));
    };
    const question = readRequests((request) => orHeld(() => pass(request)));
    const reply = readAnswers((message, isEnd) => orHeld(() => answer(message, isEnd)));
    // One write for what came together.
    client.setNoDelay(true).on('data', (chunk) => {
      upstream.cork();
      question(chunk);
      upstream.uncork();
    });
    upstream.setNoDelay(true).on('data', (chunk) => {
      client.cork();
      reply(chunk);
      client.uncork();
    });
    // A lost connection is what this is for.
    const lose = (): void => orHeld(pair.cut);
    client.on('error', lose).on('close', lose);
    // The last messages of the server are sent before its end.
    const leave = (): void => orHeld(() => (isCut ? undefined : client.end(pair.cut)));
    upstream.on('error', leave).on('close', leave);
  });
  await new Promise<void>((settle, fail) => {
    server.once('error', fail);
    server.listen(0, '127.0.0.1', settle);
  });
  const url = new URL(databaseUrl);
  url.hostname = '127.0.0.1';
  url.port = String((server.address() as AddressInfo).port);
  return {
    url: url.href,
    get statements() {
      return statements;
    },
    get places() {
      return places;
    },
    get transactions() {
      return transactions;
    },
    get begins() {
      return begins;
    },
    get struck() {
      return struck;
    },
    get isDead() {
      return isDead;
    },
    get life() {
      return life.signal;
    },
    get strike() {
      return struckAlready.signal;
    },
    get silentCount() {
      return silentCount;
    },
    get serverPorts() {
      return [...pairs].flatMap(({ serverPort }) => serverPort ?? []);
    },
    get quietMs() {
      return owed > 0 ? 0 : performance.now() - lastAt;
    },
    arm: (next) => {
      fault = next;
      statements = [];
      places = [];
      transactions = [];
      begins = [];
      seen = 0;
      struck = undefined;
      isDead = false;
      silentCount = 0;
      life = new AbortController();
      struckAlready = new AbortController();
    },
    wake: () => {
      isSilent = false;
      for (const pair of [...pairs]) pair.wake();
    },
    [Symbol.asyncDispose]: async () => {
      const closed = new Promise((settle) => server.close(settle));
      for (const pair of [...pairs]) pair.cut();
      await closed;
    },
  };
}
