/**
 * A proxy in front of Postgres that knows statements, and can cut at exactly one of them.
 *
 * P1  Statements are numbered from 1 in the order in which they reach the proxy, on whatever connection.
 * P2  `before`: the server never sees the statement; what was sent earlier takes effect. `after`: the server has executed
 *     it, and what it answers is lost.
 * P3  A cut closes: what the server has in hand for the connection is finished or rolled back, as after a lost process.
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
  /** The statement that was struck, once it was. */
  readonly struck: string | undefined;
  /** Nothing gets through any more. */
  readonly isDead: boolean;
  /** Aborted when a `process` has been struck. */
  readonly life: AbortSignal;
  /** How long nothing was asked or owed, in milliseconds; 0 while an answer is outstanding. */
  readonly quietMs: number;
  /** Begins anew, with the connections that there are: counts from 1, and strikes once if a fault is given. */
  arm(fault?: StatementFault): void;
}

interface Pending {
  readonly isStruck: boolean;
  readonly isStatement: boolean;
  readonly text: string | undefined;
}

/** Opens the proxy; with a fault it strikes once. */
export async function statementProxy(databaseUrl: string, first?: StatementFault): Promise<StatementProxy> {
  const target = new URL(databaseUrl);
  let fault = first;
  let statements: string[] = [];
  let places: string[] = [];
  let transactions: number[] = [];
  let begun = 0;
  const pairs = new Set<{ cut(): void }>();
  let struck: string | undefined;
  let isDead = false;
  let life = new AbortController();
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
    const pair = {
      /** The server gets what was passed on, and then the end; the client gets nothing more. */
      cut: (): void => {
        if (isCut) return;
        isCut = true;
        pairs.delete(pair);
        owed -= pending.filter(({ isStatement }) => isStatement).length;
        client.destroy();
        upstream.end();
        upstream.resume();
      },
    };
    pairs.add(pair);
    const strike = (text: string): void => {
      struck = text;
      lastAt = performance.now();
      if (fault?.scope === 'process') {
        isDead = true;
        for (const other of [...pairs]) other.cut();
        life.abort();
      } else pair.cut();
    };
    const pass = (request: Request): void => {
      if (isCut || pending.some(({ isStruck }) => isStruck)) return;
      let isStruck = false;
      if (request.statement !== undefined) {
        statements.push(request.statement);
        places.push(last);
        if (request.statement === 'begin') open = ++begun;
        transactions.push(open);
        if (/^(commit|rollback)$/.test(request.statement)) open = 0;
        lastAt = performance.now();
        isStruck = struck === undefined && isMeant(request.statement, last);
        last = request.statement;
        if (isStruck && fault?.when === 'before') {
          strike(request.statement);
          return;
        }
      }
      if (request.isAnswered) {
        const isStatement = request.statement !== undefined;
        if (isStatement) owed += 1;
        pending.push({ isStruck, isStatement, text: request.statement });
      }
      upstream.write(request.bytes);
    };
    const answer = (message: Buffer, isEnd: boolean): void => {
      if (isCut) return;
      const [current] = pending;
      if (current?.isStruck !== true) client.write(message);
      if (!isEnd) return;
      pending.shift();
      if (current?.isStatement) owed -= 1;
      lastAt = performance.now();
      if (current?.isStruck) strike(current.text ?? '');
    };
    const question = readRequests(pass);
    const reply = readAnswers(answer);
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
    client.on('error', pair.cut).on('close', pair.cut);
    upstream.on('error', pair.cut).on('close', pair.cut);
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
    get struck() {
      return struck;
    },
    get isDead() {
      return isDead;
    },
    get life() {
      return life.signal;
    },
    get quietMs() {
      return owed > 0 ? 0 : performance.now() - lastAt;
    },
    arm: (next) => {
      fault = next;
      statements = [];
      places = [];
      transactions = [];
      seen = 0;
      struck = undefined;
      isDead = false;
      life = new AbortController();
    },
    [Symbol.asyncDispose]: async () => {
      const closed = new Promise((settle) => server.close(settle));
      for (const pair of [...pairs]) pair.cut();
      await closed;
    },
  };
}
