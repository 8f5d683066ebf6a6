/** Runs the code of a plugin's handler, and traces it to its call or job. */
import { asOutside } from '@boxcar/store';
import type { RuntimeCore } from '../core/index.js';
import type { Handler } from '../handler/index.js';
import { type RunningCode, runInScope } from '../lib/index.js';
import type { CallerOptions } from './caller.js';

/**
 * The call or job that a plugin's handler works for. Undefined for the kernel's own handlers, and for a submission without a turn
 * or job, which nothing repeats.
 */
export function codeOf(
  runtime: Pick<RuntimeCore, 'ownHandlers'>,
  { primitive, handler }: { readonly primitive: string; readonly handler: Handler },
  { call, doorJobId, doorNoteId }: Pick<CallerOptions, 'call' | 'doorJobId' | 'doorNoteId'>,
): RunningCode | undefined {
  if (runtime.ownHandlers.has(handler)) return undefined;
  if (call !== undefined) {
    const { toolCallId, turnId, holderId } = call;
    return { kind: 'call', tool: primitive, toolCallId, turnId, holderId };
  }
  return doorJobId === undefined || doorNoteId === undefined
    ? undefined
    : { kind: 'job', primitive, jobId: doorJobId.slice(0, 100), noteId: doorNoteId };
}

/** Runs code of a handler, traced to its call or job. */
export const inScopeOf = <T>(code: RunningCode | undefined, work: () => T): T =>
  code === undefined ? work() : runInScope({ code }, work);

/** Runs code of a plugin. Its errors are marked as outside errors. */
export function outside<T>(code: RunningCode | undefined, work: () => T): T {
  try {
    return inScopeOf(code, work);
  } catch (error) {
    throw asOutside(error);
  }
}
