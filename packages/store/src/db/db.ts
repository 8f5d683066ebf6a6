import { createHash } from 'node:crypto';
import { KernelError } from '@boxcar/kernel/base';
import pg from 'pg';
import { beginOn, limitsOn, queryLimited, ROW_TYPES } from './pool.js';

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

/**
 * Runs a prepared statement and returns its rows; connection failures come back as `KernelError`. A client of a caller may read types in
 * another way: the kernel's statements are read as the kernel expects.
 */
export async function run<R extends pg.QueryResultRow>(
  db: Queryable,
  prepared: Statement,
  values: unknown[],
): Promise<R[]> {
  try {
    const { name, text } = prepared;
    return (await db.query<R>({ name, text, values, types: ROW_TYPES })).rows;
  } catch (error) {
    throw toDatabaseError(error);
  }
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
/**
 * The limits of a connection (`connection-limits.ts`) have ended a transaction: it was idle, waited too long for a lock, had a
 * statement that ran too long, or took too long as a whole.
 */
const LIMIT_STATES = new Set(['25P03', '55P03', '57014', '25P04']);
/** The limits that a single row can exceed: it is locked, or the work on it takes too long. */
const ROW_LIMIT_STATES = new Set(['55P03', '57014', '25P04']);

/** 57014 is also the state of a statement that a user has canceled; such a statement must not be repeated. */
const isLimit = (error: unknown, code: string): boolean =>
  LIMIT_STATES.has(code) &&
  (code !== '57014' || (error instanceof Error && /statement timeout/i.test(error.message)));

function readCode(error: unknown): string {
  if (error instanceof AggregateError) return error.errors.map(readCode).find((code) => code !== '') ?? '';
  return error instanceof Error && 'code' in error && typeof error.code === 'string' ? error.code : '';
}

const isConnectionLoss = (error: unknown): boolean => {
  const code = readCode(error);
  if (CONNECTION_CODES.has(code) || isLimit(error, code)) return true;
  // Class 08: connection exception; 57P01..03: shutdown, crash, starting up; 53: out of connections, memory or
  // disk; 25006: a server that only reads, after a failover.
  if (/^(08|53)/.test(code) || /^57P0[1-5]$/.test(code) || code === '25006') return true;
  return (
    error instanceof Error &&
    /Connection terminated|timeout exceeded when trying to connect|Query read timeout|Client has encountered a connection error|not queryable/i.test(
      error.message,
    )
  );
};

/** The SQLSTATE of an error of Postgres, also after `toDatabaseError`; '' when there is none. */
export const sqlStateOf = (error: unknown): string =>
  readCode(error instanceof KernelError ? error.cause : error);

/**
 * True when the whole transaction may run again: it lost its connection, lost a deadlock or a serialization race, or a limit of
 * its connection has ended it. False for every error of outside code.
 */
export const isTransient = (error: unknown): boolean =>
  !isOutside(error) &&
  ((error instanceof KernelError && error.code === 'database_unavailable') || isRaceLost(error));

/** A deadlock or a serialization failure. */
const isRaceLost = (error: unknown): boolean => RETRY_STATES.has(sqlStateOf(error));

/** True when a locked row, or work that takes too long, has exceeded a limit of the connection. */
export const isOverRowLimit = (error: unknown): boolean => ROW_LIMIT_STATES.has(sqlStateOf(error));

/**
 * True when the server failed as a whole: it is away or full, or the connection is lost. Any other failure of a batch can be caused
 * by one row, so each row is tried alone.
 */
export const isServerTrouble = (error: unknown): boolean =>
  isTransient(error) && !isOverRowLimit(error) && !RETRY_STATES.has(sqlStateOf(error));

/** True when the server answers, but lacks disk or memory for the work: one of several rows may need too much of it. */
export const isOutOfResources = (error: unknown): boolean => /^53(?!300)/.test(sqlStateOf(error));

/** Text that no column can store, plain or in JSON: NUL, and half of a surrogate pair. */
const isUnstorable = (error: unknown, code: string): boolean =>
  code === '22021' ||
  code === '22P05' ||
  (code === '22P02' && error instanceof pg.DatabaseError && /^Unicode /.test(error.detail ?? ''));

/** Errors of statements and connections of the kernel. */
const ofKernel = new WeakSet<object>();
/** Errors of outside code: handlers, their schemas, and the statements that they write themselves. */
const ofOutside = new WeakSet<object>();

const isObject = (value: unknown): value is object => typeof value === 'object' && value !== null;

/**
 * Marks an error that outside code has thrown: whatever its code, it says nothing about the database of the kernel. An error of
 * the kernel's own statements that has passed through outside code keeps its meaning.
 */
export function asOutside(error: unknown): unknown {
  if (isObject(error) && !ofKernel.has(error)) ofOutside.add(error);
  return error;
}

/** True for errors that outside code has thrown. */
export const isOutside = (error: unknown): boolean => isObject(error) && ofOutside.has(error);

/**
 * For errors of the kernel's statements and connections. Names what the caller can act on; everything else stays as Postgres said
 * it, as do errors of outside code.
 */
export function toDatabaseError(error: unknown): unknown {
  return isOutside(error) ? error : asKernels(nameDatabaseError(error));
}

function asKernels(error: unknown): unknown {
  if (isObject(error)) ofKernel.add(error);
  return error;
}

/** A connection of a pool that `createPool` made. */
type Connection = Pick<pg.PoolClient, 'query'>;

/**
 * For the error of a statement that outside code has written and sent on this connection. Only the loss of the connection, a lost
 * race and a limit of the pool are the kernel's; any other failure stays as Postgres said it. Code of the server can raise any
 * SQLSTATE, so a connection that still answers is not lost, whatever the error says.
 */
export async function toConnectionError(error: unknown, connection: Connection): Promise<unknown> {
  if (isOutside(error)) return error;
  const named = nameDatabaseError(error);
  if (isRaceLost(error)) return asKernels(named);
  const isOfConnection = named instanceof KernelError && CONNECTION_ERRORS.has(named.code);
  if (!isOfConnection) return error;
  const isOver = isOverStatementLimit(error) || !(await doesAnswer(connection));
  return isOver ? asKernels(named) : error;
}

const CONNECTION_ERRORS: ReadonlySet<string> = new Set(['database_unavailable', 'database_auth_failed']);

/** Limits of the pool that end a statement and not its connection. */
const isOverStatementLimit = (error: unknown): boolean => ['55P03', '57014'].includes(sqlStateOf(error));

/** Whether a connection still answers; inside a failed transaction the answer is a refusal. */
async function doesAnswer(connection: Connection): Promise<boolean> {
  try {
    await connection.query('select');
    return true;
  } catch (error) {
    return readCode(error) === ABORTED;
  }
}

/** Runs a statement of outside code on a connection of the pool, by itself. @throws as in {@link toConnectionError}. */
export async function queryOutside<R extends pg.QueryResultRow>(
  pool: pg.Pool,
  config: pg.QueryConfig,
): Promise<pg.QueryResult<R>> {
  const client = await checkOut(pool);
  let broken: Error | undefined;
  try {
    return await queryLimited<R>(pool, client, config);
  } catch (thrown) {
    broken = toError(thrown);
    throw await toConnectionError(thrown, client);
  } finally {
    client.release(broken);
  }
}

function nameDatabaseError(error: unknown): unknown {
  if (error instanceof KernelError) return error;
  const code = readCode(error);
  const message = error instanceof Error ? error.message : String(error);
  if (code === '28P01' || code === '28000' || code === '3D000') {
    return new KernelError('database_auth_failed', { message: `Postgres: ${message}.`, cause: error });
  }
  if (isUnstorable(error, code))
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
 * How long a transaction is tried again. A lock is tried for all of this time, in which the server frees the locks of a stopped
 * process (`connection-limits.ts`).
 */
const PATIENCE_MS = 15_000;

/**
 * Runs `body` in one transaction on one connection of the pool. Deadlocks, serialization failures and lost connections
 * repeat the whole of it, so `body` must be free of other effects.
 *
 * @throws KernelError `database_unavailable` after the last attempt.
 */
export function transaction<T>(
  pool: pg.Pool,
  body: (tx: Tx, attempt: number) => Promise<T>,
  options: RetryOptions = {},
): Promise<T> {
  return retryTransient((attempt) => transactOnce(pool, (tx) => body(tx, attempt)), options);
}

export interface RetryOptions {
  /** The SQLSTATE of a limit that the work itself has set: such a failure is not tried again, and is thrown as Postgres sent it. */
  readonly ownLimit?: '55P03' | '57014';
  /** False: throws at once when a row is locked or work takes too long; the caller then tries each row alone. Default true. */
  readonly isPatient?: boolean;
  /** How long the work is tried again while the server accepts no connections. Absent: a few tries. */
  readonly awayMs?: number;
}

/** A try of work on a batch of items. */
export interface BatchTry {
  /** An earlier try may have been committed, as part of a larger batch: the work looks for its traces first. Default false. */
  readonly isRepeated?: boolean;
  /** As in {@link RetryOptions}. */
  readonly isPatient?: boolean;
  /**
   * True: an item whose turn or tape is locked is left out of the batch and reported, and nothing of it takes effect. Where several
   * statements share a transaction, the first try waits for other rows briefly (`BATCH_LOCK_MS`) and fails; a repetition leaves out
   * each item that needs a locked row. Default false.
   */
  readonly leavesLocked?: boolean;
}

/** `retryTransient` for a batch of items. */
export const retryBatch = <T>(
  work: (isRepeated: boolean) => Promise<T>,
  { isRepeated = false, ...options }: BatchTry & RetryOptions = {},
): Promise<T> => retryTransient((attempt) => work(isRepeated || attempt > 1), options);

/** For work whose loss costs more than a wait: a result that only this process knows. */
export const patientOn = (pool: pg.Pool): RetryOptions => ({ awayMs: limitsOn(pool).awayMs });

/**
 * Runs `work` again, a few times and for a few seconds, while its errors say that it left nothing behind or that this is not known.
 *
 * @param work - Gets the number of the attempt, from 1. An earlier attempt may have been committed with only its answer lost: work
 *   that is not idempotent looks for its own traces first.
 * @throws KernelError `database_unavailable` after the last attempt.
 */
export async function retryTransient<T>(
  work: (attempt: number) => Promise<T>,
  options: RetryOptions = {},
): Promise<T> {
  const startedAt = performance.now();
  for (let attempt = 1; ; attempt++) {
    try {
      return await work(attempt);
    } catch (error) {
      if (sqlStateOf(error) === options.ownLimit) throw error instanceof KernelError ? error.cause : error;
      if (!isTransient(error) || (options.isPatient === false && isOverRowLimit(error))) throw error;
      if (!mayTryAgain(error, attempt, { elapsedMs: performance.now() - startedAt, ...options })) throw error;
      await new Promise((resolve) =>
        setTimeout(resolve, 2 ** Math.min(attempt, 5) * 5 * (1 + Math.random())),
      );
    }
  }
}

function mayTryAgain(
  error: unknown,
  attempt: number,
  { elapsedMs, awayMs = 0 }: { readonly elapsedMs: number } & RetryOptions,
): boolean {
  if (elapsedMs >= PATIENCE_MS) return attempt === 1;
  const state = sqlStateOf(error);
  if (attempt < TRANSACTION_ATTEMPTS || state === '55P03') return true;
  return elapsedMs < awayMs && !LIMIT_STATES.has(state) && !RETRY_STATES.has(state);
}

/** Checks a connection out of a pool of `createPool`; its loss shows in its statements only. */
export async function checkOut(pool: pg.Pool): Promise<pg.PoolClient> {
  try {
    return await pool.connect();
  } catch (error) {
    throw toDatabaseError(error);
  }
}

/** A transaction for its statements, and the first failure among them that no savepoint has undone. */
export interface Watched {
  readonly tx: Tx;
  /** The failure to report: the server refuses statements after a failed one as 25P02, which does not name the cause. */
  causeOf(error: unknown): unknown;
}

/** Watches the statements of one transaction, which fail in the order in which they were sent. */
export function watchFailures(client: Queryable): Watched {
  let first: unknown;
  return {
    tx: {
      query: <R extends pg.QueryResultRow>(config: pg.QueryConfig) => {
        const sent = client.query<R>(config);
        sent.then(
          (answer: pg.QueryResult | readonly pg.QueryResult[]) => {
            // `rollback to savepoint` answers like `rollback`: the transaction goes on without the failure.
            if ([answer].flat().some(isRolledBack)) first = undefined;
          },
          (error: unknown) => {
            first ??= error;
          },
        );
        return sent;
      },
    },
    causeOf: (error) => (readCode(error) === ABORTED ? (first ?? error) : error),
  };
}

/** The transaction is aborted already, by an earlier statement. */
const ABORTED = '25P02';

const isRolledBack = ({ command }: Pick<pg.QueryResult, 'command'>): boolean => command === 'ROLLBACK';

/** The server answers the commit of a failed transaction with a rollback, which must not count as success. */
const rolledBack = (): Error & { code: string } =>
  Object.assign(new Error('the transaction had failed and was rolled back'), { code: ABORTED });

/** Commits a transaction. @throws the earlier failure of a statement that was not awaited. */
export async function commitWatched(
  client: Pick<pg.PoolClient, 'query'>,
  { causeOf }: Watched,
): Promise<void> {
  if (isRolledBack(await client.query('commit'))) throw causeOf(rolledBack());
}

interface LockWait {
  /** The longest wait of each statement for one lock. Absent: the limit of the connection. */
  readonly lockMs?: number | undefined;
}

/** The limit is set by the message that begins the transaction, so it costs nothing. 0 would mean no limit. */
const beginWithin = (pool: pg.Pool, { lockMs }: LockWait): string =>
  lockMs === undefined
    ? beginOn(pool)
    : `${beginOn(pool)}; set local lock_timeout = ${Math.max(Math.ceil(lockMs), 1)}`;

/** `transaction` without its repetitions. */
export async function transactOnce<T>(
  pool: pg.Pool,
  body: (tx: Tx) => Promise<T>,
  limit: LockWait = {},
): Promise<T> {
  const client = await checkOut(pool);
  const watched = watchFailures(client);
  let broken: Error | undefined;
  try {
    // Travels with the first statement; should it fail, that one fails too.
    const begun = client.query(beginWithin(pool, limit));
    begun.catch(ignoreLoss);
    const result = await body(watched.tx);
    await begun;
    await commitWatched(client, watched);
    return result;
  } catch (error) {
    try {
      await client.query('rollback');
    } catch (failure) {
      // The connection is gone, and the transaction with it.
      broken = toError(failure);
    }
    throw toDatabaseError(watched.causeOf(error));
  } finally {
    client.release(broken);
  }
}

/**
 * Runs statements that need nothing of each other's answers in one transaction and one round trip: begin, what `send` sends
 * before it first waits, and commit travel together. Repeated as a whole like `transaction`.
 */
export function transactAtOnce<T>(pool: pg.Pool, send: (tx: Tx) => Promise<T>): Promise<T> {
  return retryTransient(() => sendOnce(pool, send));
}

/** `transactAtOnce` without its repetitions. */
export async function sendOnce<T>(
  pool: pg.Pool,
  send: (tx: Tx) => Promise<T>,
  limit: LockWait = {},
): Promise<T> {
  const client = await checkOut(pool);
  const watched = watchFailures(client);
  const begun = client.query(beginWithin(pool, limit));
  begun.catch(() => undefined);
  const sent = send(watched.tx);
  // A failure on the server turns the commit into a rollback. A failure here, before everything was sent, needs our own rollback.
  const isBroken = await hasFailed(sent);
  const committed = client.query(isBroken ? 'rollback' : 'commit');
  const [, , end] = await Promise.allSettled([begun, sent, committed]);
  client.release(end.status === 'rejected' ? toError(end.reason) : undefined);
  try {
    await begun;
    const result = await sent;
    if (isRolledBack(await committed)) throw rolledBack();
    return result;
  } catch (error) {
    throw toDatabaseError(watched.causeOf(error));
  }
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
export function onConnection<T>(
  pool: pg.Pool,
  body: (db: Queryable, isRepeated: boolean) => Promise<T>,
  options: BatchTry = {},
): Promise<T> {
  return retryBatch(async (isRepeated) => {
    const client = await checkOut(pool);
    let broken: Error | undefined;
    try {
      return await body(client, isRepeated);
    } catch (error) {
      // Statements may be on their way still: the connection goes with them.
      broken = toError(error);
      throw error;
    } finally {
      client.release(broken);
    }
  }, options);
}

/** Like `transaction` for a single statement, which is its own transaction: retried as a whole, no begin and commit. */
export function runRetrying<R extends pg.QueryResultRow>(
  db: Queryable,
  prepared: Statement,
  values: unknown[],
): Promise<R[]> {
  return retryTransient(() => run<R>(db, prepared, values));
}
