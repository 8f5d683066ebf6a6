/**
 * Connections to the embedded server. They use a Unix socket in a folder that only the account of the server may enter. So a program that
 * takes the port of a dead server never receives a password. On Windows, connections use the port instead.
 */
import { setTimeout as delay } from 'node:timers/promises';
import pg from 'pg';
import { ADMIN_ROLE, type Cluster, ROLE } from './cluster.js';

/** How long opening a connection to the server may take. */
const CONNECT_DEADLINE_MS = 2_000;
/** How long one query may take. */
const ASK_DEADLINE_MS = 10_000;

/** The account of a connection: the superuser of the server, or the role that only owns the database. */
export type Account = 'admin' | 'application';

export function connectionString(
  cluster: Cluster,
  port: number,
  { account, database }: { readonly account: Account; readonly database: string },
): string {
  const [role, password] =
    account === 'admin' ? [ADMIN_ROLE, cluster.adminPassword] : [ROLE, cluster.password];
  const host = cluster.socketDir === undefined ? '127.0.0.1' : encodeURIComponent(cluster.socketDir);
  return `postgres://${role}:${password}@${host}:${port}/${database}`;
}

export function adminOf(cluster: Cluster, port: number, database: string): pg.Client {
  const client = new pg.Client({
    connectionString: connectionString(cluster, port, { account: 'admin', database }),
    connectionTimeoutMillis: CONNECT_DEADLINE_MS,
    query_timeout: ASK_DEADLINE_MS,
  });
  client.on('error', () => {}); // The query fails when the server goes away.
  return client;
}

/** Closes the connection. Waits at most a second, since a stopped server never answers. */
export const sayGoodbye = (client: pg.Client): Promise<unknown> =>
  Promise.race([client.end().catch(() => {}), delay(1_000, undefined, { ref: false })]);
