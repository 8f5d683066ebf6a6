/** Ends a handoff that was requested from outside, in any phase: while it waits for an approval or while a turn serves it. */
import { type Handoff, KernelError, type ProjectId, type TicketId, type TurnId } from '@boxcar/kernel';
import { findParked, findTicket } from '@boxcar/store';
import type { RuntimeCore } from '../core/index.js';
import { closeHandoffs } from '../end/index.js';
import { endParked } from './decided.js';
import { loadHandoff } from './hand-off.js';

/**
 * The limit of attempts while the handoff keeps moving: from the approval to its turn, or to another ticket after a change of the policy.
 */
const MAX_LOOKS = 5;

const canceled = (): KernelError => new KernelError('canceled', { message: 'The handoff was canceled.' });

/** A handoff that another platform requests shares its ticket with no other handoff, so no other caller waits for the ticket. */
async function cancelParked(runtime: RuntimeCore, handoff: Handoff, projectId: ProjectId): Promise<void> {
  const ticketId = handoff.ticket_id as TicketId;
  const [ticket, parked] = await Promise.all([
    findTicket(runtime.pool, { ticketId, projectId }),
    findParked(runtime.pool, ticketId),
  ]);
  const mine = parked.filter(({ handoff_id }) => handoff_id === handoff.handoff_id);
  if (ticket === undefined || mine.length === 0) return;
  const error = canceled().toJSON();
  await endParked(runtime, { parked: mine, ticket, phase: 'canceled', error, event: 'handoff.failed' });
}

async function cancelTurn(runtime: RuntimeCore, turnId: TurnId, projectId: ProjectId): Promise<void> {
  try {
    await runtime.accept('cancel', { turn_id: turnId }, { projectId });
  } catch (error) {
    if (!(error instanceof KernelError && error.code === 'turn_ended')) throw error;
  }
  await closeHandoffs(runtime, turnId);
}

/**
 * @returns The handoff at its end. The end may be another one than the cancel, if that end was first.
 * @throws KernelError `not_found`.
 */
export async function cancelHandoff(
  runtime: RuntimeCore,
  handoffId: Handoff['handoff_id'],
  projectId: ProjectId,
): Promise<Handoff> {
  let handoff = await loadHandoff(runtime, handoffId, projectId);
  for (let look = 0; handoff.ended_at === null && look < MAX_LOOKS; look += 1) {
    if (handoff.turn_id === null) await cancelParked(runtime, handoff, projectId);
    else await cancelTurn(runtime, handoff.turn_id as TurnId, projectId);
    handoff = await loadHandoff(runtime, handoffId, projectId);
  }
  return handoff;
}
