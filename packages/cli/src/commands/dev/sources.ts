/** Finds the files of `boxcar dev` and detects changes by polling, which works on every file system. */
import { readdirSync, statSync } from 'node:fs';
import { basename, dirname, join, resolve } from 'node:path';
import { KernelError } from '@boxcar/kernel';

const PROFILE = /\.(ya?ml|json)$/i;
const CODE = /\.([cm]?[jt]s|json)$/i;
/** Found in the working folder when no file is named. */
const DEFAULT_PROFILES = ['profiles.yaml', 'profiles.yml', 'profiles.json', 'profiles'];
const DEFAULT_PLUGINS = ['plugin.js', 'plugin.mjs'];

export interface Sources {
  /** Files and folders with profiles. */
  readonly profiles: readonly string[];
  readonly plugins: readonly string[];
}

const kindOf = (path: string): 'file' | 'folder' | undefined => {
  const stats = statSync(path, { throwIfNoEntry: false });
  return stats === undefined ? undefined : stats.isDirectory() ? 'folder' : 'file';
};

/** The files in the working folder that have the usual names. */
const usual = (cwd: string, names: readonly string[]): string[] =>
  names.map((name) => join(cwd, name)).filter((path) => kindOf(path) !== undefined);

/**
 * Finds the named files, or else the files in the working folder that currently have the usual names: such a file may appear later.
 *
 * @returns A function that looks again.
 * @throws KernelError `bad_request` that names the missing file.
 */
export function findSources(
  cwd: string,
  named: { readonly profiles?: readonly string[] | undefined; readonly plugins?: readonly string[] },
): () => Sources {
  const resolveAll = (given: readonly string[] | undefined, field: string): string[] | undefined => {
    if (given === undefined || given.length === 0) return undefined;
    return given.map((name) => {
      const path = resolve(cwd, name);
      if (kindOf(path) === undefined) {
        throw new KernelError('bad_request', {
          message: `--${field} ${name}: the file or folder does not exist.`,
          details: { field, path },
        });
      }
      return path;
    });
  };
  const profiles = resolveAll(named.profiles, 'profiles');
  const plugins = resolveAll(named.plugins, 'plugin');
  return () => ({
    profiles: profiles ?? usual(cwd, DEFAULT_PROFILES),
    plugins: plugins ?? usual(cwd, DEFAULT_PLUGINS),
  });
}

const filesIn = (folder: string, pattern: RegExp): string[] => {
  try {
    return readdirSync(folder, { withFileTypes: true })
      .filter((entry) => !entry.isDirectory() && pattern.test(entry.name) && !entry.name.startsWith('.'))
      .map((entry) => join(folder, entry.name))
      .sort();
  } catch {
    return [];
  }
};

/** The profile files that currently exist. */
export const profileFiles = (sources: Sources): string[] =>
  sources.profiles.flatMap((path) => (kindOf(path) === 'folder' ? filesIn(path, PROFILE) : [path]));

/** The code files that currently exist: the plugins, and the files in their folders, which they may import. */
export const codeFiles = (sources: Sources): string[] => {
  const isProfile = new Set(profileFiles(sources));
  const beside = sources.plugins.flatMap((path) => filesIn(dirname(path), CODE));
  return [...new Set([...sources.plugins, ...beside])].filter(
    (path) => !isProfile.has(path) && basename(path) !== 'package-lock.json',
  );
};

/** Changes when a file is created, deleted or written. */
export const stampOf = (files: readonly string[]): string =>
  files
    .map((path) => {
      const stats = statSync(path, { throwIfNoEntry: false });
      return `${path} ${stats === undefined ? 'gone' : `${stats.ino} ${stats.size} ${stats.mtimeMs}`}`;
    })
    .join('\n');
