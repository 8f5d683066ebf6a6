/** The meaning of Postgres errors: which of them allow a repetition, and which come from outside code. */
import { errorText, KernelError } from '@boxcar/kernel/base';
import pg from 'pg';

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
/** Serialization failure and deadlock: the transaction had no effect and may run again. */
export const RETRY_STATES = new Set(['40001', '40P01']);
/**
 * A limit of the connection (`connection-limits.ts`) has ended a transaction: it was idle, waited too long for a lock, had a statement
 * that ran too long, or took too long as a whole.
 */
export const LIMIT_STATES = new Set(['25P03', '55P03', '57014', '25P04']);
/** The limits that a single row can exceed: it is locked, or the work on it takes too long. */
const ROW_LIMIT_STATES = new Set(['55P03', '57014', '25P04']);

/** 57014 is also the state of a statement that a user has canceled; such a statement must not be repeated. */
const isLimit = (error: unknown, code: string): boolean =>
  LIMIT_STATES.has(code) &&
  (code !== '57014' || (error instanceof Error && /statement timeout/i.test(error.message)));

export function readCode(error: unknown): string {
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

/** The SQLSTATE of a Postgres error, also after `toDatabaseError`; '' for an error without a SQLSTATE. */
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
 * True when the server failed as a whole: it is unreachable or full, or the connection is lost. A single row can cause any other
 * failure of a batch, so each row is then tried alone.
 */
export const isServerTrouble = (error: unknown): boolean =>
  isTransient(error) && !isOverRowLimit(error) && !RETRY_STATES.has(sqlStateOf(error));

/** True when the server answers but lacks disk or memory for the work. One of several rows may need too much. */
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
 * Marks an error that outside code has thrown: whatever its code, it tells nothing about the kernel's database. An error of the
 * kernel's own statements that has passed through outside code keeps its meaning.
 */
export function asOutside(error: unknown): unknown {
  if (isObject(error) && !ofKernel.has(error)) ofOutside.add(error);
  return error;
}

/** True for errors that outside code has thrown. */
export const isOutside = (error: unknown): boolean => isObject(error) && ofOutside.has(error);

/**
 * Converts errors of the kernel's statements and connections. Errors that a caller can act on become `KernelError`. All other errors,
 * and errors of outside code, stay as Postgres sent them.
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
 * Converts the error of a statement that outside code has written and sent on this connection. Only the loss of the connection, a lost
 * race and a limit of the pool become errors of the kernel; any other failure stays as Postgres sent it. Code on the server can raise
 * any SQLSTATE, so a connection that still answers is not lost, whatever the error claims.
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

/** True for the limits of the pool that end a statement but not its connection. */
const isOverStatementLimit = (error: unknown): boolean => ['55P03', '57014'].includes(sqlStateOf(error));

/** Whether a connection still answers. Inside a failed transaction, the answer is a refusal. */
async function doesAnswer(connection: Connection): Promise<boolean> {
  try {
    await connection.query('select');
    return true;
  } catch (error) {
    return readCode(error) === ABORTED;
  }
}

/** An earlier statement has already aborted the transaction. */
export const ABORTED = '25P02';

function nameDatabaseError(error: unknown): unknown {
  if (error instanceof KernelError) return error;
  const code = readCode(error);
  const message = errorText(error);
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
  if (message.startsWith('Cannot use a pool after calling end'))
    return new KernelError('internal_error', { message: 'The pool of connections is closed.', cause: error });
  if (isConnectionLoss(error)) {
    return new KernelError('database_unavailable', {
      message: `Postgres: ${message || code}.`,
      details: { code },
      cause: error,
    });
  }
  return error;
}
