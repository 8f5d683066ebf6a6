/**
 * Why a turn waits and what ends the wait, as data: kinds, names and figures. `@boxcar/kernel/words` turns them into
 * sentences.
 */
import type { BatchId, TicketId, TurnId, WorkerId } from '../base/index.js';
import type { BatchStatus, Closing, TurnStatus } from '../turn/index.js';

/** A turn with the name of its agent; null when the turn was not read. */
export interface NamedTurn {
  readonly turn_id: TurnId;
  readonly agent: string | null;
}

export interface NamedWorker {
  readonly worker_id: WorkerId;
  readonly hostname: string | null;
  readonly pid: number | null;
}

interface PoolFigures {
  readonly worker_target: string;
  readonly live_workers: number;
  readonly dispatched: number;
  readonly window: number;
}

export interface BatchCause {
  readonly kind: 'batch';
  readonly tool: string;
  readonly batch_id: BatchId;
  readonly status: BatchStatus;
  readonly closing: Closing | null;
  readonly total: number;
  readonly remaining: number;
  readonly succeeded: number;
  readonly min_success: number | null;
  /** Open members whose own waits are shown. */
  readonly shown: number;
  readonly state: 'running' | 'overdue' | 'ending' | 'ended';
}

export type WaitCause =
  | { readonly kind: 'ended'; readonly status: TurnStatus }
  | { readonly kind: 'given_up'; readonly tool: string | null; readonly error: string }
  | ({ readonly kind: 'lease'; readonly is_alive: boolean } & NamedWorker)
  | {
      readonly kind: 'format';
      readonly worker_target: string;
      readonly format: number;
      readonly newest_build: number | null;
    }
  | ({ readonly kind: 'ring' } & PoolFigures)
  | ({ readonly kind: 'window'; readonly ahead: number } & PoolFigures)
  | {
      readonly kind: 'project_limit';
      readonly project: string;
      readonly active: number;
      readonly max_concurrent: number;
    }
  | { readonly kind: 'agent_busy' | 'warm_cache'; readonly on: NamedTurn }
  | { readonly kind: 'child'; readonly tool: string; readonly on: NamedTurn }
  | {
      readonly kind: 'tool';
      readonly tool: string;
      /** The target whose queue holds the call. */
      readonly target: string | null;
      /** True when a worker holds the turn. */
      readonly is_held: boolean;
    }
  | BatchCause
  | { readonly kind: 'retry'; readonly retry: string; readonly code: string; readonly message: string }
  | {
      readonly kind: 'provider';
      readonly provider: string;
      readonly max_concurrent: number | null;
      readonly requests_per_minute: number | null;
      readonly reason: string;
      readonly waiting: number;
    }
  | { readonly kind: 'provider'; readonly provider: null }
  | {
      readonly kind: 'breaker';
      readonly provider: string;
      readonly failures: number;
      readonly waiting: number;
    }
  | {
      readonly kind: 'budget';
      readonly budget_id: string;
      readonly limit: string;
      readonly limit_value: string;
      readonly needed: string;
    }
  | {
      readonly kind: 'approval';
      readonly tool: string;
      readonly ticket_id: TicketId;
      readonly expires_at: string;
    }
  | {
      readonly kind: 'selector';
      readonly selector: string;
      readonly version: string | null;
      readonly workers: readonly NamedWorker[];
    }
  | { readonly kind: 'cycle'; readonly of: WaitCause }
  | { readonly kind: 'unread'; readonly has_more: boolean }
  | { readonly kind: 'nothing' };

export type WaitAdvice =
  | {
      readonly kind: 'start_worker' | 'start_newer_worker' | 'more_workers';
      readonly worker_target: string;
    }
  | {
      /** No action is needed: a sweep does it within seconds. */
      readonly kind: 'sweep';
      readonly does: 'take_over' | 'take_in' | 'end_batch' | 'wake' | 'break_cycle';
    }
  | { readonly kind: 'retry_dead' | 'tried_again' }
  | { readonly kind: 'report_defect'; readonly is_perhaps_by_hand: boolean }
  | { readonly kind: 'watch_queue'; readonly target: string }
  | { readonly kind: 'more_room'; readonly provider: string }
  | { readonly kind: 'raise_concurrency'; readonly project: string }
  | { readonly kind: 'raise_budget'; readonly budget_id: string; readonly limit: string }
  | { readonly kind: 'selector_worker'; readonly is_there: boolean; readonly due_at: string | null }
  | { readonly kind: 'decide'; readonly ticket_id: TicketId }
  | { readonly kind: 'ask_again'; readonly turn_id: TurnId };
