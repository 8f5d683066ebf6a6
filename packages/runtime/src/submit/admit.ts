/** Whether a submission is admitted: whether an answer exists under its key, and whether its project and its parent accept it. */
import { isFinal, KernelError, type ProjectId } from '@boxcar/kernel';

import type { Accepted, Caller } from '../core/index.js';
import type { CallerOptions } from './caller.js';

/**
 * Not called for a replay, which changes nothing.
 *
 * @throws KernelError `turn_ended` for a calling turn that is gone, `bad_request` for a parent turn of another agent.
 */
export function checkParent({ parent, source }: Caller, { wokenBy }: Pick<CallerOptions, 'wokenBy'>): void {
  if (parent === undefined || wokenBy !== undefined) return;
  if (source?.isOperator !== true && source?.agentId !== parent.agentId) {
    throw new KernelError('bad_request', {
      message: `parent_turn_id: turn ${parent.turnId} is not one of agent ${source?.agentId ?? ''}.`,
      details: { parent_turn_id: parent.turnId, source_agent_id: source?.agentId },
    });
  }
  if (!isFinal(parent.status)) return;
  throw new KernelError('turn_ended', {
    message: `Turn ${parent.turnId} has ended as ${parent.status}.`,
    details: { turn_id: parent.turnId },
  });
}

/** Primitives that end or collect work, and start none. */
const ENDS_WORK: ReadonlySet<string> = new Set(['cancel', 'collect', 'raise_budget']);

/** True for submissions that an archived project refuses: submissions from outside a turn that may start work. */
export const isRefusedByArchive = (
  primitive: string,
  { call, wokenBy, begins }: Pick<CallerOptions, 'call' | 'wokenBy' | 'begins'>,
): boolean =>
  call === undefined && wokenBy === undefined && begins?.toolCallId == null && !ENDS_WORK.has(primitive);

/**
 * Not called for a replay, which changes nothing.
 *
 * @throws KernelError `project_archived`.
 */
export function checkProject(
  { isArchived, projectId }: Caller,
  primitive: string,
  caller: Pick<CallerOptions, 'call' | 'wokenBy' | 'begins'>,
): void {
  if (isArchived && isRefusedByArchive(primitive, caller)) throw projectArchived(projectId, primitive);
}

export const projectArchived = (projectId: ProjectId, primitive: string): KernelError =>
  new KernelError('project_archived', { details: { project_id: projectId, primitive } });

export function replay(caller: Caller, key: string, requestHash: string): Accepted | undefined {
  const { unnamed } = caller;
  const operation = caller.operation ?? (unnamed?.requestHash === requestHash ? unnamed : undefined);
  if (operation === undefined) return undefined;
  if (operation.requestHash !== requestHash) {
    throw new KernelError('idempotency_conflict', {
      message: `Key '${key}' was used with other arguments.`,
      details: { idempotency_key: key, project_id: caller.projectId },
    });
  }
  return {
    projectId: caller.projectId,
    key: operation === unnamed ? key : caller.key,
    answer: operation.response,
    awaitedTurnId: operation.awaitedTurnId,
    awaitedBatchId: operation.awaitedBatchId,
    isReplay: true,
    ending: null,
  };
}
