/** The connection pool of a process: its planner settings, the limits of its connections, and the time of the server's last answer. */
import { checkDuration, checkWholeNumber, parseJson } from '@boxcar/kernel/base';
import pg from 'pg';
import {
  CONNECT_MS,
  type ConnectionLimits,
  createDirectClient,
  endClient,
  GOODBYE_MS,
  limitsOf,
  SILENCE_MARGIN_MS,
  setLimits,
  startupOptions,
} from './connection-limits.js';
import { outsideHandlers, refuseNested } from './open-transactions.js';
import { poolWaits } from './pool-waits.js';

export interface PoolOptions {
  readonly connectionString: string;
  /** The largest number of connections. */
  readonly max?: number;
  readonly applicationName?: string;
  /**
   * True for a connection through a transaction pooler, which accepts no settings at the start of a connection. Then the server's own
   * planner settings apply, and each transaction sets its limits itself, in the round trip of its begin. A single statement becomes a
   * transaction for this purpose, still in one round trip.
   */
  readonly isPooled?: boolean;
  /** The longest time for one statement, for commands that read or change much. Default 30,000. */
  readonly statementMs?: number;
}

interface PoolState {
  readonly connectionString: string;
  readonly isPooled: boolean;
  limits: ConnectionLimits;
  /** The leases of the workers that use the pool. */
  readonly leases: Set<{ readonly leaseMs: number }>;
  readonly clients: Set<pg.PoolClient>;
  /** When the server last answered on any connection, by the monotonic clock. */
  answeredAt: number;
  /** The number of answers from the server, by connection. */
  readonly answers: WeakMap<pg.PoolClient, number>;
  /** Connections that wait for an answer: how many answers they have had, and the time of the first check that found this number. */
  readonly waiting: WeakMap<pg.PoolClient, { readonly since: number; readonly answers: number }>;
}

const states = new WeakMap<pg.Pool, PoolState>();

/**
 * Every statement here reads by key or by a narrow index. But prepared plans are made while tables are small, when reading a whole
 * table looks cheap, and they are kept while the tables grow. Without these settings, the turns of a fresh database took 27 ms to read
 * a context of two cards. Compiling a plan costs more than running it. So does planning again for each set of values, which Postgres
 * prefers for short lists: 1.2 instead of 0.5 ms to read a small view.
 */
const PLANNER =
  '-c default_transaction_isolation=read\\ committed -c enable_seqscan=off -c enable_hashjoin=off -c enable_mergejoin=off -c jit=off -c plan_cache_mode=force_generic_plan';

const optionsOf = (limits: ConnectionLimits): string => `${PLANNER} ${startupOptions(limits)}`;

/** The options with which a connection was opened. The options of its pool may have changed while it was being opened. */
const openedWith = (client: pg.PoolClient): unknown =>
  (Reflect.get(client, 'connectionParameters') as { readonly options?: unknown }).options;

type Connected = (
  error: Error | undefined,
  client: pg.PoolClient | undefined,
  done: (release?: unknown) => void,
) => void;

/** A connection outlives the code that opens it, so its later events must not run in the async context of that code. */
class DetachedClient extends pg.Client {
  constructor(config?: pg.ClientConfig) {
    super(config);
    const connect = this.connect.bind(this) as (...given: unknown[]) => unknown;
    const detached = (...given: unknown[]): unknown => outsideHandlers(() => connect(...given));
    this.connect = detached as pg.Client['connect'];
  }
}

/** A pool that refuses nested connections and records waits for a connection. Its `query` takes connections through `connect`. */
class WatchedPool extends pg.Pool {
  constructor(options: pg.PoolConfig, isPooled: boolean) {
    super(options);
    if (isPooled) this.query = this.#queryLimited as pg.Pool['query'];
  }

  async #queryLimited(config: pg.QueryConfig | string, values?: unknown[]): Promise<pg.QueryResult> {
    const query = typeof config === 'string' ? { text: config } : config;
    const client = await this.connect();
    let broken: Error | undefined;
    try {
      return await queryLimited(this, client, values === undefined ? query : { ...query, values });
    } catch (error) {
      broken = error instanceof Error ? error : new Error(String(error));
      throw error;
    } finally {
      client.release(broken);
    }
  }

  override connect(): Promise<pg.PoolClient>;
  override connect(connected: Connected): void;
  override connect(connected?: Connected): Promise<pg.PoolClient> | undefined {
    try {
      refuseNested(this);
    } catch (error) {
      if (connected === undefined) return Promise.reject(error);
      connected(error instanceof Error ? error : new Error(String(error)), undefined, ignoreLoss);
      return undefined;
    }
    const done = this.idleCount > this.waitingCount ? undefined : poolWaits(this).begin();
    if (connected === undefined) {
      const connecting = super.connect();
      return done === undefined ? connecting : connecting.finally(done);
    }
    super.connect((error, client, release) => {
      done?.();
      connected(error, client, release);
    });
    return undefined;
  }
}

/**
 * The type parsers for rows of the kernel, independent of the type settings of a caller's own client. Contents keep the key order in
 * which they were written.
 */
export const ROW_TYPES: pg.CustomTypesConfig = {
  getTypeParser: (oid, format) =>
    oid === pg.types.builtins.JSON && format !== 'binary' ? parseJson : pg.types.getTypeParser(oid, format),
};

/**
 * Creates a pool with the kernel's settings. The caller ends it. The loss of a connection, idle or in use, never ends the process.
 *
 * @throws KernelError `bad_request` for a `max` or `statementMs` that is not a valid number.
 */
export function createPool(options: PoolOptions): pg.Pool {
  const common = limitsOf();
  if (options.statementMs !== undefined) checkDuration(options.statementMs, 'statementMs');
  if (options.max !== undefined) checkWholeNumber(options.max, 'max', { min: 1, max: 10_000 });
  const limits = { ...common, statementMs: options.statementMs ?? common.statementMs };
  const isPooled = options.isPooled === true;
  const pool = new WatchedPool(
    {
      Client: DetachedClient,
      types: ROW_TYPES,
      connectionString: options.connectionString,
      max: options.max ?? 6,
      application_name: options.applicationName ?? 'boxcar',
      connectionTimeoutMillis: CONNECT_MS,
      keepAlive: true,
      keepAliveInitialDelayMillis: 4_000,
      // The server would have ended the statement earlier. So a connection that reaches this limit is silent, and is given up.
      query_timeout: limits.statementMs + SILENCE_MARGIN_MS,
      // Statements sent together on one connection share a round trip.
      pipeline: true,
      ...(isPooled ? {} : { options: optionsOf(limits) }),
    },
    isPooled,
  );
  const state: PoolState = {
    connectionString: options.connectionString,
    isPooled,
    limits,
    leases: new Set(),
    clients: new Set(),
    answeredAt: performance.now(),
    answers: new WeakMap(),
    waiting: new WeakMap(),
  };
  states.set(pool, state);
  /** The limits that were sent to connections opened before the limits of the pool changed. */
  const told = new WeakMap<pg.PoolClient, ConnectionLimits>();
  // A server restart breaks idle connections; the pool replaces them on the next use.
  pool.on('error', ignoreLoss);
  pool.on('connect', (client) => {
    // The listener is added at once: a single read of a new connection may contain both its readiness and its end.
    client.on('error', ignoreLoss);
    if (openedWith(client) === optionsOf(state.limits)) told.set(client, state.limits);
    state.clients.add(client);
    state.answeredAt = performance.now();
    client.connection.on('readyForQuery', () => {
      state.answeredAt = performance.now();
      state.answers.set(client, (state.answers.get(client) ?? 0) + 1);
    });
  });
  pool.on('remove', (client) => state.clients.delete(client));
  pool.on('acquire', (client) => {
    if (isPooled || told.get(client) === state.limits) return;
    told.set(client, state.limits);
    // Sent with the first statement.
    client.query(setLimits(state.limits, 'session')).catch(ignoreLoss);
  });
  return pool;
}

// The loss of a checked-out connection fails its statement and also emits an event; without a listener it ends the process.
const ignoreLoss = (): void => undefined;

/**
 * Decisions are made by statements that begin after a lock. At another isolation level these statements would still see the rows as
 * they were before the lock. Each transaction sets the level itself, because a connection through a pooler has the level of the server.
 * A single statement is correct at any level.
 */
const BEGIN = 'begin isolation level read committed';

/** The statements that begin a transaction on this pool. */
export function beginOn(pool: pg.Pool): string {
  const state = states.get(pool);
  return state?.isPooled === true ? `${BEGIN}; ${setLimits(state.limits, 'local')}` : BEGIN;
}

/**
 * Runs one statement with the limits of the pool. Through a transaction pooler it becomes a transaction that is sent in one message;
 * elsewhere the connection already has its limits.
 */
export async function queryLimited<R extends pg.QueryResultRow>(
  pool: pg.Pool,
  client: { query<A extends pg.QueryResultRow>(config: pg.QueryConfig): Promise<pg.QueryResult<A>> },
  config: pg.QueryConfig,
): Promise<pg.QueryResult<R>> {
  if (states.get(pool)?.isPooled !== true) return client.query<R>(config);
  const begun = client.query({ text: beginOn(pool) });
  const asked = client.query<R>(config);
  const ended = client.query({ text: 'commit' });
  const settled = await Promise.allSettled([begun, asked, ended]);
  // The first failure causes the others.
  for (const one of settled) if (one.status === 'rejected') throw one.reason;
  return asked;
}

/**
 * Registers a worker with this lease: the limits of the pool follow the shortest lease of its workers. Has no effect on a pool that
 * `createPool` did not make.
 *
 * @returns Dispose of this object when the worker has ended.
 */
export function limitByLease(pool: pg.Pool, leaseMs: number): Disposable {
  const state = states.get(pool);
  if (state === undefined) return { [Symbol.dispose]: () => undefined };
  const lease = { leaseMs };
  state.leases.add(lease);
  followLeases(pool, state);
  return {
    [Symbol.dispose]: () => {
      state.leases.delete(lease);
      followLeases(pool, state);
    },
  };
}

function followLeases(pool: pg.Pool, state: PoolState): void {
  const leases = [...state.leases].map(({ leaseMs }) => leaseMs);
  const { idleMs, lockMs, awayMs } = limitsOf(leases.length === 0 ? undefined : Math.min(...leases));
  const { limits } = state;
  if (idleMs === limits.idleMs && lockMs === limits.lockMs && awayMs === limits.awayMs) return;
  state.limits = { ...limits, idleMs, lockMs, awayMs };
  if (!state.isPooled) pool.options.options = optionsOf(state.limits);
}

/** The limits of the transactions of this pool. */
export const limitsOn = (pool: pg.Pool): ConnectionLimits => states.get(pool)?.limits ?? limitsOf();

/** The time since the server's last answer on the pool. 0 for a pool that `createPool` did not make. */
export function silentFor(pool: pg.Pool): number {
  const state = states.get(pool);
  return state === undefined ? 0 : performance.now() - state.answeredAt;
}

/** The id of the connection's server process. */
const pidOf = (client: pg.PoolClient): unknown => Reflect.get(client, 'processID');

/** True when a statement was sent on the connection and has no complete answer yet. */
const isWaiting = (client: pg.PoolClient): boolean => Reflect.get(client, 'readyForQuery') !== true;

/** Connections that have waited for the same answer for `waitedMs`, counted from the first check that found the wait. */
function findLate(state: PoolState, waitedMs: number): readonly pg.PoolClient[] {
  const now = performance.now();
  return [...state.clients].filter((client) => {
    const answers = state.answers.get(client) ?? 0;
    const known = state.waiting.get(client);
    if (!isWaiting(client)) state.waiting.delete(client);
    else if (known?.answers !== answers) state.waiting.set(client, { since: now, answers });
    else return now - known.since >= waitedMs;
    return false;
  });
}

/**
 * Closes the connections that have waited for an answer for `waitedMs` although the server does no work for them: the statement or its
 * answer was lost on the way. Connections with long statements stay open. Call it several times in `waitedMs`. It asks the server on a
 * separate connection, since all connections of the pool may be silent. Through a transaction pooler the server's sessions are not
 * known, and no connection is closed.
 *
 * @returns The number of closed connections.
 */
export async function dropSilent(pool: pg.Pool, waitedMs: number): Promise<number> {
  const state = states.get(pool);
  const late = state === undefined || state.isPooled ? [] : findLate(state, waitedMs);
  if (state === undefined || late.length === 0) return 0;
  const active = await askOwn(state.connectionString, late.map(pidOf));
  const now = performance.now();
  // Sessions that are working are checked again after the same time.
  for (const client of late)
    if (active.has(pidOf(client)))
      state.waiting.set(client, { since: now, answers: state.answers.get(client) ?? 0 });
  const stillLate = new Set(findLate(state, waitedMs));
  const silent = late.filter((client) => stillLate.has(client));
  for (const client of silent) client.connection.stream.destroy();
  return silent.length;
}

/**
 * Closes all connections of a pool except those that the server is working for: a long statement is not silence. Through a transaction
 * pooler the server's sessions are not known, and all connections are closed.
 *
 * @param ask - A connection outside of the pool. @throws when the server cannot be asked on it; then no connection was closed.
 * @returns The number of closed connections, and the number of connections that the server is working for.
 */
export async function dropIdle(
  pool: pg.Pool,
  ask: Pick<pg.ClientBase, 'query'>,
): Promise<{ readonly dropped: number; readonly active: number }> {
  const state = states.get(pool);
  if (state === undefined || state.isPooled) return { dropped: dropConnections(pool), active: 0 };
  const before = [...state.clients];
  const active = await findActive(ask, before.map(pidOf));
  const silent = before.filter((client) => state.clients.has(client) && !active.has(pidOf(client)));
  for (const client of silent) client.connection.stream.destroy();
  return { dropped: silent.length, active: active.size };
}

/** The sessions that work on a statement. A session that only waits for its client to read does not count. */
async function findActive(
  ask: Pick<pg.ClientBase, 'query'>,
  pids: readonly unknown[],
): Promise<ReadonlySet<unknown>> {
  const { rows } = await ask.query<{ pid: number }>(
    `
      select pid
      from pg_stat_activity
      where pid = any ($1::int[]) and state = 'active' and wait_event is distinct from 'ClientWrite'`,
    [pids],
  );
  return new Set(rows.map(({ pid }) => pid));
}

/** `findActive` on a separate connection. */
async function askOwn(connectionString: string, pids: readonly unknown[]): Promise<ReadonlySet<unknown>> {
  const client = createDirectClient({ connectionString, applicationName: 'boxcar-silence', queryMs: ASK_MS });
  try {
    await client.connect();
    return await findActive(client, pids);
  } finally {
    await endClient(client);
  }
}

/** The longest wait for the server's answer to this question. */
const ASK_MS = 2_000;

/** True when all connections are in use and none of them waits for the server: their users do something else. */
export function isExhausted(pool: pg.Pool): boolean {
  const clients = [...(states.get(pool)?.clients ?? [])];
  return (
    clients.length >= pool.options.max &&
    pool.idleCount === 0 &&
    clients.every((client) => !isWaiting(client))
  );
}

/** Closes all connections of a pool. Waiting statements fail as `database_unavailable`. The next use opens new connections. */
export function dropConnections(pool: pg.Pool): number {
  const clients = [...(states.get(pool)?.clients ?? [])];
  for (const client of clients) client.connection.stream.destroy();
  return clients.length;
}

/** Ends a pool. Connections that are still in use, or whose server does not answer, are closed after `GOODBYE_MS`. */
export async function endPool(pool: pg.Pool): Promise<void> {
  const ended = pool.end();
  const cut = setTimeout(() => dropConnections(pool), GOODBYE_MS);
  try {
    await ended;
  } finally {
    clearTimeout(cut);
  }
}
