import { KernelError, tryParseId } from '@boxcar/kernel';
import type { Runtime, Tape, TapeTarget } from '@boxcar/runtime';
import { findTapeLine } from '@boxcar/store';

export interface FoundTape {
  readonly tape: Tape;
  /** The agent whose output it is; undefined for a tape that only has a name, and for an archived one. */
  readonly agentId: string | undefined;
  /** What people call it. */
  readonly title: string;
}

const isNotFound = (error: unknown): boolean => error instanceof KernelError && error.code === 'not_found';

/**
 * The tape of a name, of a box, or of an agent (id or name), looked for in this order.
 *
 * @param options.create - Make one of this name when there is none.
 * @throws KernelError `not_found`.
 */
export async function findTape(
  runtime: Runtime,
  ref: string,
  options: { readonly project: string; readonly create?: boolean | undefined },
): Promise<FoundTape> {
  const { project: projectId, create = false } = options;
  const targets: readonly TapeTarget[] = [tryParseId(ref) === undefined ? ref : { box: ref }, { agent: ref }];
  for (const target of targets) {
    try {
      return await describe(runtime, await runtime.tape(target, { projectId, create: false }));
    } catch (error) {
      if (!isNotFound(error)) throw error;
    }
  }
  if (create && tryParseId(ref) === undefined)
    return describe(runtime, await runtime.tape(ref, { projectId }));
  throw new KernelError('not_found', {
    message: `No tape and no agent '${ref}' in project '${projectId}'.`,
    details: { tape: ref, project_id: projectId },
  });
}

async function describe(runtime: Runtime, tape: Tape): Promise<FoundTape> {
  const line = await findTapeLine(runtime.pool, tape.projectId, tape.boxId);
  const isInUse = line !== undefined && line.archived_at === null;
  return {
    tape,
    agentId: isInUse ? (line.agent_id ?? undefined) : undefined,
    title: line?.name ?? line?.agent ?? tape.boxId,
  };
}
