/** Shared helpers of the commands of `boxcar tape`. */

import { openStack } from '@boxcar/host/open';
import { type SessionAddress, sessionTapeName } from '@boxcar/kernel';
import type { Context } from '../../context.js';
import { sessionOf } from '../../input/session-flags.js';
import { type FoundTape, findTape } from './find-tape.js';

export interface TapeFlags {
  readonly project?: string;
  readonly as?: string;
  /** The names that the caller gave; the tape's name was computed from them. */
  readonly workspace?: string;
  readonly session?: string;
}

export const TAPE = [
  '<tape>',
  'its name, the id of its box, or its agent (id or name); or --session in its place',
] as const;
export const PROJECT = ['--project <name>', 'project, by id or name'] as const;
export const AS = ['--as <agent>', 'in whose name, by id or name (the operator)'] as const;

export const projectOf = (context: Context, { project }: TapeFlags): string =>
  project ?? context.config.project;

/** The session that named the tape. For `fork`, `--session` names the new session instead. */
function saidFor(ref: string, flags: TapeFlags): SessionAddress | undefined {
  const session = sessionOf(flags);
  return session !== undefined && sessionTapeName(session) === ref ? session : undefined;
}

/** Opens a tape and passes it to the work, together with its runtime. */
export async function onTape<T extends TapeFlags & { readonly create?: boolean }>(
  context: Context,
  ref: string,
  flags: T,
  use: (found: FoundTape, stack: Awaited<ReturnType<typeof openStack>>) => Promise<number>,
): Promise<number> {
  await using stack = await openStack(context.config, { log: context.log('warn') });
  const { as, create } = flags;
  return await use(
    await findTape(stack.runtime, ref, {
      project: projectOf(context, flags),
      as,
      create,
      session: saidFor(ref, flags),
    }),
    stack,
  );
}
