/** Starts the process of a server. The server is in a separate session (E3, server.ts) and writes to the log in its folder. */
import { type ChildProcess, spawn } from 'node:child_process';
import { closeSync, openSync, readFileSync, statSync } from 'node:fs';
import { rename } from 'node:fs/promises';
import { join } from 'node:path';
import { KernelError } from '@boxcar/kernel/base';
import type { Cluster } from './cluster.js';
import { serverEnvironment } from './config.js';
import type { NativePostgres } from './native-postgres.js';
import { serverAccount } from './process.js';

const LOG_LIMIT_BYTES = 10_000_000;

export async function spawnServer(
  cluster: Cluster,
  native: NativePostgres,
  port: number,
  ephemeral: boolean,
): Promise<{ child: ChildProcess; logOffset: number }> {
  const logFile = join(cluster.folder, 'server.log');
  const size = statSync(logFile, { throwIfNoEntry: false })?.size ?? 0;
  if (size > LOG_LIMIT_BYTES) await rename(logFile, `${logFile}.old`).catch(() => {});
  const logOffset = size > LOG_LIMIT_BYTES ? 0 : size;
  const settings: Record<string, string | number> = {
    listen_addresses: '127.0.0.1',
    port,
    unix_socket_directories: cluster.socketDir ?? '',
    max_connections: 200,
    shared_buffers: '128MB',
    max_wal_size: '1GB',
    timezone: 'UTC',
    log_timezone: 'UTC',
    lc_messages: 'C',
    log_checkpoints: 'off',
    ...(ephemeral
      ? {
          fsync: 'off',
          synchronous_commit: 'off',
          full_page_writes: 'off',
          wal_level: 'minimal',
          max_wal_senders: 0,
          // Several concurrent test files open dozens of connections each, and connections that were cut off end seconds later.
          max_connections: 500,
          // If autovacuum analyzed a database between two tests, while its tables are empty, Postgres would plan later queries for empty
          // tables.
          autovacuum: 'off',
        }
      : {}),
  };
  const out = openSync(logFile, 'a', 0o600);
  try {
    const child = spawn(
      native.postgres,
      [
        '-D',
        cluster.dataDir,
        ...Object.entries(settings).flatMap(([name, value]) => ['-c', `${name}=${value}`]),
      ],
      {
        cwd: cluster.dataDir,
        env: serverEnvironment(),
        stdio: ['ignore', out, out],
        detached: true,
        ...serverAccount(),
      },
    );
    await new Promise<void>((settle, fail) => {
      child.once('spawn', settle);
      child.once('error', (cause) => {
        fail(
          new KernelError('database_unavailable', {
            message: `The embedded Postgres cannot be run: ${cause.message}.`,
            details: { folder: cluster.folder },
            cause,
          }),
        );
      });
    });
    child.unref();
    return { child, logOffset };
  } finally {
    closeSync(out);
  }
}

export function readLog(folder: string, offset: number): string {
  return readFileSync(join(folder, 'server.log')).subarray(offset).toString();
}
