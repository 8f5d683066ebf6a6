/** Sessions in the form for clients. */
import {
  type ContextCounts,
  type ContextType,
  type HandoffPhase,
  type HandoffRequestType,
  type JsonObject,
  type JsonValue,
  type SessionStatus,
  sessionStateOf,
  totalOf,
} from '@boxcar/kernel';
import type { HandoffSession } from '@boxcar/store';

/** A session, with the part that the client may read. */
export interface SessionAnswer {
  readonly id: string;
  readonly session_key: string;
  readonly status: SessionStatus;
  readonly is_dormant: boolean;
  readonly is_archived: boolean;
  readonly agent_from: string;
  readonly agent_to: string | null;
  readonly retention_policy: string;
  readonly context_entries: number;
  readonly counts: ContextCounts;
  readonly created_at: string;
  readonly last_write_at: string;
  /** Null: it has been completed or canceled. */
  readonly expires_at: string | null;
  readonly ended_at: string | null;
  /** The key of the session that this session continues. */
  readonly continues: string | null;
  readonly tape_box_id: string;
  readonly frozen_head: number | null;
}

export interface ContextAnswer {
  readonly sequence_number: number;
  readonly context_type: ContextType;
  /** Null after an erasure. */
  readonly content: JsonValue;
  readonly metadata: JsonValue;
  readonly created_at: string;
}

export interface WrittenAnswer {
  readonly id: string;
  readonly sequence_number: number;
  readonly context_type: ContextType;
  /** The length in UTF-16 code units, as in JavaScript. */
  readonly content_length: number;
  readonly created_at: string;
}

/** Refusals that depend on the state of the session, not on the protocol. */
export type SessionRefusal =
  | { readonly outcome: 'not_found'; readonly session_key: string }
  | { readonly outcome: 'not_active'; readonly session: SessionAnswer };

export type RegisterAnswer =
  | {
      readonly outcome: 'registered';
      readonly session: SessionAnswer;
      readonly entry: WrittenAnswer;
      readonly is_repeated: boolean;
    }
  /** Null: the client may not read it. */
  | { readonly outcome: 'exists'; readonly session: SessionAnswer | null }
  | SessionRefusal;

export type UpdateAnswer =
  | {
      readonly outcome: 'updated';
      readonly session: SessionAnswer;
      readonly entries: readonly WrittenAnswer[];
      readonly is_repeated: boolean;
    }
  | SessionRefusal;

export type CloseAnswer =
  | { readonly outcome: 'closed'; readonly session: SessionAnswer; readonly is_repeated: boolean }
  | SessionRefusal;

export type ContextPageAnswer =
  | {
      readonly outcome: 'found';
      readonly session: SessionAnswer;
      readonly entries: readonly ContextAnswer[];
      readonly has_more: boolean;
      readonly next_cursor: number | null;
    }
  | SessionRefusal;

export type SummaryAnswer =
  | {
      readonly outcome: 'found';
      readonly session: SessionAnswer;
      readonly summary: string;
      readonly key_points: readonly string[];
      readonly participants: readonly string[];
      readonly generated_at: string;
    }
  | SessionRefusal;

/** The result of a request for one target. */
export interface RequestedTarget {
  readonly target_agent: string;
  readonly handoff_id: string;
  /** Null: the handoff waits for an approval, or for a client that fetches the package. */
  readonly turn_id: string | null;
  readonly ticket_id: string | null;
  /** The status of the session: completed by a full handoff. */
  readonly status: 'active' | 'completed' | 'pending_approval';
}

export type HandoffRequestAnswer =
  | (RequestedTarget & {
      /** `waits`: all targets need an approval, and the session has not changed. */
      readonly outcome: 'handed_on' | 'waits';
      /** The session after the request. */
      readonly session: SessionAnswer;
      readonly source_agent: string;
      readonly request_type: HandoffRequestType;
      /** The summary of the session before the handoff; the same holds for `context_entries`. */
      readonly context_summary: string;
      readonly context_entries: number;
      readonly cache_key: string;
      /** All targets, including the first. */
      readonly targets: readonly RequestedTarget[];
    })
  | SessionRefusal;

/** A session for a client that fetches it. It contains no entries; the client reads them page by page. */
export interface PackageAnswer {
  readonly handoff_id: string;
  readonly phase: HandoffPhase;
  readonly session_key: string;
  readonly source_agent: string;
  readonly target_agent: string;
  readonly request_type: HandoffRequestType;
  readonly context_summary: string;
  readonly context_entries: number;
  readonly request_data: JsonObject;
  /** The tape of the session; `head` is the position at which it was handed on. */
  readonly tape_box_id: string | null;
  readonly head: number | null;
  readonly cache_key: string;
  readonly created_at: string;
}

export type PackageMoveAnswer =
  | { readonly outcome: 'accepted' | 'rejected' | 'completed'; readonly package: PackageAnswer }
  /** The handoff is not a package, or the client may not know of it. */
  | { readonly outcome: 'not_found'; readonly handoff_id: string }
  /** An agent serves it, it waits for an approval, or its phase does not allow the operation. */
  | { readonly outcome: 'not_possible'; readonly package: PackageAnswer; readonly why: string };

export interface SessionListAnswer {
  readonly sessions: readonly SessionAnswer[];
  /** Counted up to 10,000. */
  readonly total: number;
  readonly next_cursor: string | null;
}

export function toSessionAnswer(session: HandoffSession): SessionAnswer {
  const { status, isDormant, isArchived, expiresAt } = sessionStateOf(session, session.now);
  return {
    id: session.id,
    session_key: session.sessionKey,
    status,
    is_dormant: isDormant,
    is_archived: isArchived,
    agent_from: session.agentFrom,
    agent_to: session.agentTo,
    retention_policy: session.retentionPolicy,
    context_entries: totalOf(session.counts),
    counts: session.counts,
    created_at: session.createdAt.toISOString(),
    last_write_at: session.lastWriteAt.toISOString(),
    expires_at: expiresAt?.toISOString() ?? null,
    ended_at: session.endedAt?.toISOString() ?? null,
    continues: session.continues,
    tape_box_id: session.boxId,
    frozen_head: session.frozenHead,
  };
}
