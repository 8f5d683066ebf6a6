/** Servers that are not visible under the process id of their lock file, but may still be alive (L1). */
import { KernelError } from '@boxcar/kernel';
import pg from 'pg';
import { readPassword } from './cluster.js';
import { hasLiveMemory, lockFileOf, type Postmaster, unseenPostmaster } from './postmaster.js';
import { codeOf } from './process.js';
import { clientOf, sayGoodbye } from './server-client.js';

/**
 * Whether the server at the port of a lock file accepts our password, and so is the server of this cluster: the password is random.
 * A server that does not answer, or is starting or stopping, may also be that server.
 */
export async function mayAnswer(password: string, { port }: Postmaster): Promise<boolean> {
  if (!Number.isInteger(port) || port <= 0) return false;
  const client = clientOf(password, port);
  try {
    await client.connect();
    return true;
  } catch (error) {
    if (error instanceof pg.DatabaseError) return error.code !== '28P01' && error.code !== '28000';
    // Only a free port proves that there is no server; a server may also close or reset the connection.
    return codeOf(error) !== 'ECONNREFUSED';
  } finally {
    await sayGoodbye(client);
  }
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
  const password = readPassword(folder);
  if (hasLiveMemory(unseen) || (password !== undefined && (await mayAnswer(password, unseen))))
    throw serverOutOfSight(dataDir, unseen);
}
