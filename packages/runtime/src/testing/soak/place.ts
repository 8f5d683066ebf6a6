import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { overTcp, startEmbeddedPostgres } from '@boxcar/embedded';
import { migrate } from '@boxcar/store';
import { findProgram, startRedis, type TestRedis } from '@boxcar/testkit/standalone';
import { migrateQueues } from '../../queue/queues.js';

/** The servers of a soak. */
export interface SoakPlace {
  /** Migrated, and otherwise empty. */
  readonly databaseUrl: string;
  /** Undefined when the queues are in the database. */
  readonly redis: TestRedis | undefined;
  /** Kills the server and starts it again. Undefined when the soak does not own the server. */
  readonly restartPostgres: (() => Promise<void>) | undefined;
  close(): Promise<void>;
}

/** Starts servers for the soak and removes them after it. */
export async function openPlace(queue: 'redis' | 'postgres'): Promise<SoakPlace> {
  const redis = queue === 'redis' ? await startRedis(findRedis()) : undefined;
  // A durable server: it is killed, and must keep everything that it has confirmed.
  const folder = mkdtempSync(join(tmpdir(), 'boxcar-soak-'));
  const remove = (): void => rmSync(folder, { recursive: true, force: true, maxRetries: 5 });
  let server = await startEmbeddedPostgres({ dataDir: folder });
  // When the process ends early, the server's own exit handler, which was registered earlier, stops the server first.
  process.once('exit', remove);
  const { port } = server;
  const databaseUrl = overTcp(server.url);
  await migrate(databaseUrl);
  await migrateQueues(databaseUrl);
  return {
    databaseUrl,
    redis,
    restartPostgres: async () => {
      process.kill(server.pid, 'SIGKILL');
      await server.stop();
      server = await startEmbeddedPostgres({ dataDir: folder, port });
    },
    close: async () => {
      await redis?.close();
      await server.stop();
      process.off('exit', remove);
      remove();
    },
  };
}

function findRedis(): string {
  const path = findProgram('redis-server');
  if (path === undefined) throw new Error('no redis-server on the PATH; use --queue postgres');
  return path;
}
