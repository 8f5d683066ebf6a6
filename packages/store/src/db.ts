import { createHash } from 'node:crypto';
import { KernelError } from '@boxcar/kernel';
import pg from 'pg';

/** Anything that runs one statement: a pool, a client, or a transaction. */
export interface Queryable {
  query<R extends pg.QueryResultRow>(config: pg.QueryConfig): Promise<pg.QueryResult<R>>;
}

/** A connection inside a transaction. */
export type Tx = Queryable;

/** A named prepared statement: parsed and planned once per connection. Two texts never share a name. */
export interface Statement {
  readonly name: string;
  readonly text: string;
}

export function statement(text: string): Statement {
  return { name: `bx_${createHash('sha256').update(text).digest('hex').slice(0, 24)}`, text };
}

/** Runs a prepared statement and returns its rows; connection failures come back as `KernelError`. */
export async function run<R extends pg.QueryResultRow>(
  db: Queryable,
  prepared: Statement,
  values: unknown[],
): Promise<R[]> {
  try {
    return (await db.query<R>({ name: prepared.name, text: prepared.text, values })).rows;
  } catch (error) {
    throw toDatabaseError(error);
  }
}

export interface PoolOptions {
  readonly connectionString: string;
  /** Connections at most. */
  readonly max?: number;
  readonly applicationName?: string;
  /** A transaction pooler takes no settings at the start of a connection; then the server's own planner settings count. */
  readonly isPooled?: boolean;
}

/**
 * Every statement here reads by key or by a narrow index, but prepared plans are made while tables are small, when reading all
 * of one looks cheap, and kept while they grow: unguided, the turns of a fresh database took 27 ms to read a context of two
 * cards. Compiling a plan costs more than running it, and so does planning anew for each set of values, which Postgres prefers
 * where lists are short: 1.2 instead of 0.5 ms to read a small view.
 */
const PLANNER =
  '-c enable_seqscan=off -c enable_hashjoin=off -c enable_mergejoin=off -c jit=off -c plan_cache_mode=force_generic_plan';

/** A pool with the kernel's settings; the caller ends it. The loss of a connection, idle or in use, never ends the process. */
export function createPool(options: PoolOptions): pg.Pool {
  const pool = new pg.Pool({
    connectionString: options.connectionString,
    max: options.max ?? 6,
    application_name: options.applicationName ?? 'boxcar',
    connectionTimeoutMillis: 10_000,
    keepAlive: true,
    // Statements sent together on one connection share a round trip.
    pipeline: true,
    ...(options.isPooled === true ? {} : { options: PLANNER }),
  });
  // A server restart breaks idle connections; the pool replaces them on the next use.
  pool.on('error', ignoreLoss);
  // From the first moment: what a connection reads in one go may hold both its readiness and its end.
  pool.on('connect', (client) => client.on('error', ignoreLoss));
  return pool;
}

// The loss of a connection that is checked out fails its statement and is also an event, which unheard ends the process.
const ignoreLoss = (): void => undefined;

const CONNECTION_CODES = new Set([
  'ECONNREFUSED',
  'ECONNRESET',
  'EPIPE',
  'ETIMEDOUT',
  'ENOTFOUND',
  'EAI_AGAIN',
  'EHOSTUNREACH',
  'ENOENT',
]);
/** Serialization failure and deadlock: the transaction left nothing and may run again. */
const RETRY_STATES = new Set(['40001', '40P01']);

function readCode(error: unknown): string {
  if (error instanceof AggregateError) return error.errors.map(readCode).find((code) => code !== '') ?? '';
  return error instanceof Error && 'code' in error && typeof error.code === 'string' ? error.code : '';
}

const isConnectionLoss = (error: unknown): boolean => {
  const code = readCode(error);
  if (CONNECTION_CODES.has(code)) return true;
  // Class 08: connection exception; 57P01..03: shutdown, crash, starting up; 53: out of connections, memory or
  // disk; 25006: a server that only reads, after a failover.
  if (/^(08|53)/.test(code) || /^57P0[1-5]$/.test(code) || code === '25006') return true;
  return (
    error instanceof Error &&
    /Connection terminated|timeout exceeded when trying to connect|Client has encountered a connection error|not queryable/i.test(
      error.message,
    )
  );
};

/** True when the whole transaction may run again: it lost its connection, a deadlock or a serialization race. */
export const isTransient = (error: unknown): boolean =>
  (error instanceof KernelError && error.code === 'database_unavailable') ||
  RETRY_STATES.has(readCode(error)) ||
  (error instanceof KernelError && error.cause !== undefined && RETRY_STATES.has(readCode(error.cause)));

/** Names what the caller can act on; everything else stays as Postgres said it. */
export function toDatabaseError(error: unknown): unknown {
  if (error instanceof KernelError) return error;
  const code = readCode(error);
  const message = error instanceof Error ? error.message : String(error);
  if (code === '28P01' || code === '28000' || code === '3D000') {
    return new KernelError('database_auth_failed', { message: `Postgres: ${message}.`, cause: error });
  }
  // What no statement takes, as a name or a key: NUL.
  if (code === '22021')
    return new KernelError('bad_request', { message: `Postgres: ${message}.`, cause: error });
  if (code === 'BX001') return new KernelError('immutable', { message: `${message}.`, cause: error });
  if (code === 'BX002')
    return new KernelError('not_found', {
      message: `${message}: it can no longer be referred to.`,
      cause: error,
    });
  if (code === '42P01' || code === '3F000' || code === '42703') {
    return new KernelError('schema_outdated', { message: `Postgres: ${message}.`, cause: error });
  }
  if (isConnectionLoss(error)) {
    return new KernelError('database_unavailable', {
      message: `Postgres: ${message || code}.`,
      details: { code },
      cause: error,
    });
  }
  return error;
}

/** How often a transaction is tried as a whole when it lost a race or its connection. */
const TRANSACTION_ATTEMPTS = 5;

/**
 * Runs `body` in one transaction on one connection of the pool. Deadlocks, serialization failures and lost connections
 * repeat the whole of it, so `body` must be free of other effects.
 *
 * @throws KernelError `database_unavailable` after the last attempt.
 */
export function transaction<T>(pool: pg.Pool, body: (tx: Tx) => Promise<T>): Promise<T> {
  return retryTransient(() => transactOnce(pool, body));
}

/**
 * Runs `work` again, a few times, while what it throws says that it left nothing behind or cannot know.
 *
 * @throws KernelError `database_unavailable` after the last attempt.
 */
export async function retryTransient<T>(work: () => Promise<T>): Promise<T> {
  for (let attempt = 1; ; attempt++) {
    try {
      return await work();
    } catch (error) {
      if (attempt === TRANSACTION_ATTEMPTS || !isTransient(error)) throw error;
      await new Promise((resolve) => setTimeout(resolve, 2 ** attempt * 5 * (1 + Math.random())));
    }
  }
}

/** Checks a connection out of a pool of `createPool`; its loss shows in its statements only. */
export async function checkOut(pool: pg.Pool): Promise<pg.PoolClient> {
  try {
    return await pool.connect();
  } catch (error) {
    throw toDatabaseError(error);
  }
}

async function transactOnce<T>(pool: pg.Pool, body: (tx: Tx) => Promise<T>): Promise<T> {
  const client = await checkOut(pool);
  let broken: Error | undefined;
  try {
    // Travels with the first statement; should it fail, that one fails too.
    const begun = client.query('begin');
    begun.catch(ignoreLoss);
    const result = await body(client);
    await begun;
    await client.query('commit');
    return result;
  } catch (error) {
    try {
      await client.query('rollback');
    } catch (failure) {
      // The connection is gone, and the transaction with it.
      broken = toError(failure);
    }
    throw toDatabaseError(error);
  } finally {
    client.release(broken);
  }
}

/**
 * Runs statements that need nothing of each other's answers in one transaction and one round trip: begin, what `send` sends
 * before it first waits, and commit travel together. Repeated as a whole like `transaction`.
 */
export function transactAtOnce<T>(pool: pg.Pool, send: (tx: Tx) => Promise<T>): Promise<T> {
  return retryTransient(async () => {
    const client = await checkOut(pool);
    const begun = client.query('begin');
    begun.catch(() => undefined);
    const sent = send(client);
    // What fails on the server makes the commit a rollback. What fails here, before all of it was sent, has to say so itself.
    const isBroken = await hasFailed(sent);
    const committed = client.query(isBroken ? 'rollback' : 'commit');
    const [, , end] = await Promise.allSettled([begun, sent, committed]);
    client.release(end.status === 'rejected' ? toError(end.reason) : undefined);
    try {
      await begun;
      const result = await sent;
      await committed;
      return result;
    } catch (error) {
      throw toDatabaseError(error);
    }
  });
}

/** Whether it has failed by now, without an answer from anywhere: ticks run when no promise has anything left to do. */
async function hasFailed(promise: Promise<unknown>): Promise<boolean> {
  let isRejected = false;
  promise.catch(() => {
    isRejected = true;
  });
  await new Promise<void>((resolve) => process.nextTick(resolve));
  return isRejected;
}

const toError = (thrown: unknown): Error => (thrown instanceof Error ? thrown : new Error(String(thrown)));

/** Runs `body` on one connection of the pool, as a whole again when that was lost: statements it sends together share a round trip. */
export function onConnection<T>(pool: pg.Pool, body: (db: Queryable) => Promise<T>): Promise<T> {
  return retryTransient(async () => {
    const client = await checkOut(pool);
    let broken: Error | undefined;
    try {
      return await body(client);
    } catch (error) {
      // Statements may be on their way still: the connection goes with them.
      broken = toError(error);
      throw error;
    } finally {
      client.release(broken);
    }
  });
}

/** Like `transaction` for a single statement, which is its own transaction: retried as a whole, no begin and commit. */
export function runRetrying<R extends pg.QueryResultRow>(
  db: Queryable,
  prepared: Statement,
  values: unknown[],
): Promise<R[]> {
  return retryTransient(() => run<R>(db, prepared, values));
}
