/** Handles servers that are not visible under the process id of their lock file, but may still be alive (L1). */
import { connect } from 'node:net';
import { join } from 'node:path';
import { KernelError } from '@boxcar/kernel/base';
import { hasLiveMemory, lockFileOf, type Postmaster, unseenPostmaster } from './postmaster.js';
import { codeOf } from './process.js';

/** How long opening a connection may take. */
const CONNECT_DEADLINE_MS = 2_000;

/**
 * Whether a program listens at the address of the lock file's server: at its socket in this folder, or at the port of a server without a
 * socket. Nothing is sent, since a program of another account may have taken the port. A program that does not answer, or is starting or
 * stopping, may also be that server.
 */
export function mayAnswer(folder: string, { port, hasSocket }: Postmaster): Promise<boolean> {
  if (!Number.isInteger(port) || port <= 0) return Promise.resolve(false);
  return new Promise((settle) => {
    const probe = hasSocket
      ? connect(join(folder, 'socket', `.s.PGSQL.${port}`))
      : connect(port, '127.0.0.1');
    const end = (answer: boolean): void => {
      probe.destroy();
      settle(answer);
    };
    probe.setTimeout(CONNECT_DEADLINE_MS, () => end(true));
    probe.once('connect', () => end(true));
    // Only a free port, a missing socket, or a socket without a listener proves that no server runs.
    probe.once('error', (error) => end(!['ECONNREFUSED', 'ENOENT'].includes(codeOf(error) ?? '')));
  });
}

/** The error for a server that may be in a container: processes inside and outside of a container do not see each other. */
export function serverOutOfSight(dataDir: string, { pid, port }: Postmaster): KernelError {
  const lockFile = lockFileOf(dataDir);
  return new KernelError('database_unavailable', {
    message: `${lockFile} names process ${pid}, which cannot be seen from here (is it in another container?), but a server may still work on that folder at port ${port}; stop that server or use another BOXCAR_DATA_DIR. Remove the file only if you know that no server runs.`,
    details: { folder: dataDir, file: lockFile, pid, port },
  });
}

/** @throws KernelError `database_unavailable` when a lock file names a process that is not visible, and its server may be alive. */
export async function assertNoneOutOfSight(folder: string, dataDir: string): Promise<void> {
  const unseen = unseenPostmaster(dataDir);
  if (unseen === undefined) return;
  if (hasLiveMemory(unseen) || (await mayAnswer(folder, unseen))) throw serverOutOfSight(dataDir, unseen);
}
