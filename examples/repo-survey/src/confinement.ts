/**
 * Confines the tools to one folder: they can read nothing outside of it.
 *
 * C1  A path is relative to the root, has no `..`, and is still below the root after all links are followed.
 * C2  Content that the survey ignores (version control, installed and built files) cannot be read either.
 * C3  A refusal repeats the given path and reveals nothing about files outside.
 */
import { realpathSync, statSync } from 'node:fs';
import { realpath, stat } from 'node:fs/promises';
import { posix, relative, resolve, sep, win32 } from 'node:path';
import { KernelError } from '@boxcar/kernel';

/** Folders without sources, at any depth of the tree. */
export const IGNORED_FOLDERS: ReadonlySet<string> = new Set([
  '.cache',
  '.git',
  '.hg',
  '.jj',
  '.next',
  '.nuxt',
  '.svn',
  '.turbo',
  '.venv',
  '__pycache__',
  'bower_components',
  'coverage',
  'dist',
  'node_modules',
]);

/** A path inside the root. */
export interface Confined {
  /** The real path, free of links. */
  readonly absolute: string;
  /** The path below the root with `/` between its parts; `.` is the root itself. */
  readonly path: string;
}

const refuse = (path: string, why: string): never => {
  throw new KernelError('bad_request', { message: `path: '${path}' ${why}.`, details: { path } });
};

/**
 * The real path of a folder to survey.
 *
 * @param named - The folder as the caller wrote it, for the error.
 * @throws KernelError `bad_request` with that name when the folder does not exist or is not a folder.
 */
export function resolveRoot(folder: string, named = folder): string {
  const stats = folder.includes('\0') ? undefined : statSync(folder, { throwIfNoEntry: false });
  const isFolder = stats?.isDirectory();
  if (isFolder === true) return realpathSync(folder);
  throw new KernelError('bad_request', {
    message: `folder: '${named}' ${isFolder === false ? 'is no folder' : 'does not exist'}.`,
    details: { folder: named },
  });
}

/**
 * Resolves the path of a tool call (C1, C2).
 *
 * @throws KernelError `bad_request` with a text for the model.
 */
export async function confine(root: string, path: string): Promise<Confined> {
  if (path.includes('\0')) refuse(path.replaceAll('\0', '\uFFFD'), 'contains a NUL character');
  if (posix.isAbsolute(path) || win32.isAbsolute(path) || /^[a-z]:/i.test(path))
    refuse(path, 'is absolute; give it relative to the surveyed folder');
  if (path.split(/[\\/]/).includes('..')) refuse(path, "leads upwards; give it without '..'");
  const absolute = await realpath(resolve(root, path)).catch(() => refuse(path, 'does not exist'));
  const below = relative(root, absolute);
  const parts = below.split(sep);
  if (parts[0] === '..' || win32.isAbsolute(below) || posix.isAbsolute(below))
    refuse(path, 'is a link that leads out of the surveyed folder');
  if (parts.some((part) => IGNORED_FOLDERS.has(part))) refuse(path, 'is not part of the survey');
  return { absolute, path: below === '' ? '.' : parts.join('/') };
}

/** As `confine`, for a path that must be a folder. */
export async function confineFolder(root: string, path: string): Promise<Confined> {
  const confined = await confine(root, path);
  const stats = await stat(confined.absolute).catch(() => refuse(path, 'cannot be read'));
  return stats.isDirectory() ? confined : refuse(path, 'is no folder');
}
