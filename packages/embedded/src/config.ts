import { homedir } from 'node:os';
import { join, resolve } from 'node:path';
import { isRoot } from './process.js';

/**
 * The folder that holds everything Boxcar keeps on this machine: clusters and, where needed, a copy of the binaries.
 *
 * `BOXCAR_DATA_DIR` overrides it. Root uses a system folder, because the server runs as `nobody`, which cannot enter
 * root's home; everybody else uses the data folder of their account. It is not the cache folder: rows are the truth,
 * and cache cleaners delete what they find.
 */
export function dataHome(): string {
  const chosen = process.env.BOXCAR_DATA_DIR;
  if (chosen !== undefined && chosen !== '') return resolve(chosen);
  if (isRoot()) return '/var/lib/boxcar';
  switch (process.platform) {
    case 'darwin':
      return join(homedir(), 'Library', 'Application Support', 'boxcar');
    case 'win32':
      return join(process.env.LOCALAPPDATA ?? join(homedir(), 'AppData', 'Local'), 'boxcar');
    default:
      return join(process.env.XDG_DATA_HOME || join(homedir(), '.local', 'share'), 'boxcar');
  }
}

/** What the server's own processes get to see: nothing of ours but the search path, so no stray PG* setting. */
export function serverEnvironment(): NodeJS.ProcessEnv {
  const { PATH, SystemRoot } = process.env;
  return {
    TZ: 'UTC',
    LC_MESSAGES: 'C',
    ...(PATH === undefined ? {} : { PATH }),
    ...(SystemRoot === undefined ? {} : { SystemRoot }),
  };
}
