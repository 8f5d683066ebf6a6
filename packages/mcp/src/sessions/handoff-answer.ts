/** The answer to request_handoff. Its texts and members are a contract with clients. Rule: docs/reference/mcp.md, "Handoff". */
import type { JsonObject } from '@boxcar/kernel';
import type { HandoffRequestAnswer } from '@boxcar/runtime';

type HandedOn = Extract<HandoffRequestAnswer, { readonly outcome: 'handed_on' | 'waits' }>;

const withTicket = (ticketId: string | null): JsonObject =>
  ticketId === null ? {} : { ticket_id: ticketId };

/** The effect on the client's session. */
const NEXT_OF_SESSION: Readonly<Record<HandedOn['status'], string>> = {
  active: 'Session remains active for continued collaboration',
  completed: 'Session has been marked as completed - original agent handoff is complete',
  pending_approval: 'Session remains active until the handoff is approved',
};

const nextSteps = ({ session, context_entries: entries, status, ticket_id }: HandedOn): readonly string[] =>
  status === 'pending_approval'
    ? [
        `The handoff waits for approval ticket ${ticket_id ?? ''}`,
        'The target agent cannot retrieve the context before the handoff is approved',
        `Full context history includes ${entries} entries`,
        NEXT_OF_SESSION[status],
      ]
    : [
        `The target agent can retrieve the context using session_key: ${session.session_key}`,
        'Context is cached and immediately available',
        `Full context history includes ${entries} entries`,
        NEXT_OF_SESSION[status],
      ];

const messageOf = ({ status, target_agent: target }: HandedOn): string =>
  status === 'pending_approval'
    ? `The handoff to agent '${target}' waits for an approval.`
    : `The context has been prepared for agent '${target}'.`;

/** A single target is described by the members of the handoff itself. */
const targetsOf = ({ targets }: HandedOn): JsonObject =>
  targets.length === 1
    ? {}
    : {
        targets: targets.map(({ target_agent, handoff_id, status, ticket_id }) => ({
          target_agent,
          handoff_id,
          status,
          ...withTicket(ticket_id),
        })),
      };

export const toHandoffAnswer = (handed: HandedOn): JsonObject => ({
  success: true,
  message: 'Handoff request processed successfully',
  handoff: {
    session_key: handed.session.session_key,
    source_agent: handed.source_agent,
    target_agent: handed.target_agent,
    request_type: handed.request_type,
    context_summary: handed.context_summary,
    context_entries: handed.context_entries,
    cache_key: handed.cache_key,
    status: handed.status,
    handoff_id: handed.handoff_id,
    ...withTicket(handed.ticket_id),
    ...targetsOf(handed),
  },
  instructions: { message: messageOf(handed), next_steps: nextSteps(handed) },
});
