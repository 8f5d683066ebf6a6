/**
 * The settings of every connection of the kernel. They bound the time for which a stopped or disconnected process can delay others.
 *
 * C1  When a transaction waits for its process for `idleMs`, the server ends the transaction and frees its locks.
 * C2  No statement waits for one lock longer than `lockMs`. A transaction that gave up is tried again (`retryTransient`), for longer
 *     than `idleMs`: by then the server has freed the lock of a stopped process.
 * C3  A statement runs for `statementMs` at most. Commands that need longer set their own limit.
 * C4  A lost host is noticed within about eight seconds: by keepalives while the connection is quiet, or after `idleMs` when sent data
 *     is not acknowledged. The latter also ends the connection of a process that was stopped with a full receive buffer; no other limit
 *     applies while the server is writing.
 * C5  Facts that only this process has (the result of a tool, the reply of a model) are tried again for `awayMs` while the server
 *     accepts no connections.
 */
import pg from 'pg';

export interface ConnectionLimits {
  readonly idleMs: number;
  readonly lockMs: number;
  readonly statementMs: number;
  /** A limit of this process, not a setting of the server. */
  readonly awayMs: number;
}

/** The limits of processes without a lease. Such a process may delay others by twelve seconds: `idleMs` and `lockMs`. */
const COMMON: ConnectionLimits = { idleMs: 8_000, lockMs: 4_000, statementMs: 30_000, awayMs: 5_000 };

/** A worker with a short lease must not delay others longer than that lease, and must not wait for them longer. */
export const limitsOf = (leaseMs?: number): ConnectionLimits =>
  leaseMs === undefined
    ? COMMON
    : {
        ...COMMON,
        idleMs: Math.min(COMMON.idleMs, Math.ceil(leaseMs * 0.8)),
        lockMs: Math.min(COMMON.lockMs, Math.ceil(leaseMs * 0.4)),
        awayMs: Math.min(COMMON.awayMs, Math.ceil(leaseMs * 0.5)),
      };

/** The client gives up a little later than the server would. So a client that gives up has had no answer from the server at all. */
export const SILENCE_MARGIN_MS = 2_000;

/** A limit that is never reached: Node's longest timer. */
const NEVER_MS = 2 ** 31 - 1;

/** A statement that the client awaits without limit. The server's limit is set by `set local statement_timeout`. */
export const unlimited = <Q extends pg.QueryConfig>(query: Q): Q & { readonly query_timeout: number } => ({
  ...query,
  query_timeout: NEVER_MS,
});

/** A caller's limit for Postgres, in whole milliseconds. It is greater than 0, since 0 would mean no limit. */
export const statementTimeoutOf = (ms: number): number => Math.min(Math.ceil(ms), NEVER_MS);

/** The limits as `set` statements, for connections that cannot set them at their start. */
export const setLimits = (
  { idleMs, lockMs, statementMs }: ConnectionLimits,
  scope: 'local' | 'session',
): string =>
  [
    `set ${scope} idle_in_transaction_session_timeout = ${idleMs}`,
    `set ${scope} lock_timeout = ${lockMs}`,
    `set ${scope} statement_timeout = ${statementMs}`,
    ...(scope === 'local' ? [] : [`set ${scope} tcp_user_timeout = ${idleMs}`]),
  ].join('; ');

/** The same as startup options of a direct connection. */
export const startupOptions = ({ idleMs, lockMs, statementMs }: ConnectionLimits): string =>
  [
    `-c idle_in_transaction_session_timeout=${idleMs}`,
    `-c lock_timeout=${lockMs}`,
    `-c statement_timeout=${statementMs}`,
    '-c tcp_keepalives_idle=4 -c tcp_keepalives_interval=2 -c tcp_keepalives_count=2',
    `-c tcp_user_timeout=${idleMs}`,
  ].join(' ');

export interface DirectOptions {
  readonly connectionString: string;
  readonly applicationName: string;
  /** The longest time for one statement; after it the connection is given up. Infinity: no limit. */
  readonly queryMs: number;
  /** After this time outside of transactions the server ends the session and frees its locks. Default: the server's setting. */
  readonly idleSessionMs?: number;
}

/** The longest time for opening a connection. */
export const CONNECT_MS = 10_000;

/**
 * A separate connection that bypasses a transaction pooler, with the limits of all connections. When a limit ends it, its owner
 * replaces it.
 */
export function createDirectClient({
  connectionString,
  applicationName,
  queryMs,
  idleSessionMs,
}: DirectOptions): pg.Client {
  const client = new pg.Client({
    connectionString,
    application_name: applicationName,
    connectionTimeoutMillis: CONNECT_MS,
    query_timeout: Math.min(Math.ceil(queryMs), NEVER_MS),
    keepAlive: true,
    keepAliveInitialDelayMillis: 4_000,
    options: [
      startupOptions({ ...COMMON, statementMs: queryMs < NEVER_MS ? Math.ceil(queryMs) : 0 }),
      ...(idleSessionMs === undefined ? [] : [`-c idle_session_timeout=${idleSessionMs}`]),
    ].join(' '),
  });
  // The statements of a lost connection fail.
  client.on('error', () => undefined);
  return client;
}

/** The longest time for closing a connection. */
export const GOODBYE_MS = 1_000;

/** Ends a connection, and cuts it off when the server does not answer. Never throws. */
export async function endClient(client: pg.Client): Promise<void> {
  const cut = setTimeout(() => client.connection.stream.destroy(), GOODBYE_MS);
  try {
    await client.end();
  } catch {
    client.connection.stream.destroy();
  } finally {
    clearTimeout(cut);
  }
}
