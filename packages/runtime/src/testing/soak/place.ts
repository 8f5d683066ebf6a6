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
  /** Undefined when the queues live in the database. */
  readonly redis: TestRedis | undefined;
  /** Kills the server and starts it again; undefined when it is not ours. */
  readonly restartPostgres: (() => Promise<void>) | undefined;
  close(): Promise<void>;
}

/** Servers of one's own, started for the soak and removed after it. */
export async function openPlace(queue: 'redis' | 'postgres'): Promise<SoakPlace> {
  const redis = queue === 'redis' ? await startRedis(findRedis()) : undefined;
  // A durable one: it is killed, and must remember what it has confirmed.
  const folder = mkdtempSync(join(tmpdir(), 'boxcar-soak-'));
  const remove = (): void => rmSync(folder, { recursive: true, force: true, maxRetries: 5 });
  let server = await startEmbeddedPostgres({ dataDir: folder });
  // When the process ends early, the server's own handler, which is older, stops it before.
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
