/** What the commands of `boxcar tape` share. */
import { KernelError } from '@boxcar/kernel';
import type { Context } from '../context.js';
import { openStack } from '../stack.js';
import { type FoundTape, findTape } from './find-tape.js';

export interface TapeFlags {
  readonly project?: string;
  readonly as?: string;
}

export const TAPE = [
  '<tape>',
  'its name, the id of its box, or its agent (id or name); or --session in its place',
] as const;
export const PROJECT = ['--project <name>', 'project, by id or name'] as const;
export const AS = ['--as <agent>', 'in whose name, by id or name (the operator)'] as const;

export const projectOf = (context: Context, { project }: TapeFlags): string =>
  project ?? context.config.project;

/** Opens the tape and hands it over, with the runtime it lives on. */
export async function onTape<T extends TapeFlags & { readonly create?: boolean }>(
  context: Context,
  ref: string,
  flags: T,
  use: (found: FoundTape, stack: Awaited<ReturnType<typeof openStack>>) => Promise<number>,
): Promise<number> {
  await using stack = await openStack(context.config, { log: context.log('warn') });
  const { as, create } = flags;
  return await use(
    await findTape(stack.runtime, ref, { project: projectOf(context, flags), as, create }),
    stack,
  );
}

export const badFlag = (message: string, field: string): KernelError =>
  new KernelError('bad_request', { message: `${message}.`, details: { field } });
