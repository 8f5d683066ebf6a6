/** What the commands of `boxcar tape` share. */
import { KernelError } from '@boxcar/kernel';
import type { Context } from '../context.js';
import { openStack } from '../stack.js';
import { type FoundTape, findTape } from './find-tape.js';

export interface TapeFlags {
  readonly project?: string;
}

export const TAPE = ['<tape>', 'its name, the id of its box, or its agent (id or name)'] as const;
export const PROJECT = ['--project <name>', 'project, by id or name'] as const;

/** Opens the tape and hands it over, with the runtime it lives on. */
export async function onTape<T extends TapeFlags & { readonly create?: boolean }>(
  context: Context,
  ref: string,
  flags: T,
  use: (found: FoundTape, stack: Awaited<ReturnType<typeof openStack>>) => Promise<number>,
): Promise<number> {
  await using stack = await openStack(context.config, { log: context.log('warn') });
  const project = flags.project ?? context.config.project;
  return await use(await findTape(stack.runtime, ref, { project, create: flags.create }), stack);
}

export const badFlag = (message: string, field: string): KernelError =>
  new KernelError('bad_request', { message: `${message}.`, details: { field } });
