import { homedir, userInfo } from 'node:os';
import { isAbsolute, join, resolve } from 'node:path';
import { KernelError } from '@boxcar/kernel/base';
import { isRoot } from './process.js';

/**
 * The folder that holds everything Boxcar keeps on this machine: clusters and, where needed, a copy of the binaries.
 *
 * `BOXCAR_DATA_DIR` overrides it. Root uses a system folder, because the server runs as `nobody`, which cannot enter root's home. All
 * other users use the data folder of their account. The cache folder is not used, because the rows are the only copy of the data, and
 * cache cleaners delete files. A variable whose path is not absolute (`HOME=''`, `XDG_DATA_HOME=data`) is ignored, because the folder
 * would depend on where a command is run.
 *
 * @throws KernelError `bad_config` when the account has no home.
 */
export function dataHome(): string {
  const chosen = process.env.BOXCAR_DATA_DIR;
  if (chosen !== undefined && chosen !== '') return resolve(chosen);
  if (isRoot()) return '/var/lib/boxcar';
  switch (process.platform) {
    case 'darwin':
      return join(accountHome(), 'Library', 'Application Support', 'boxcar');
    case 'win32':
      return join(absolute(process.env.LOCALAPPDATA) ?? join(accountHome(), 'AppData', 'Local'), 'boxcar');
    default:
      return join(absolute(process.env.XDG_DATA_HOME) ?? join(accountHome(), '.local', 'share'), 'boxcar');
  }
}

const absolute = (path = ''): string | undefined => (isAbsolute(path) ? path : undefined);

/** `HOME`, or the home that the system reports when `HOME` is not an absolute path. */
function accountHome(): string {
  const home = absolute(homedir()) ?? absolute(userInfo().homedir);
  if (home !== undefined) return home;
  throw new KernelError('bad_config', {
    message:
      'This account has no home folder for the embedded Postgres; set BOXCAR_DATA_DIR, or DATABASE_URL.',
  });
}

/**
 * The environment of the server's processes. It contains only the search path of this process, so that no stray PG* setting has an effect.
 */
export function serverEnvironment(): NodeJS.ProcessEnv {
  const { PATH, SystemRoot } = process.env;
  return { TZ: 'UTC', LC_MESSAGES: 'C', PATH, SystemRoot };
}
