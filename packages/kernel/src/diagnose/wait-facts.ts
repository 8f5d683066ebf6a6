/** The store's facts about a waiting turn and the turns below it. */
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

/** The batch of an open call that waits for several turns. */
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
  /** A few of the members that have not ended; the first of them are in different states. */
  readonly open_turn_ids: readonly TurnId[];
}

/** The wait of a suspended turn that does not wait for a call. */
export interface WaitFactsWait {
  readonly kind: 'retry' | 'limit' | 'budget' | 'selector';
  readonly created_at: string;
  readonly due_at: string | null;
  readonly detail: JsonObject;
  /** The provider whose room the turn waits for. */
  readonly provider: {
    readonly name: string;
    /** No call may begin before this time; null when the provider works. */
    readonly open_until: string | null;
    readonly failures: number;
    readonly max_concurrent: number | null;
    readonly requests_per_minute: number | null;
    readonly waiting: number;
  } | null;
  /**
   * The selector that the turn waits for, and the living workers of its pool that report that they have it. Absent when
   * it waits for no selector.
   */
  readonly selector?: {
    readonly name: string;
    /** Null when any version is suitable. */
    readonly version: string | null;
    readonly workers: readonly NamedWorker[];
  } | null;
}

/** The limit of running turns of a project, and the current number. */
export interface WaitFactsProject {
  readonly name: string;
  readonly max_concurrent: number;
  readonly active: number;
}

export interface WaitFactsCall {
  readonly tool_call_id: ToolCallId;
  readonly name: string;
  /** How the call is answered: function, primitive, queue or none. */
  readonly route: string;
  /** The target whose queue holds the call's job. */
  readonly target: string | null;
  readonly created_at: string;
  readonly deadline_at: string;
  /** The turn whose end is the result of the call. */
  readonly awaited_turn_id: TurnId | null;
  /** The batch whose end is the result of the call; the deadline of the batch applies. */
  readonly batch: WaitFactsBatch | null;
  readonly given_up: string | null;
  /** A request for approval that no person has decided yet. Absent or null when there is no request. */
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
  /** The time when the current step was opened. */
  readonly step_opened_at: string | null;
  readonly holder: {
    readonly worker_id: WorkerId;
    readonly hostname: string | null;
    readonly pid: number | null;
    /** Null when the worker's row no longer exists. */
    readonly lease_until: string | null;
    readonly is_alive: boolean;
  } | null;
  readonly calls: readonly WaitFactsCall[];
  /** Present while the turn is suspended without an open call. */
  readonly wait: WaitFactsWait | null;
  /** Present while the turn is queued and its project limits the number of running turns. */
  readonly project: WaitFactsProject | null;
  /** For a queued turn: the turn whose first model call fills the prompt cache for it, and the end of that wait. */
  readonly held: { readonly turn_id: TurnId; readonly until: string } | null;
  /** For a queued turn: the turn of its agent that must run before it. */
  readonly behind_turn_id: TurnId | null;
  /** For a queued turn without an earlier turn of its agent: the number of turns of its project and pool before it. */
  readonly ahead: number | null;
  /** The figures of the turn's pool. */
  readonly live_workers: number;
  readonly window: number;
  readonly dispatched: number;
  /**
   * The oldest build that can read the turn, and the newest build of a living worker in its pool, both counted in
   * migrations; null when no worker lives.
   */
  readonly format: number;
  readonly newest_build: number | null;
  /** The sweep's error when it gave the row up. */
  readonly given_up: string | null;
}

export interface WaitFacts {
  /** The server's clock. */
  readonly at: string;
  /** Living workers of any pool: every living worker checks deadlines. */
  readonly live_workers: number;
  /** The turn in question is the first. */
  readonly turns: readonly WaitFactsTurn[];
  /** True when more turns are below than were read. */
  readonly has_more: boolean;
}
