import { randomBytes } from 'node:crypto';
import { accessSync, chownSync, constants, existsSync, readFileSync, statSync } from 'node:fs';
import {
  chmod,
  chown,
  link,
  mkdir,
  readdir,
  readFile,
  realpath,
  rename,
  rm,
  writeFile,
} from 'node:fs/promises';
import { dirname, join, parse } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { KernelError } from '@boxcar/kernel/base';
import { serverEnvironment } from './config.js';
import type { NativePostgres } from './native-postgres.js';
import { isRoot, run, serverAccount } from './process.js';
import { usersOf } from './users.js';

/**
 * The folder of one server.
 *
 * ```
 * <folder>/cluster/data       the Postgres data folder, owned by the account that runs the server
 * <folder>/cluster/password   of the superuser `boxcar`, readable only by the owner of the folder
 * <folder>/app-password       of the role `boxcar_app`, which owns the database; also readable only by the owner
 * <folder>/socket             the server's Unix socket; only the account that runs the server may enter
 * <folder>/port               the port of the last start, tried first by the next
 * <folder>/server.log         the output of the server
 * <folder>/users, leaving     see users.ts
 * <folder>/.cluster-<id>      a cluster that the process of this id (users.ts) is making
 * <folder>/ephemeral          marks the folder of a temporary server
 * ```
 */
export interface Cluster {
  readonly folder: string;
  readonly dataDir: string;
  /** Undefined on Windows. */
  readonly socketDir: string | undefined;
  readonly adminPassword: string;
  /** The password of the application's role. */
  readonly password: string;
}

/** The superuser, which initdb creates. Only code that needs a superuser uses it. */
export const ADMIN_ROLE = 'boxcar';
/** The role of the application. */
export const ROLE = 'boxcar_app';

/** The longest path of a Unix socket: 104 bytes with the closing NUL on macOS, 108 on Linux. */
const LONGEST_SOCKET_PATH = 103;

/** initdb takes a few seconds. On a slow disk it takes a minute or two, because it flushes each file. */
const INITDB_LIMIT_MS = 300_000;

/** A file in each temporary folder: only a folder with this file is ever removed automatically. */
export const EPHEMERAL_MARK = 'ephemeral';

const OURS: ReadonlySet<string> = new Set(['users', 'cluster', 'native', EPHEMERAL_MARK]);

/** Creates the folder. Refuses a folder that the server's account could not reach. */
export async function prepareFolder(folder: string): Promise<void> {
  try {
    const created = await mkdir(folder, { recursive: true, mode: 0o700 });
    if (isRoot()) await letPass(folder, created);
    accessSync(folder, constants.W_OK);
  } catch (cause) {
    throw new KernelError('bad_config', {
      message: `The folder ${folder} for the embedded Postgres cannot be written; set BOXCAR_DATA_DIR to one that can, or DATABASE_URL.`,
      details: { folder },
      cause,
    });
  }
  const closed = isRoot() ? await stillClosed(folder) : undefined;
  if (closed !== undefined) {
    throw new KernelError('bad_config', {
      message: `Root runs Postgres as \`nobody\`, which cannot enter ${closed}; let it pass (chmod o+x ${closed}), or set BOXCAR_DATA_DIR to a folder elsewhere, or DATABASE_URL.`,
      details: { folder, closed },
    });
  }
}

/**
 * Root's server runs as another account, which must pass through these folders but need not list them. When the folder existed before and
 * contains other things, its mode is not changed.
 */
async function letPass(folder: string, created: string | undefined): Promise<void> {
  if (created === undefined) {
    const names = await readdir(folder);
    if (names.length === 0 || names.some((name) => OURS.has(name))) await chmod(folder, 0o711);
    return;
  }
  for (let current = folder; current !== dirname(created); current = dirname(current))
    await chmod(current, 0o711);
}

/** Waits briefly, because another process may have created the folder at this moment and may be about to open it. */
async function stillClosed(folder: string): Promise<string | undefined> {
  for (let attempt = 0; attempt < 20 && closedAncestor(folder) !== undefined; attempt++) await delay(50);
  return closedAncestor(folder);
}

/** The nearest folder on the path to `path` that other users cannot enter. */
export function closedAncestor(path: string): string | undefined {
  for (let current = path; current !== parse(current).root; current = dirname(current)) {
    if (existsSync(current) && (statSync(current).mode & 0o001) === 0) return current;
  }
  return undefined;
}

interface ClusterOptions {
  readonly isDurable: boolean;
  /** The id of the process, by users.ts. The process must have joined. */
  readonly id: string;
}

const DRAFT_PREFIX = '.cluster-';

/**
 * Removes the drafts (39 MB each) of processes that were killed while they made a cluster. Each process joins before it makes its
 * draft; the drafts are listed first, so the owner of a listed draft is among the users while it lives.
 */
async function removeDeadDrafts(folder: string): Promise<void> {
  const drafts = (await readdir(folder)).filter((name) => name.startsWith(DRAFT_PREFIX));
  if (drafts.length === 0) return;
  const users = usersOf(folder);
  // An initdb that has outlived its parent may still write to its draft. A later start then removes the remaining files.
  for (const draft of drafts.filter((name) => !users.has(name.slice(DRAFT_PREFIX.length))))
    await rm(join(folder, draft), { recursive: true, force: true }).catch(() => {});
}

/**
 * Opens the cluster of `folder`, and creates it first when it is missing. A new cluster is built next to its final place and then renamed.
 * So when several processes create it, one wins, and the others use its cluster, password included.
 */
export async function openCluster(
  folder: string,
  native: NativePostgres,
  options: ClusterOptions,
): Promise<Cluster> {
  const place = join(folder, 'cluster');
  await removeDeadDrafts(folder);
  if (!existsSync(place)) await createCluster(folder, place, native, options);

  // Resolved now, because a link in the path may be changed while the server runs.
  const dataDir = await realpath(join(place, 'data'));
  const major = (await readFile(join(dataDir, 'PG_VERSION'), 'utf8')).trim();
  if (major !== native.major) {
    throw new KernelError('bad_config', {
      message: `The data in ${folder} is of Postgres ${major}, the embedded server is ${native.major}; move that folder away, or set DATABASE_URL.`,
      details: { folder },
    });
  }
  const adminPassword = readPassword(folder);
  if (adminPassword === undefined)
    throw new KernelError('database_unavailable', {
      message: `The password of the embedded Postgres is missing in ${place}; move that folder away, or set DATABASE_URL.`,
      details: { folder },
    });
  return {
    folder,
    dataDir,
    socketDir: await openSocketFolder(await realpath(folder)),
    adminPassword,
    password: await keepPassword(folder),
  };
}

/** Creates the folder of the socket and sets its mode, at each start: a cluster of an earlier version does not have the folder. */
async function openSocketFolder(folder: string): Promise<string | undefined> {
  if (process.platform === 'win32') return undefined;
  const socketDir = join(folder, 'socket');
  const longest = Buffer.byteLength(join(socketDir, '.s.PGSQL.65535'));
  if (longest > LONGEST_SOCKET_PATH)
    throw new KernelError('bad_config', {
      message: `The path of the folder ${folder} is ${longest - LONGEST_SOCKET_PATH} bytes too long for the Unix socket of the embedded Postgres; set BOXCAR_DATA_DIR to a shorter one (a folder with data may be moved while no server runs on it), or DATABASE_URL.`,
      details: { folder },
    });
  await mkdir(socketDir, { recursive: true, mode: 0o700 });
  await chmod(socketDir, 0o700);
  const account = serverAccount();
  if (account) await chown(socketDir, account.uid, account.gid);
  return socketDir;
}

/** The password of the application's role. When several processes make a password, one wins. */
async function keepPassword(folder: string): Promise<string> {
  const file = join(folder, 'app-password');
  if (!existsSync(file)) {
    const draft = `${file}-${randomBytes(6).toString('hex')}`;
    await writeFile(draft, `${newPassword()}\n`, { mode: 0o600 });
    try {
      await link(draft, file);
    } catch (error) {
      if (!existsSync(file)) throw error;
    } finally {
      await rm(draft, { force: true });
    }
  }
  return (await readFile(file, 'utf8')).trim();
}

const newPassword = (): string => randomBytes(24).toString('base64url');

/** The password of the superuser of a folder's server; `undefined` when the folder has none. */
function readPassword(folder: string): string | undefined {
  const file = join(folder, 'cluster', 'password');
  return existsSync(file) ? readFileSync(file, 'utf8').trim() : undefined;
}

async function createCluster(
  folder: string,
  place: string,
  native: NativePostgres,
  options: ClusterOptions,
): Promise<void> {
  const draft = join(folder, `${DRAFT_PREFIX}${options.id}`);
  const dataDir = join(draft, 'data');
  const passwordFile = join(draft, 'password');
  const account = serverAccount();
  try {
    await mkdir(dataDir, { recursive: true, mode: 0o700 });
    if (isRoot()) await chmod(draft, 0o711);
    await writeFile(passwordFile, `${newPassword()}\n`, { mode: 0o600 });
    if (account) {
      await chown(dataDir, account.uid, account.gid);
      await chown(passwordFile, account.uid, account.gid);
    }
    const { code, output } = await run(
      native.initdb,
      [
        `--pgdata=${dataDir}`,
        `--username=${ADMIN_ROLE}`,
        `--pwfile=${passwordFile}`,
        '--auth=scram-sha-256',
        // The password is random. Iterations slow down the guessing of weak passwords; here they would only slow each connection.
        '--set=scram_iterations=1',
        '--encoding=UTF8',
        // Only Linux is sure to have this locale; elsewhere Postgres has a built-in one.
        ...(process.platform === 'linux'
          ? ['--locale=C.UTF-8']
          : ['--locale=C', '--locale-provider=builtin', '--builtin-locale=C.UTF-8']),
        ...(options.isDurable ? [] : ['--no-sync']),
      ],
      { env: serverEnvironment(), cwd: draft, limitMs: INITDB_LIMIT_MS, ...account },
    );
    if (code !== 0) {
      throw new KernelError('database_unavailable', {
        message: `The embedded Postgres could not create its data folder in ${folder}: ${lastLine(output)}.`,
        details: { folder, output },
      });
    }
    if (account) chownSync(passwordFile, process.getuid?.() ?? 0, process.getgid?.() ?? 0);
    await rename(draft, place);
  } catch (error) {
    // Another process has put its cluster there first; this draft is discarded.
    if (!existsSync(place)) throw error;
  } finally {
    await rm(draft, { recursive: true, force: true });
  }
}

export function lastLine(text: string): string {
  const lines = text.split('\n').filter((line) => line.trim() !== '');
  return (lines.at(-1) ?? 'it said nothing').trim().replace(/\.$/, '');
}
