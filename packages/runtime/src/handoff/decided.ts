/**
 * Carries out the decision about a ticket for the handoffs that wait for it.
 *
 * D1  No handoff begins before its ticket is consumed: the statement that consumes the ticket and the rows of the turn are in one
 *     transaction.
 * D2  The oldest of the handoffs that share a ticket runs. The others are joined to it and get its result.
 * D3  Every operation here may run twice: in the process that decided, and in the sweep.
 */
import { type ErrorBody, KernelError, type TicketId, toErrorBody } from '@boxcar/kernel';
import type { PermissionEvaluator } from '@boxcar/policy';
import {
  closeTicket,
  findParked,
  findTicket,
  moveHandoffs,
  type NewHandoffEvent,
  type ParkedHandoff,
  retryTransient,
  settleCalls,
  type TicketRow,
  transaction,
} from '@boxcar/store';
import type { RuntimeCore } from '../core/index.js';
import { announceHandoffs, buildResult, toFailure } from '../end/index.js';
import { beginApproved } from './begin-approved.js';

const updated = ({ id, status, resolved_by }: TicketRow): NewHandoffEvent => ({
  type: 'approval.updated',
  data: { ticket_id: id, status, resolved_by },
});

/** The phase of a handoff that cannot begin, by error code. Every other error leads to `failed`. */
const PHASE_OF: Readonly<Record<string, 'rejected' | 'canceled'>> = {
  permission_denied: 'rejected',
  turn_ended: 'canceled',
  canceled: 'canceled',
};

/** How a process begins approved handoffs. */
export interface Begins {
  /** False: workers begin them. */
  readonly beginsApproved: boolean;
  /** The evaluator to ask again. Undefined: this process has no policy. */
  askerOf(policyVersion: string): PermissionEvaluator | undefined;
}

export async function decided(runtime: RuntimeCore, ticketId: TicketId, begins: Begins): Promise<void> {
  const found = await retryTransient(() => findWaiting(runtime, ticketId));
  if (found === undefined) return;
  const { parked, ticket } = found;
  const orphans = parked.filter(({ is_orphan }) => is_orphan);
  if (orphans.length > 0) {
    const error = new KernelError('canceled', { message: 'The call that asked for this handoff is over.' });
    await endParked(runtime, {
      parked: orphans,
      ticket,
      phase: 'canceled',
      error: error.toJSON(),
      event: 'handoff.failed',
    });
  }
  const rest = parked.filter(({ is_orphan }) => !is_orphan);
  const [oldest] = rest;
  if (oldest === undefined || ticket.status === 'pending') return;
  if (ticket.status !== 'approved') {
    const why =
      ticket.status === 'expired'
        ? 'Approval request expired'
        : (ticket.decision_reason ?? 'Approval denied');
    await refuse(runtime, { parked: rest, ticket, why });
    return;
  }
  if (!begins.beginsApproved) return;
  try {
    const evaluator = begins.askerOf(ticket.policy_version);
    await beginApproved(runtime, { ticket, oldest, event: updated(ticket), evaluator });
  } catch (error) {
    if (!(error instanceof KernelError) || error.entry.canRetry) throw error;
    const phase = PHASE_OF[error.code] ?? 'failed';
    const event = phase === 'rejected' ? 'handoff.rejected' : 'handoff.failed';
    await endParked(runtime, { parked: rest, ticket, phase, error: toErrorBody(error), event });
  }
}

interface Waiting {
  readonly ticket: TicketRow;
  /** The oldest first. */
  readonly parked: readonly ParkedHandoff[];
}

/** Undefined: no handoff waits for the ticket. */
async function findWaiting(
  { pool }: Pick<RuntimeCore, 'pool'>,
  ticketId: TicketId,
): Promise<Waiting | undefined> {
  const parked = await findParked(pool, ticketId);
  const [first] = parked;
  if (first === undefined) return undefined;
  const ticket = await findTicket(pool, { ticketId, projectId: first.project_id });
  return ticket && { ticket, parked };
}

/** Refuses the waiting handoffs with the reason of the decision. */
async function refuse(
  runtime: RuntimeCore,
  of: { readonly parked: readonly ParkedHandoff[]; readonly ticket: TicketRow; readonly why: string },
): Promise<void> {
  const { ticket, parked, why } = of;
  const { target_agent } = (ticket.metadata.handoff ?? {}) as { target_agent?: string };
  const error = new KernelError('permission_denied', {
    message: `Handoff to ${target_agent ?? ''} denied: ${why}`,
    next: '',
    details: { ticket_id: ticket.id, resolved_by: ticket.resolved_by },
  });
  await endParked(runtime, {
    parked,
    ticket,
    phase: 'rejected',
    error: error.toJSON(),
    event: 'handoff.rejected',
  });
}

/** Ends handoffs that no turn serves, and answers the calls that wait for them. */
export async function endParked(
  runtime: Pick<RuntimeCore, 'pool' | 'log' | 'ring' | 'tellSourceSoon' | 'webhooks'>,
  of: {
    readonly parked: readonly ParkedHandoff[];
    readonly ticket: TicketRow;
    readonly phase: 'rejected' | 'failed' | 'canceled';
    readonly error: ErrorBody;
    readonly event: string;
  },
): Promise<void> {
  const { parked, ticket, phase, error, event } = of;
  const status = phase === 'rejected' ? 'rejected' : 'failed';
  const settlements = parked.flatMap((one) => settlementOf(one, error));
  const ids = parked.map(({ handoff_id }) => handoff_id);
  const events = [
    ...(ticket.status === 'pending' ? [] : [updated(ticket)]),
    { type: event, data: { status, phase, code: error.code } },
  ];
  const ending = retryTransient(() =>
    transaction(runtime.pool, async (tx) => {
      // Turns are always locked before handoffs.
      const { rings } = await settleCalls(tx, settlements);
      const logged = await moveHandoffs(tx, ids, { phase, error, events });
      // Another process has begun or ended the handoff, and answers the call.
      if (logged.length === 0) throw new MovedOn();
      await closeTicket(tx, { ticketId: ticket.id, projectId: ticket.project_id });
      return { rings, logged };
    }),
  );
  const { rings, logged } = await ending.catch((failure: unknown) => {
    if (failure instanceof MovedOn) return { rings: [], logged: [] };
    throw failure;
  });
  runtime.ring(rings);
  announceHandoffs(runtime, logged);
}

/** No handoff waits anymore. */
class MovedOn extends Error {}

/** The answer for the call that waits for a handoff. Empty when no call waits. */
const settlementOf = (one: ParkedHandoff, error: ErrorBody): Parameters<typeof settleCalls>[1] =>
  !one.is_awaited || one.tool_call_id === null || one.parent_turn_id === null
    ? []
    : [
        buildResult(
          {
            toolCallId: one.tool_call_id,
            turnId: one.parent_turn_id,
            name: 'handoff',
            projectId: one.project_id,
          },
          toFailure({ ...error, details: { ...error.details, handoff_id: one.handoff_id } }),
          { authorId: 'kernel' },
        ),
      ];
