/** The database of commands that only read rows. */

import type { Config } from '@boxcar/host/config';
import { migrateServer, openServer, untilReachable } from '@boxcar/host/open';
import type { Log } from '@boxcar/runtime/log';
import type { ReadReplica } from '@boxcar/store';
import { checkSchemaVersion, createPool, endPool, type PoolOptions } from '@boxcar/store/health';

/** A pool for commands that only read rows: no queues, no models. */
export interface Reader extends AsyncDisposable {
  readonly pool: ReturnType<typeof createPool>;
  /**
   * Reads a report. It uses the standby of `DATABASE_READ_URL` if there is one and it has replayed everything from the primary, else
   * `pool`. A note gives the reason when the standby was not used. `ask` may be called twice, with either pool, and must not write.
   */
  report<T>(ask: (pool: Reader['pool']) => Promise<T>): Promise<T>;
}

/** The time limit of one statement in commands that read or change many rows: purge, erase. */
export const LONG_STATEMENT_MS = 30 * 60_000;

/** @throws KernelError as `openStack` does. */
export async function openReader(
  config: Config,
  log: Log,
  options: Pick<PoolOptions, 'statementMs'> = {},
): Promise<Reader> {
  const wait = { waitMs: config.databaseWaitMs, log };
  const server = await openServer(config, log);
  const pool = createPool({
    connectionString: server.databaseUrl,
    max: 2,
    applicationName: 'boxcar-cli',
    ...options,
  });
  let replica: ReadReplica | undefined;
  const report = async <T>(ask: (from: Reader['pool']) => Promise<T>): Promise<T> => {
    if (config.readUrl === undefined) return ask(pool);
    const store = await import('@boxcar/store');
    replica ??= new store.ReadReplica({
      primary: pool,
      url: config.readUrl,
      maxConnections: 2,
      applicationName: 'boxcar-cli',
      onPrimary: (facts) => log('warn', 'replica.not_read', { ...facts }),
    });
    return (await replica.read(ask)).value;
  };
  const close = async (): Promise<void> => {
    await replica?.close();
    await endPool(pool);
    await server.close();
  };
  try {
    if (server.isEmbedded) await migrateServer(server, wait);
    await untilReachable(() => checkSchemaVersion(pool), wait);
    return { pool, report, [Symbol.asyncDispose]: close };
  } catch (error) {
    await close();
    throw error;
  }
}
