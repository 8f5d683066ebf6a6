/**
 * Sessions by their readable names: a workspace, which is a folder, and a session name in it. Both together give the
 * name of the session's tape and agent, by Bub's rule. Source: docs/reference/tape.md, "Sessions by name".
 */
import { posix, win32 } from 'node:path';
import { z } from 'zod';
import { KernelError, nameSchema, toName } from '../base/index.js';
import { FOR_PROGRAMS } from '../schema/index.js';
import { tapeName } from './tape.js';

export interface SessionAddress {
  /** An absolute path. */
  readonly workspace: string;
  readonly session: string;
}

/** The form for an argument that names an existing agent or tape. */
export const sessionAddressSchema = z
  .strictObject({ workspace: z.string().min(1).max(4_096), session: z.string().min(1).max(512) })
  .meta({ [FOR_PROGRAMS]: true });

/** The form for an argument of primitives: with a profile, a missing agent is created. */
export const sessionRefSchema = z
  .strictObject({
    workspace: z.string().min(1).max(4_096),
    session: z.string().min(1).max(512),
    profile_name: nameSchema.optional(),
  })
  .meta({ [FOR_PROGRAMS]: true });
export type SessionRef = z.infer<typeof sessionRefSchema>;

const isWindowsPath = (path: string): boolean => /^(?:[a-zA-Z]:[\\/]|\\\\)/.test(path);

/**
 * The canonical form of an absolute path: no `.`, no `..`, no doubled or trailing separator. It is purely lexical,
 * since this process may not have the caller's disk.
 *
 * @throws KernelError `bad_request` for a relative path.
 */
export function normalizeWorkspace(workspace: string): string {
  const path = isWindowsPath(workspace) ? win32 : posix;
  if (path.isAbsolute(workspace) && workspace.isWellFormed() && !workspace.includes('\0')) {
    const normal = path.normalize(workspace);
    return path.parse(normal).root === normal ? normal : normal.replace(/[\\/]$/, '');
  }
  throw new KernelError('bad_request', {
    message: `workspace: '${workspace}' is not an absolute path. The command line resolves relative paths; programs give absolute ones.`,
    details: { field: 'workspace' },
  });
}

/** The common prefix of the tape names of all sessions of a workspace. @throws KernelError `bad_request`. */
export const workspacePrefix = (workspace: string): string =>
  sessionTapeName({ workspace, session: 'any' }).replace(/__.*$/, '__');

/** The name of the tape and agent of a session. @throws KernelError `bad_request`. */
export function sessionTapeName({ workspace, session }: SessionAddress): string {
  if (session.trim() === '' || !session.isWellFormed() || session.includes('\0'))
    throw new KernelError('bad_request', {
      message: 'session: must be a text that is not blank.',
      details: { field: 'session' },
    });
  return tapeName(toName(normalizeWorkspace(workspace)), toName(session));
}
