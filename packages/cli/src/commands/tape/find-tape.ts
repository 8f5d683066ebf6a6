import { KernelError, type SessionAddress, tryParseId } from '@boxcar/kernel';
import type { Runtime, Tape, TapeTarget } from '@boxcar/runtime';
import { findListedTape, findProjectByRef } from '@boxcar/store';

export interface FoundTape {
  readonly tape: Tape;
  /** The agent whose output tape it is; undefined for a tape that only has a name, and for an archived tape. */
  readonly agentId: string | undefined;
  /** The name for people. */
  readonly title: string;
}

interface FindOptions {
  /** Id or name. */
  readonly project: string;
  /** The name to act in. Default: the operator. */
  readonly as?: string | undefined;
}

/**
 * Finds a tape by name, by box, or by agent (id or name), in this order. For a reference with the form of an id, the name is tried last.
 */
export async function lookForTape(
  runtime: Runtime,
  ref: string,
  { project, as }: FindOptions,
): Promise<FoundTape | undefined> {
  const { id: projectId } = await findProjectByRef(runtime.pool, project);
  const isId = tryParseId(ref) !== undefined;
  const targets: readonly TapeTarget[] = isId ? [{ box: ref }, { agent: ref }, ref] : [ref, { agent: ref }];
  const options = { projectId, create: false, as };
  for (const target of targets) {
    try {
      return await describe(runtime, await runtime.tape(target, options));
    } catch (error) {
      if (!(error instanceof KernelError && error.code === 'not_found')) throw error;
      if (error.details.agent_id === as && as !== undefined && as !== ref) throw error;
    }
  }
  return undefined;
}

/**
 * @param options.create - Create a tape with this name when there is none.
 * @throws KernelError `not_found`.
 */
export async function findTape(
  runtime: Runtime,
  ref: string,
  {
    create = false,
    session,
    ...options
  }: FindOptions & {
    readonly create?: boolean | undefined;
    /** The session that the caller gave instead of the name. */
    readonly session?: SessionAddress | undefined;
  },
): Promise<FoundTape> {
  const found = await lookForTape(runtime, ref, options);
  if (found !== undefined) return found;
  if (create) return describe(runtime, await runtime.tape(ref, { projectId: options.project }));
  const what =
    session === undefined
      ? `tape and no agent '${ref}'`
      : `session '${session.session}' of workspace '${session.workspace}'`;
  throw new KernelError('not_found', {
    message: `No ${what} in project '${options.project}'.`,
    details: { tape: ref, project_id: options.project },
  });
}

async function describe(runtime: Runtime, tape: Tape): Promise<FoundTape> {
  const line = await findListedTape(runtime.pool, tape.projectId, tape.boxId);
  const isInUse = line !== undefined && line.archived_at === null;
  return {
    tape,
    agentId: isInUse ? (line.agent_id ?? undefined) : undefined,
    title: line?.name ?? line?.agent ?? tape.boxId,
  };
}
