/** Handoffs and approval tickets in the form that readers get, and in their wire form. */
import { type ErrorBody, isJsonObject, type JsonObject, type JsonValue } from '../base/index.js';
import { type HandoffPhase, type HandoffStatus, responseStatusOf } from './phases.js';

export const HANDOFF_MODES = ['handoff', 'chain', 'compensate'] as const;
/** `chain` has hops; `compensate` undoes a hop of a failed chain. */
export type HandoffMode = (typeof HANDOFF_MODES)[number];

/** Primitives whose turns serve handoffs. */
export const HANDOFF_PRIMITIVES: ReadonlySet<string> = new Set(['handoff', 'handoff_chain', 'handoff_hop']);

export interface Handoff {
  readonly handoff_id: string;
  readonly source_agent: string;
  readonly target_agent: string;
  readonly task: string;
  readonly context: JsonObject;
  /** Null when no payload was given. */
  readonly payload: JsonValue;
  /** The platform's canonical name; a program's own adapters may add platforms. */
  readonly platform: string;
  readonly phase: HandoffPhase;
  readonly status: HandoffStatus;
  readonly created_at: Date;
  /** Null while the handoff has not ended. */
  readonly ended_at: Date | null;
  readonly result: JsonValue;
  readonly error: ErrorBody | null;
  /** Any text from the caller. */
  readonly run_id: string | null;
  /** The run of the turn that asked for the handoff. */
  readonly calling_run_id: string | null;
  /** The run of the turn that serves the handoff. */
  readonly target_run_id: string | null;
  /** The turn that serves the handoff; null while no turn does. */
  readonly turn_id: string | null;
  /** The latest approval ticket that the handoff waits or waited for. */
  readonly ticket_id: string | null;
  /** The identical handoff whose result this handoff shares. */
  readonly joined_to: string | null;
  readonly root_handoff_id: string;
  readonly parent_handoff_id: string | null;
  readonly depth: number;
  readonly mode: HandoffMode;
  /** The handoff's place in its chain; a compensation has the place of its hop. Null outside chains. */
  readonly hop: number | null;
  /** The hop that this handoff undoes. */
  readonly compensates: string | null;
  /** The handoff whose cached result this handoff has; null when it was carried out itself. */
  readonly cached_from: string | null;
  readonly cached: boolean;
  /** The policy's decision: level, rule_id, policy_version and trace; null when no policy was asked. */
  readonly decision: JsonObject | null;
  /** The number of attempts that were begun at a platform. */
  readonly attempts: number;
  /**
   * The parts that the platform could not carry, `{sent_cards, lost: [{card_id, what, why}]}`; null when this is not
   * known.
   */
  readonly loss: JsonObject | null;
}

/** A handoff without its context, payload and result, each of which may be large. */
export type HandoffOutline = Omit<Handoff, 'context' | 'payload' | 'result'>;

/** One line of a handoff's log. Further members describe the event. */
export interface HandoffEvent {
  /** For example `handoff.requested`. */
  readonly event_type: string;
  readonly handoff_id: string;
  /** From 1, without gaps. */
  readonly seq: number;
  /** RFC 3339. */
  readonly created_at: string;
  readonly [detail: string]: JsonValue;
}

/** One part of a handoff's output. `seq` rises by one from part to part, from 1. */
export type HandoffPart =
  | { readonly seq: number; readonly type: 'text'; readonly text: string }
  /**
   * Cancels the earlier parts: an attempt or a step has ended in another way, and the following output starts again.
   */
  | { readonly seq: number; readonly type: 'reset' }
  /** The end. If the result is a text, it equals the joined texts since the last reset. */
  | {
      readonly seq: number;
      readonly type: 'result';
      readonly status: 'completed';
      readonly result: JsonValue;
    }
  | {
      readonly seq: number;
      readonly type: 'error';
      readonly status: 'failed' | 'rejected';
      readonly error: ErrorBody | null;
    };

/** A question or a reply of a running handoff. */
export interface HandoffMessage {
  /** From 1, without gaps. */
  readonly seq: number;
  readonly type: 'question' | 'reply';
  /** Null after erasure. */
  readonly text: string | null;
  readonly card_id: string;
  /** For a reply: the number of its question. */
  readonly replies_to: number | null;
  /** For a reply: its author. */
  readonly by: string | null;
  readonly created_at: Date;
  /** For a question: the deadline for replies. */
  readonly expires_at: Date | null;
  /** For a question. `closed`: no caller waits for the reply, since the handoff or the attempt that asked has ended. */
  readonly state: 'open' | 'answered' | 'expired' | 'closed' | null;
}

/** The wire form, as in `schemas/handoff_request.schema.json`. */
export interface HandoffRequest {
  readonly handoff_id: string;
  readonly from_run_id: string;
  readonly from_agent: string;
  readonly to_agent: string;
  readonly task_description: string;
  readonly context: JsonObject;
  /** RFC 3339. */
  readonly requested_at: string;
}

/** The wire form, as in `schemas/handoff_response.schema.json`. */
export interface HandoffResponse {
  readonly handoff_id: string;
  readonly to_run_id: string;
  readonly status: 'accepted' | 'rejected' | 'completed' | 'failed';
  readonly result: JsonObject | null;
  readonly completed_at: string | null;
  readonly error: string | null;
}

/** The run to which the caller assigns the handoff. */
const callersRunOf = ({
  run_id,
  calling_run_id,
  handoff_id,
}: Pick<Handoff, 'run_id' | 'calling_run_id' | 'handoff_id'>): string =>
  run_id ?? calling_run_id ?? handoff_id;

export const toHandoffRequest = (handoff: Handoff): HandoffRequest => ({
  handoff_id: handoff.handoff_id,
  from_run_id: callersRunOf(handoff),
  from_agent: handoff.source_agent,
  to_agent: handoff.target_agent,
  task_description: handoff.task,
  context: handoff.context,
  requested_at: handoff.created_at.toISOString(),
});

const asObject = (result: JsonValue): JsonObject | null =>
  result === null || isJsonObject(result) ? result : { output: result };

/** @returns Undefined while the handoff is neither accepted nor rejected. */
export function toHandoffResponse(handoff: Handoff): HandoffResponse | undefined {
  const status = responseStatusOf(handoff.phase);
  if (status === undefined) return undefined;
  return {
    handoff_id: handoff.handoff_id,
    to_run_id: handoff.target_run_id ?? handoff.handoff_id,
    status,
    result: asObject(handoff.result),
    completed_at: handoff.ended_at?.toISOString() ?? null,
    error: handoff.error?.message ?? null,
  };
}

/** The person, agent or key that asks or decides. */
export interface Principal {
  readonly id: string;
  readonly kind: 'person' | 'agent' | 'key';
  /** The principal's permissions, such as `approvals:write`. */
  readonly scopes: readonly string[];
}

export const TICKET_STATUSES = ['pending', 'approved', 'denied', 'expired'] as const;
export type TicketStatus = (typeof TICKET_STATUSES)[number];

/**
 * A request that waits for a decision, or that was decided. Times are RFC 3339. The form is that of
 * `schemas/approval_ticket.schema.json`.
 */
export interface ApprovalTicket {
  readonly ticket_id: string;
  readonly run_id: string;
  readonly agent_slug: string;
  readonly tool_name: string;
  /** Masked arguments. */
  readonly tool_args: JsonObject;
  readonly args_hash: string;
  readonly requested_at: string;
  readonly expires_at: string;
  readonly status: TicketStatus;
  readonly step_id: string | null;
  readonly resolved_at: string | null;
  readonly resolved_by: string | null;
  readonly decision_reason: string | null;
  readonly metadata: JsonObject;
  readonly response: JsonObject | null;
}
