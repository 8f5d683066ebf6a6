/** The answer to request_handoff: its words and members are a contract with clients. Rule: docs/mcp.md, "Handoff". */
import type { JsonObject } from '@boxcar/kernel';

export const HANDOFF_ANSWERS = ['active', 'completed', 'pending_approval'] as const;

export interface HandedOn {
  /** Of the session, as it was registered under. */
  readonly sessionKey: string;
  readonly handoff_id: string;
  /** Null: nothing has to be approved. */
  readonly ticket_id: string | null;
  readonly request_type: 'context_transfer' | 'full_handoff' | 'collaboration';
  readonly source_agent: string;
  readonly target_agent: string;
  readonly context_summary: string;
  /** Before the entry of the handoff itself. */
  readonly context_entries: number;
  readonly cache_key: string;
  readonly status: (typeof HANDOFF_ANSWERS)[number];
  /** Empty: there is one target. */
  readonly targets: readonly {
    readonly target_agent: string;
    readonly handoff_id: string;
    readonly status: string;
    readonly ticket_id: string | null;
  }[];
}

const withTicket = (ticketId: string | null): JsonObject =>
  ticketId === null ? {} : { ticket_id: ticketId };

/** What becomes of the session of the client. */
const NEXT_OF_SESSION: Readonly<Record<HandedOn['status'], string>> = {
  active: 'Session remains active for continued collaboration',
  completed: 'Session has been marked as completed - original agent handoff is complete',
  pending_approval: 'Session remains active until the handoff is approved',
};

const nextSteps = ({
  sessionKey,
  context_entries: entries,
  status,
  ticket_id,
}: HandedOn): readonly string[] =>
  status === 'pending_approval'
    ? [
        `The handoff waits for approval ticket ${ticket_id ?? ''}`,
        'The target agent cannot retrieve the context before the handoff is approved',
        `Full context history includes ${entries} entries`,
        NEXT_OF_SESSION[status],
      ]
    : [
        `The target agent can retrieve the context using session_key: ${sessionKey}`,
        'Context is cached and immediately available',
        `Full context history includes ${entries} entries`,
        NEXT_OF_SESSION[status],
      ];

const messageOf = ({ status, target_agent: target }: HandedOn): string =>
  status === 'pending_approval'
    ? `The handoff to agent '${target}' waits for an approval.`
    : `The context has been prepared for agent '${target}'.`;

export function toHandoffAnswer(handed: HandedOn): JsonObject {
  const { targets } = handed;
  return {
    success: true,
    message: 'Handoff request processed successfully',
    handoff: {
      session_key: handed.sessionKey,
      source_agent: handed.source_agent,
      target_agent: handed.target_agent,
      request_type: handed.request_type,
      context_summary: handed.context_summary,
      context_entries: handed.context_entries,
      cache_key: handed.cache_key,
      status: handed.status,
      handoff_id: handed.handoff_id,
      ...withTicket(handed.ticket_id),
      ...(targets.length === 0
        ? {}
        : { targets: targets.map(({ ticket_id, ...target }) => ({ ...target, ...withTicket(ticket_id) })) }),
    },
    instructions: { message: messageOf(handed), next_steps: nextSteps(handed) },
  };
}
