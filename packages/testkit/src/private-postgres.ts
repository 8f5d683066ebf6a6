import { type EmbeddedPostgres, overTcp, startEmbeddedPostgres } from '@boxcar/embedded';
import { migrate } from '@boxcar/store';
import { closeAtEnd } from './lifecycle.js';

/** A server for a single test, so that the test may stop it. */
export interface PrivatePostgres extends AsyncDisposable {
  /** The migrated database `boxcar`, as the role that owns it. */
  readonly url: string;
  /** The same database, as the superuser: for settings and extensions of the server. */
  readonly adminUrl: string;
  /** Shuts the server down, which ends every connection, and starts it again on the same data and port. */
  restart(whileAway?: () => Promise<void>): Promise<void>;
  close(): Promise<void>;
}

export async function privatePostgres(): Promise<PrivatePostgres> {
  let server: EmbeddedPostgres = await startEmbeddedPostgres({ ephemeral: true });
  const { dataDir, port } = server;
  const url = overTcp(server.url);
  const close = closeAtEnd(() => server.stop());
  await migrate(url);
  const adminUrl = overTcp(server.adminUrl);
  return {
    url,
    adminUrl,
    restart: async (whileAway) => {
      await server.stop({ keepData: true });
      try {
        await whileAway?.();
      } finally {
        server = await startEmbeddedPostgres({ ephemeral: true, dataDir, port });
      }
    },
    close,
    [Symbol.asyncDispose]: close,
  };
}
