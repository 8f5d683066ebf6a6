/** The database of commands that only read rows. */

import type { Config } from '@boxcar/host/config';
import { migrateServer, openServer, untilReachable } from '@boxcar/host/open';
import type { Log } from '@boxcar/runtime/log';
import { checkSchemaVersion, createPool, endPool, type PoolOptions } from '@boxcar/store/health';

/** A pool for commands that only read rows: no queues, no models. */
export interface Reader extends AsyncDisposable {
  readonly pool: ReturnType<typeof createPool>;
}

/** How long one statement may take in commands that read or change many rows: purge, erase. */
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
  const close = async (): Promise<void> => {
    await endPool(pool);
    await server.close();
  };
  try {
    if (server.isEmbedded) await migrateServer(server, wait);
    await untilReachable(() => checkSchemaVersion(pool), wait);
    return { pool, [Symbol.asyncDispose]: close };
  } catch (error) {
    await close();
    throw error;
  }
}
