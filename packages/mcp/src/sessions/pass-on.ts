/**
 * request_handoff. A handoff that needs an approval is answered at once with its ticket. When the client can ask its user, and the
 * principal may decide, the user is asked first.
 *
 * P1  Only a principal with `approvals:write` is asked, and it decides in its own name. An agent is never asked.
 * P2  Whatever the answer to the question, the handoff is requested once: every round has the key of the first.
 * Rule: docs/reference/mcp.md, "Approvals".
 */
import { type JsonObject, type JsonValue, KernelError } from '@boxcar/kernel';
import { findPackage, type HandoffRequestAnswer, requestHandoff } from '@boxcar/runtime';
import {
  acceptedContent,
  CLIENT_CAPABILITIES_META_KEY,
  type ClientCapabilities,
  type InputRequiredResult,
  inputRequired,
  type McpServer,
} from '@modelcontextprotocol/server';
import { z } from 'zod';
import { decide } from '../approvals/index.js';
import { type McpClientScope, OPERATOR } from '../client-scope.js';
import { type ToolAnswer, type ToolCall, ToolFailure } from '../tool/index.js';
import { toRequested } from './answers.js';

type Handed = Extract<HandoffRequestAnswer, { readonly outcome: 'handed_on' | 'waits' }>;

/** The SDK's type of the envelope has other member names. */
type Envelope = { readonly [CLIENT_CAPABILITIES_META_KEY]?: ClientCapabilities };

const QUESTION = 'approval';
const decisionSchema = z.object({ decision: z.enum(['approve', 'deny']), reason: z.string().optional() });
/** The client returns the state, and could send any key: the ticket to decide is therefore read from rows. */
const stateSchema = z.object({ idempotency_key: z.string() });
type State = z.output<typeof stateSchema>;

function stateOf({ request }: ToolCall): State | undefined {
  const text = request.requestState<unknown>();
  if (typeof text !== 'string') return undefined;
  try {
    return stateSchema.parse(JSON.parse(text));
  } catch {
    throw new KernelError('bad_request', {
      message: 'requestState: was not made by this server.',
      details: { field: 'requestState' },
    });
  }
}

/** Clients of 2026-07-28 send their capabilities with each request, others when they connect. */
function canAsk(server: McpServer, { request }: ToolCall): boolean {
  const said = (request.envelope as Envelope | undefined)?.[CLIENT_CAPABILITIES_META_KEY];
  const { elicitation } = said ?? server.server.getClientCapabilities() ?? {};
  return elicitation !== undefined && (elicitation.form !== undefined || elicitation.url === undefined);
}

/** See P1. */
const mayDecide = ({ as, principal, scopes }: McpClientScope): boolean =>
  scopes.includes('approvals:write') && as === OPERATOR && principal?.kind !== 'agent';

const question = (handed: Handed, state: State): InputRequiredResult =>
  inputRequired({
    inputRequests: {
      [QUESTION]: inputRequired.elicit({
        message: `The handoff of session '${handed.session.session_key}' to ${handed.target_agent} (${handed.request_type}) needs an approval.`,
        requestedSchema: {
          type: 'object',
          properties: {
            decision: { type: 'string', title: 'Decision', enum: ['approve', 'deny'] },
            reason: { type: 'string', title: 'Reason' },
          },
          required: ['decision'],
        },
      }),
    },
    requestState: JSON.stringify(state),
  });

/** The handoff after the approval; its first answer says that it waits. */
async function afterApproval(scope: McpClientScope, handed: Handed): Promise<Handed> {
  const { target_agent, handoff_id, session, request_type } = handed;
  const found = await findPackage(scope.runtime, { session_key: session.session_key, target_agent }, scope);
  // The session has ended meanwhile, or a worker has not yet begun the handoff.
  if (found?.handoff_id !== handoff_id || found.phase === 'awaiting_approval') return handed;
  return {
    ...handed,
    outcome: 'handed_on',
    status: request_type === 'full_handoff' ? 'completed' : 'active',
  };
}

const refused = ({ target_agent, handoff_id, ticket_id }: Handed, status: string): ToolFailure =>
  new ToolFailure({
    error: `The handoff to ${target_agent} was not approved: the ticket is ${status}`,
    error_code: 'HANDOFF_FAILED',
    rest: { handoff_id, ticket_id, current_status: status },
  });

/** The status of the ticket after the person's answer. Undefined: the ticket still waits. */
async function decideAs(
  scope: McpClientScope,
  { request }: ToolCall,
  ticketId: string,
): Promise<string | undefined> {
  const said = acceptedContent(request.inputResponses, QUESTION, decisionSchema);
  if (said === undefined || !mayDecide(scope)) return undefined;
  const { decision, reason = '' } = said;
  try {
    await decide(scope, {
      ticket_id: ticketId,
      decision,
      ...(reason.trim() === '' ? {} : { reason }),
    });
    return decision === 'approve' ? 'approved' : 'denied';
  } catch (error) {
    // Another principal decided first.
    if (error instanceof KernelError && error.code === 'approval_resolved')
      return String(error.details.status);
    throw error;
  }
}

export async function passOn(
  server: McpServer,
  scope: McpClientScope,
  { args, call }: { readonly args: JsonObject; readonly call: ToolCall },
): Promise<ToolAnswer> {
  const state = stateOf(call);
  const idempotency_key: JsonValue = state?.idempotency_key ?? args.idempotency_key ?? null;
  const handed = await requestHandoff(scope.runtime, { ...args, idempotency_key }, scope);
  if (handed.outcome !== 'waits' || handed.ticket_id === null) return toRequested(handed);
  if (state !== undefined) {
    const status = await decideAs(scope, call, handed.ticket_id);
    if (status === undefined) return toRequested(handed);
    if (status !== 'approved') throw refused(handed, status);
    return toRequested(await afterApproval(scope, handed));
  }
  const isAsked = handed.targets.length === 1 && mayDecide(scope) && canAsk(server, call);
  if (!isAsked || typeof idempotency_key !== 'string') return toRequested(handed);
  return question(handed, { idempotency_key });
}
