/**
 * A proxy in front of Postgres that recognizes statements, and can cut connections at exactly one of them.
 *
 * P1  Statements are numbered from 1 in the order in which they reach the proxy, on any connection.
 * P2  `before`: the server never sees the statement; earlier statements take effect. `after`: the server has executed the statement, and
 *     its answer is lost.
 * P3  A cut closes the connection: the server finishes or rolls back its work for the connection, as after the death of a process.
 * P4  Silence closes no connection. The server and the client keep their ends open and receive nothing more, as when the process is
 *     stopped or its host is cut off: an open transaction keeps its locks. New connections of a silent process are silent from the start.
 *     `wake` lets all held data through, in order; only then does a side learn that the other side has closed meanwhile.
 */
import { type AddressInfo, connect, createServer } from 'node:net';
import { type Request, readAnswers, readRequests } from './pg-wire.js';

export interface StatementFault {
  /**
   * The number of the statement, from 1; or the n-th time that a text is sent, alone or together with other statements. `behind`: directly
   * after the statement with that text on its connection.
   */
  readonly at: number | { readonly text: string; readonly nth: number; readonly behind?: string };
  readonly when: 'before' | 'after';
  /**
   * Only the connection of the statement, or all connections permanently: nothing gets through any more, as if the process had been
   * killed.
   */
  readonly scope: 'connection' | 'process';
  /** Default: `cut`. */
  readonly effect?: 'cut' | 'silence';
}

export interface StatementProxyOptions {
  /** True for statements that wait on the server for an event: their outstanding answers do not count as owed. */
  readonly waits?: (text: string) => boolean;
}

export interface StatementProxy extends AsyncDisposable {
  /** The URL of the database through the proxy. */
  readonly url: string;
  /** The texts of all statements since `arm`, in order. */
  readonly statements: readonly string[];
  /** For each statement, the earlier statements of its connection, so that one `commit` can be told from another. */
  readonly places: readonly string[];
  /**
   * For each statement, the number of its transaction; `begin` and `commit` belong to the transaction. 0: the statement is outside of an
   * explicit transaction.
   */
  readonly transactions: readonly number[];
  /**
   * For each statement, whether its connection had no outstanding answers. Of statements that are sent together, only the first begins a
   * round trip.
   */
  readonly begins: readonly boolean[];
  /** The statement at which the fault struck; undefined before that. */
  readonly struck: string | undefined;
  /** True when nothing gets through any more. */
  readonly isDead: boolean;
  /** Aborted when the fault has struck a `process`. */
  readonly life: AbortSignal;
  /** Aborted when the fault has struck a connection or the process. */
  readonly strike: AbortSignal;
  /** How many connections have been silent at some time since `arm`. */
  readonly silentCount: number;
  /** The client ports of its connections, as the server sees them. */
  readonly serverPorts: readonly number[];
  /** How long no request was sent and no answer was outstanding, in milliseconds; 0 while an answer is outstanding. */
  readonly quietMs: number;
  /** Starts again with the present connections: counts from 1, and strikes once if a fault is given. */
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
  /** Whether the proxy waits for the answer to this message before it is quiet. */
  readonly isOwed: boolean;
  readonly text: string | undefined;
}

/** Opens the proxy; a given fault strikes once. */
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
    /** The held work of a silent connection, done when the connection wakes; undefined while it is not silent. */
    let held: (() => void)[] | undefined;
    /** The client's data after a statement that will silence the connection once executed, and the answer to that statement. */
    const after: (() => void)[] = [];
    const answers: Buffer[] = [];
    const pair: Pair = {
      get serverPort() {
        return upstream.localPort;
      },
      /** The server gets the data that was passed on, and then the end; the client gets nothing more. */
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
    // One write for data that arrived together.
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
    // Lost connections are the purpose of this proxy.
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
