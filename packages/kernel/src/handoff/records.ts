/** Handoffs and approval tickets as they are read, and as they are on the wire. */
import { type ErrorBody, isJsonObject, type JsonObject, type JsonValue } from '../base/index.js';
import { type HandoffPhase, type HandoffStatus, responseStatusOf } from './phases.js';

export const HANDOFF_MODES = ['handoff', 'chain', 'compensate'] as const;
/** A chain has hops; compensate: undoes a hop of a chain that has failed. */
export type HandoffMode = (typeof HANDOFF_MODES)[number];

/** Their turns serve handoffs. */
export const HANDOFF_PRIMITIVES: ReadonlySet<string> = new Set(['handoff', 'handoff_chain', 'handoff_hop']);

export interface Handoff {
  readonly handoff_id: string;
  readonly source_agent: string;
  readonly target_agent: string;
  readonly task: string;
  readonly context: JsonObject;
  /** Null: none was given. */
  readonly payload: JsonValue;
  /** The first name of a platform; adapters of a program may bring others. */
  readonly platform: string;
  readonly phase: HandoffPhase;
  readonly status: HandoffStatus;
  readonly created_at: Date;
  /** Null while it has not ended. */
  readonly ended_at: Date | null;
  readonly result: JsonValue;
  readonly error: ErrorBody | null;
  /** Any text of the caller. */
  readonly run_id: string | null;
  /** The run of the turn that asked for it. */
  readonly calling_run_id: string | null;
  /** The run of the turn that serves it. */
  readonly target_run_id: string | null;
  /** The turn that serves it; null while none does. */
  readonly turn_id: string | null;
  /** The request for approval that it waits for, or waited for last. */
  readonly ticket_id: string | null;
  /** The identical handoff whose result it has. */
  readonly joined_to: string | null;
  readonly root_handoff_id: string;
  readonly parent_handoff_id: string | null;
  readonly depth: number;
  readonly mode: HandoffMode;
  /** Its place in its chain, and of a compensation that of the hop; null outside chains. */
  readonly hop: number | null;
  /** The hop that it undoes. */
  readonly compensates: string | null;
  /** The handoff whose result it has, from the cache; null: it was carried out itself. */
  readonly cached_from: string | null;
  readonly cached: boolean;
  /** What the policy said: level, rule_id, policy_version and trace; null: no policy was asked. */
  readonly decision: JsonObject | null;
  /** Attempts that were begun at a platform. */
  readonly attempts: number;
  /** What the platform could not carry, `{sent_cards, lost: [{card_id, what, why}]}`; null: nothing is known of it. */
  readonly loss: JsonObject | null;
}

/** A handoff without what was handed on, each of which may be large. */
export type HandoffOutline = Omit<Handoff, 'context' | 'payload' | 'result'>;

/** One line of the log of a handoff. Further members say what happened. */
export interface HandoffEvent {
  /** Such as `handoff.requested`. */
  readonly event_type: string;
  readonly handoff_id: string;
  /** From 1, without gaps. */
  readonly seq: number;
  /** RFC 3339. */
  readonly created_at: string;
  readonly [detail: string]: JsonValue;
}

/** One part of what a handoff says. `seq` rises by one from part to part, from 1. */
export type HandoffPart =
  | { readonly seq: number; readonly type: 'text'; readonly text: string }
  /** What was said before is void: an attempt or a step has ended otherwise, and what comes now begins anew. */
  | { readonly seq: number; readonly type: 'reset' }
  /** The end: texts since the last reset, joined, are the result where it is a text. */
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

/** What was asked while a handoff ran, or what was replied. */
export interface HandoffMessage {
  /** From 1, without gaps. */
  readonly seq: number;
  readonly type: 'question' | 'reply';
  /** Null after erasure. */
  readonly text: string | null;
  readonly card_id: string;
  /** Of a reply: the number of its question. */
  readonly replies_to: number | null;
  /** Of a reply: who has replied. */
  readonly by: string | null;
  readonly created_at: Date;
  /** Of a question: nobody may reply later. */
  readonly expires_at: Date | null;
  /** Of a question; closed: nobody waits for its reply, since its handoff or the attempt that asked it has ended. */
  readonly state: 'open' | 'answered' | 'expired' | 'closed' | null;
}

/** On the wire, as `schemas/handoff_request.schema.json` has it. */
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

/** On the wire, as `schemas/handoff_response.schema.json` has it. */
export interface HandoffResponse {
  readonly handoff_id: string;
  readonly to_run_id: string;
  readonly status: 'accepted' | 'rejected' | 'completed' | 'failed';
  readonly result: JsonObject | null;
  readonly completed_at: string | null;
  readonly error: string | null;
}

/** The run that a handoff belongs to for its caller. */
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

/** @returns Undefined while the handoff is pending: nobody has taken or refused it. */
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

/** Who asks or decides. */
export interface Principal {
  readonly id: string;
  readonly kind: 'person' | 'agent' | 'key';
  /** What it may do, such as `approvals:write`. */
  readonly scopes: readonly string[];
}

export const TICKET_STATUSES = ['pending', 'approved', 'denied', 'expired'] as const;
export type TicketStatus = (typeof TICKET_STATUSES)[number];

/** A request that waits for a decision, or had it. Times are RFC 3339. As `schemas/approval_ticket.schema.json` has it. */
export interface ApprovalTicket {
  readonly ticket_id: string;
  readonly run_id: string;
  readonly agent_slug: string;
  readonly tool_name: string;
  /** Masked. */
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
