/** Connections to the embedded server. */
import { setTimeout as delay } from 'node:timers/promises';
import pg from 'pg';
import { ROLE } from './cluster.js';

/** How long opening a connection to the server may take. */
const CONNECT_DEADLINE_MS = 2_000;
/** How long one query may take. */
const ASK_DEADLINE_MS = 10_000;

export function connectionString(password: string, port: number, database: string): string {
  return `postgres://${ROLE}:${password}@127.0.0.1:${port}/${database}`;
}

export function clientOf(password: string, port: number): pg.Client {
  const client = new pg.Client({
    connectionString: connectionString(password, port, 'postgres'),
    connectionTimeoutMillis: CONNECT_DEADLINE_MS,
    query_timeout: ASK_DEADLINE_MS,
  });
  client.on('error', () => {}); // The query fails when the server goes away.
  return client;
}

/** Closes the connection. Does not wait longer than a second, since a stopped server never answers. */
export const sayGoodbye = (client: pg.Client): Promise<unknown> =>
  Promise.race([client.end().catch(() => {}), delay(1_000, undefined, { ref: false })]);
