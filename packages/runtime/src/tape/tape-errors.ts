/** Errors for programs that use a tape in a way that is not possible. */
import { type AgentId, type BoxId, KernelError } from '@boxcar/kernel';
import type { AppendResult, TapeAddress } from '@boxcar/store';

export function tapeNotFound(address: TapeAddress): KernelError {
  const named =
    address.kind === 'box'
      ? address.boxId
      : address.kind === 'agent'
        ? `of agent ${address.agentId}`
        : `'${address.name}'`;
  return new KernelError('not_found', {
    message: `No tape ${named} in this project.`,
    details: { ...address },
  });
}

export const notAuthorized = (boxId: BoxId, actorId: AgentId, what: string): KernelError =>
  new KernelError('box_not_authorized', {
    message: `Agent ${actorId} may not ${what} tape ${boxId}.`,
    details: { box_id: boxId, source_agent_id: actorId },
  });

export function toAppendError(
  result: Exclude<AppendResult, { outcome: 'appended' }>,
  boxId: BoxId,
  actorId: AgentId,
): KernelError {
  const details = { box_id: boxId };
  switch (result.outcome) {
    case 'conflict':
      return new KernelError('tape_conflict', {
        message: `The head of tape ${boxId} is ${result.head}.`,
        details: { ...details, head: result.head },
      });
    case 'archived':
      return new KernelError('tape_conflict', {
        message: `Tape ${boxId} was reset: it is archived.`,
        details,
      });
    case 'mismatch':
      return new KernelError('idempotency_conflict', {
        message: `Under this key other entries were appended to tape ${boxId}, at position ${result.first}.`,
        details: { ...details, position: result.first },
      });
    case 'closed':
      return new KernelError('fork_closed', { details });
    case 'forbidden':
      return notAuthorized(boxId, actorId, 'append to');
    case 'not_found':
      return tapeNotFound({ kind: 'box', boxId });
    default:
      return result satisfies never;
  }
}
