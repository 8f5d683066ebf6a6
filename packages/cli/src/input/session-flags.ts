/**
 * `--workspace` and `--session` name a session. The folder is resolved here, where the disk is. Source: docs/reference/tape.md, "Sessions
 * by name".
 */
import { realpathSync } from 'node:fs';
import { dirname, join, resolve } from 'node:path';
import { type SessionAddress, sessionTapeName } from '@boxcar/kernel';
import type { Command } from 'commander';
import { readFlag, wrongUsage } from './usage.js';

export interface SessionFlags {
  readonly workspace?: string | undefined;
  readonly session?: string | undefined;
}

const WORKSPACE = ['--workspace <folder>', 'folder of the session (default: the current one)'] as const;
const SESSION = ['--session <name>', 'a session of the workspace, by name'] as const;

/** Adds both options to a command. */
export const addSessionFlags = (command: Command): Command => command.option(...WORKSPACE).option(...SESSION);

/** Follows symbolic links as far as the path exists. */
function realPath(path: string): string {
  try {
    return realpathSync(path);
  } catch (error) {
    const parent = dirname(path);
    const isMissing = error instanceof Error && 'code' in error && error.code === 'ENOENT';
    if (!isMissing || parent === path) throw error;
    return join(realPath(parent), path.slice(parent.length));
  }
}

/** The form of a workspace that identifies its sessions: an absolute path without links. */
export const workspaceOf = (folder: string): string => realPath(resolve(folder));

/** The session that the flags name; undefined when they name none. @throws KernelError `bad_request`. */
export function sessionOf({ workspace, session }: SessionFlags): SessionAddress | undefined {
  if (session !== undefined) return { workspace: workspaceOf(workspace ?? '.'), session };
  if (workspace === undefined) return undefined;
  throw wrongUsage('--workspace: is of a session; give --session too', 'session');
}

/** The value of an option in the words of a command line; undefined when the option is missing. */
function flagIn(words: readonly string[], option: string): string | undefined {
  const at = words.findIndex((word) => word === option || word.startsWith(`${option}=`));
  const word = words[at];
  return word === option ? words[at + 1] : word?.slice(option.length + 1);
}

/**
 * Inserts the name of the session's tape where a command of `boxcar tape` takes a tape, so that the following arguments keep their
 * positions.
 *
 * @param group - The group `tape`: its commands that take a tape have the options.
 */
export function nameSession(words: readonly string[], group: Command | undefined): string[] {
  const at = words.findIndex((word) => !word.startsWith('-'));
  const command = group?.commands.find((one) => words[at] === group.name() && one.name() === words[at + 1]);
  const end = words.indexOf('--');
  const flags = words.slice(0, end === -1 ? undefined : end);
  const [workspace, session] = ['--workspace', '--session'].map((option) => flagIn(flags, option));
  if (command === undefined || command.options.every(({ long }) => long !== '--workspace')) return [...words];
  // A command whose tape is optional uses the workspace itself.
  if (session === undefined && command.registeredArguments[0]?.required === false) return [...words];
  const found = sessionOf({ workspace, session });
  if (found === undefined || words.includes('--help')) return [...words];
  return [...words.slice(0, at + 2), readFlag(() => sessionTapeName(found)), ...words.slice(at + 2)];
}
