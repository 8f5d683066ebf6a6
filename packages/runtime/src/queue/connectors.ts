/**
 * The connections of queues and workers: how many, how long they wait, and how they are closed (B2 to B5 of
 * `queues.ts`).
 */
import { setTimeout as delay } from 'node:timers/promises';
import { isTransient, limitsOf, SILENCE_MARGIN_MS, startupOptions, toDatabaseError } from '@boxcar/store';
import { type Cluster, Redis, type RedisOptions } from 'ioredis';
import pg from 'pg';
import { ClientGroup } from './client-group.js';
import { within } from './job-queue.js';

/** BullMQ keeps its tables in a schema of its own. */
export const QUEUE_SCHEMA = 'bullmq';

export const RETRY_MIN_MS = 50;
export const RETRY_MAX_MS = 1_000;
/** How many Postgres connections the statements of all queues of a process share. */
const QUEUE_CONNECTIONS = 7;
/** How long a clean disconnect from a server may take. */
export const GOODBYE_MS = 2_000;
/**
 * A Redis connection that is silent for this time although an answer is due is closed; ioredis opens a new connection.
 */
export const SILENCE_MS = 5_000;
/**
 * The limit of the connection on which a BullMQ worker waits for jobs. A wait lasts 10 s at most, and BullMQ replaces the
 * connection 1 s after the end of a wait without an answer. BullMQ does not watch the start of a connection; this limit
 * does.
 */
export const BLOCKING_SILENCE_MS = 15_000;
/** The end of a blocking connection is not noticed; the connection then keeps the process alive for this time. */
export const DISCONNECT_MS = 50;

/** The source of BullMQ's connections: one for all queues, and one for each worker. */
export interface Connector<C> {
  queue(): C;
  worker(): WorkerConnection<C>;
  close(): Promise<void>;
}

export interface WorkerConnection<C> {
  readonly connection: C;
  /**
   * Call after the worker has closed: closes the connections that it still holds, and refuses it any further
   * connection.
   */
  end(): void;
}

/**
 * The connection of a worker to the pool of its process. Its statements are repeated while the server is away (B2), until
 * the worker has closed. BullMQ can check out a connection for LISTEN after the worker has closed, when the worker was
 * closed while it started; it never returns that connection.
 */
function patientPool(pool: pg.Pool): WorkerConnection<pg.Pool> {
  let isEnded = false;
  const held = new Set<pg.PoolClient>();
  // BullMQ never removes its listeners.
  const listeners = new Set<(error: Error) => void>();
  pool.options.max += 1;
  const query = async (text: string, values: unknown[]): Promise<pg.QueryResult> => {
    for (let pauseMs = RETRY_MIN_MS; ; pauseMs = Math.min(pauseMs * 2, RETRY_MAX_MS)) {
      try {
        return await pool.query(text, values);
      } catch (error) {
        if (isEnded || !isTransient(toDatabaseError(error))) throw error;
        await delay(pauseMs, undefined, { ref: false });
      }
    }
  };
  const connect = async (): Promise<pg.PoolClient> => {
    const client = await pool.connect();
    const release = client.release.bind(client);
    if (isEnded) {
      release(true);
      throw new Error('The worker of this queue has closed.');
    }
    held.add(client);
    client.release = (how) => {
      held.delete(client);
      release(how);
    };
    return client;
  };
  const patient = {
    query,
    connect,
    end: async () => undefined,
    on: (event: 'error', listener: (error: Error) => void) => {
      listeners.add(listener);
      return pool.on(event, listener);
    },
    options: pool.options,
  };
  return {
    connection: patient as unknown as pg.Pool,
    end: () => {
      if (isEnded) return;
      isEnded = true;
      for (const client of held) client.release(true);
      for (const listener of listeners) pool.off('error', listener);
      pool.options.max -= 1;
    },
  };
}

export function connectPostgres(url: string): Connector<pg.Pool> {
  const limits = limitsOf();
  // One pool for all queues of the process. Each worker keeps a connection for LISTEN and adds one to this limit.
  const pool = new pg.Pool({
    connectionString: url,
    max: QUEUE_CONNECTIONS,
    // The transactions of BullMQ hold locks too.
    options: `-c search_path=${QUEUE_SCHEMA} ${startupOptions(limits)}`,
    query_timeout: limits.statementMs + SILENCE_MARGIN_MS,
    keepAlive: true,
    connectionTimeoutMillis: 5_000,
    application_name: 'boxcar-queues',
  });
  // Each queue and worker listens for errors of its own.
  pool.setMaxListeners(0).on('error', () => undefined);
  const clients = new Set<pg.PoolClient>();
  pool.on('connect', (client) => {
    // BullMQ checks connections out and does not always listen for their errors.
    client.on('error', () => undefined);
    clients.add(client);
  });
  pool.on('remove', (client) => clients.delete(client));
  return {
    queue: () => pool,
    worker: () => patientPool(pool),
    close: async () => {
      const ended = pool.end();
      await within(ended, GOODBYE_MS).catch(() => {
        // A worker that could not disconnect cleanly still holds its connections.
        for (const client of clients) client.connection.stream.destroy();
      });
    },
  };
}

export type ClientUse = 'queues' | 'worker';

/**
 * One client for all queues, and a client for each worker. BullMQ opens a second client for each worker, and waits for
 * jobs on it.
 */
export function connectClients<C extends Redis | Cluster>(
  open: (use: ClientUse, group: ClientGroup<C>) => C,
): Connector<C> {
  const groups = new Set<ClientGroup<C>>();
  let isClosed = false;
  const openGroup = (use: ClientUse): WorkerConnection<C> => {
    if (isClosed) throw new Error('The connections to Redis are closed.');
    const group = new ClientGroup<C>();
    groups.add(group);
    return {
      connection: open(use, group),
      end: () => {
        groups.delete(group);
        group.close();
      },
    };
  };
  let shared: C | undefined;
  return {
    queue: () => (shared ??= openGroup('queues').connection),
    worker: () => openGroup('worker'),
    close: async () => {
      isClosed = true;
      for (const group of groups) group.close();
    },
  };
}

export function connectRedis(url: string): Connector<Redis> {
  const track = (client: Redis, group: ClientGroup<Redis>): Redis => {
    const duplicate = client.duplicate.bind(client);
    client.duplicate = (options) =>
      track(duplicate({ ...options, socketTimeout: BLOCKING_SILENCE_MS }), group);
    return group.add(client);
  };
  // B2 and B3.
  const optionsOf = (use: ClientUse): RedisOptions =>
    use === 'worker'
      ? { maxRetriesPerRequest: null }
      : { enableOfflineQueue: false, maxRetriesPerRequest: 1, commandTimeout: SILENCE_MS };
  return connectClients((use, group) =>
    track(
      new Redis(url, {
        ...optionsOf(use),
        replyMapping: 'legacy',
        // Runs only while a command waits for its answer: an idle connection costs nothing. The new connection sends such
        // a command again, so the command may take effect twice. BullMQ refuses to end a job a second time and to add an
        // id twice. A job whose delivery was lost is delivered again after its lock ends, and the sweep rings for its
        // turn again.
        socketTimeout: SILENCE_MS,
        disconnectTimeout: DISCONNECT_MS,
        retryStrategy: (times: number) => Math.min(times * RETRY_MIN_MS, RETRY_MAX_MS),
      }),
      group,
    ),
  );
}
