/** What the store reads of a turn that waits, and of the turns below it. */
import type {
  AgentId,
  BatchId,
  JsonObject,
  RunId,
  TicketId,
  ToolCallId,
  TurnId,
  WorkerId,
} from '../base/index.js';
import type { BatchKind, BatchStatus, Closing, TurnStatus } from '../turn/index.js';
import type { NamedWorker } from './wait-cause.js';

/** What an open call waits for when it waits for many turns. */
export interface WaitFactsBatch {
  readonly batch_id: BatchId;
  readonly kind: BatchKind;
  readonly status: BatchStatus;
  readonly closing: Closing | null;
  readonly total: number;
  readonly remaining: number;
  readonly succeeded: number;
  readonly min_success: number | null;
  readonly is_due: boolean;
  readonly created_at: string;
  readonly deadline_at: string | null;
  /** A few of the members that have not ended, one of each way to stand first. */
  readonly open_turn_ids: readonly TurnId[];
}

/** What a suspended turn waits for that waits for no call. */
export interface WaitFactsWait {
  readonly kind: 'retry' | 'limit' | 'budget' | 'selector';
  readonly created_at: string;
  readonly due_at: string | null;
  readonly detail: JsonObject;
  /** Whose room it waits for. */
  readonly provider: {
    readonly name: string;
    /** No call before; null = it works. */
    readonly open_until: string | null;
    readonly failures: number;
    readonly max_concurrent: number | null;
    readonly requests_per_minute: number | null;
    readonly waiting: number;
  } | null;
  /** The selector it waits for, and the living workers of its pool that say that they have it. Absent: it waits for none. */
  readonly selector?: {
    readonly name: string;
    /** Null: any version will do. */
    readonly version: string | null;
    readonly workers: readonly NamedWorker[];
  } | null;
}

/** What a project allows at once, and what there is. */
export interface WaitFactsProject {
  readonly name: string;
  readonly max_concurrent: number;
  readonly active: number;
}

export interface WaitFactsCall {
  readonly tool_call_id: ToolCallId;
  readonly name: string;
  /** How it is answered: function, primitive, queue or none. */
  readonly route: string;
  /** Whose queue its job is in. */
  readonly target: string | null;
  readonly created_at: string;
  readonly deadline_at: string;
  /** The turn whose end is its result. */
  readonly awaited_turn_id: TurnId | null;
  /** The batch whose end is its result, by the deadline of the batch. */
  readonly batch: WaitFactsBatch | null;
  readonly given_up: string | null;
  /** The request that a person has not decided yet. Absent or null: there is none. */
  readonly approval?: {
    readonly ticket_id: TicketId;
    readonly created_at: string;
    readonly expires_at: string;
  } | null;
}

export interface WaitFactsTurn {
  readonly turn_id: TurnId;
  readonly run_id: RunId;
  readonly agent_id: AgentId;
  readonly agent: string;
  /** Name and version: `writer@2`. */
  readonly profile: string;
  readonly status: TurnStatus;
  readonly worker_target: string;
  readonly created_at: string;
  readonly dispatched_at: string | null;
  readonly deadline_at: string | null;
  readonly ended_at: string | null;
  /** When the step in hand was opened. */
  readonly step_opened_at: string | null;
  readonly holder: {
    readonly worker_id: WorkerId;
    readonly hostname: string | null;
    readonly pid: number | null;
    /** Null: its row is gone. */
    readonly lease_until: string | null;
    readonly is_alive: boolean;
  } | null;
  readonly calls: readonly WaitFactsCall[];
  /** While it is suspended without an open call. */
  readonly wait: WaitFactsWait | null;
  /** While it is queued and its project allows only so many at once. */
  readonly project: WaitFactsProject | null;
  /** While it is queued: the turn whose first model call fills the prompt cache for it, and the end of that wait. */
  readonly held: { readonly turn_id: TurnId; readonly until: string } | null;
  /** While it is queued: the turn of its agent that comes first. */
  readonly behind_turn_id: TurnId | null;
  /** While it is queued behind none of its agent: how many of its project and pool come before it. */
  readonly ahead: number | null;
  /** The pool it belongs to. */
  readonly live_workers: number;
  readonly window: number;
  readonly dispatched: number;
  /** The oldest build that can read it, and the newest that a living worker of its pool has, by migrations; null: none lives. */
  readonly format: number;
  readonly newest_build: number | null;
  /** What the sweep said when it gave the row up. */
  readonly given_up: string | null;
}

export interface WaitFacts {
  /** The server's clock. */
  readonly at: string;
  /** Living workers of any pool: whoever lives looks after deadlines. */
  readonly live_workers: number;
  /** The turn in question first. */
  readonly turns: readonly WaitFactsTurn[];
  /** There are more turns below than were read. */
  readonly has_more: boolean;
}
