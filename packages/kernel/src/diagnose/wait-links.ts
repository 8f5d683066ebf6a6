/**
 * Links of a chain of waits that are neither turns nor workers: batches, timers, providers, budgets, project limits.
 */

import type { BatchId, ToolCallId, TurnId, WorkerId } from '../base/index.js';
import type { WaitAdvice, WaitCause } from './wait-cause.js';
import type { WaitFactsBatch, WaitFactsProject, WaitFactsWait } from './wait-facts.js';

export type WaitLinkKind =
  | 'ended'
  | 'lease'
  | 'ring'
  | 'window'
  | 'format'
  | 'project_limit'
  | 'agent_busy'
  | 'warm_cache'
  | 'child'
  | 'batch'
  | 'tool'
  | 'retry'
  | 'provider'
  | 'breaker'
  | 'budget'
  | 'approval'
  | 'selector'
  | 'cycle'
  | 'given_up'
  | 'unread'
  | 'nothing';

export interface WaitLink {
  readonly kind: WaitLinkKind;
  /** The number of levels below the turn in question. */
  readonly level: number;
  readonly turn_id: TurnId;
  /** Names of the turn's agent and of its profile, with the version; null for a turn that was not read. */
  readonly agent: string | null;
  readonly profile: string | null;
  readonly tool_call_id?: ToolCallId;
  /** Name of the called tool. */
  readonly tool?: string;
  readonly worker_id?: WorkerId;
  readonly batch_id?: BatchId;
  readonly budget_id?: string;
  readonly provider?: string;
  /** The turn that this turn waits for; the next links belong to it. */
  readonly on_turn_id?: TurnId;
  /** For a batch: a few unfinished members in different states; the next links belong to them. */
  readonly on_turn_ids?: readonly TurnId[];
  /** For a batch: how many members have not ended, and how many of these the batch still needs. */
  readonly members?: { readonly total: number; readonly open: number; readonly needed: number };
  /** The reason of the wait, as data; `@boxcar/kernel/words` turns it into sentences. */
  readonly what: WaitCause;
  /** ISO 8601 in UTC, as all times here. */
  readonly since: string | null;
  /** The latest time at which the wait ends by itself. */
  readonly until: string | null;
  /** False when nothing existing will end the wait, except its deadline. */
  readonly is_live: boolean;
  /** The next action, by a sweep or by the reader. */
  readonly next: WaitAdvice | null;
}

export type WaitDraft = Omit<WaitLink, 'level' | 'turn_id' | 'agent' | 'profile'>;

interface Clock {
  readonly at: string;
  readonly live_workers: number;
}

export const startWorker = (worker_target: string): WaitAdvice => ({ kind: 'start_worker', worker_target });

/** The action of a sweep when a worker lives; otherwise the advice to start a worker. */
export const sweepOrStart = (
  does: Extract<WaitAdvice, { kind: 'sweep' }>['does'],
  { live_workers }: { readonly live_workers: number },
): WaitAdvice => (live_workers > 0 ? { kind: 'sweep', does } : startWorker(''));

/** A call that waits for a batch; the deadline of the batch applies. */
export function describeBatch(
  call: { readonly tool_call_id: ToolCallId; readonly name: string },
  batch: WaitFactsBatch,
  { at, live_workers }: Clock,
): WaitDraft {
  const { batch_id, total, remaining, deadline_at: until, open_turn_ids: open } = batch;
  const needed =
    batch.min_success === null ? remaining : Math.min(batch.min_success - batch.succeeded, remaining);
  const members = { total, open: remaining, needed: Math.max(needed, 0) };
  const base = {
    tool_call_id: call.tool_call_id,
    tool: call.name,
    batch_id,
    members,
    since: batch.created_at,
    until,
  };
  const what = {
    kind: 'batch',
    tool: call.name,
    batch_id,
    status: batch.status,
    closing: batch.closing,
    total,
    remaining,
    succeeded: batch.succeeded,
    min_success: batch.min_success,
    shown: open.length,
  } as const;
  if (batch.status !== 'running')
    return {
      ...base,
      kind: 'nothing',
      what: { ...what, state: 'ended' },
      is_live: false,
      next: { kind: 'report_defect', is_perhaps_by_hand: false },
    };
  const isOver = until !== null && until <= at;
  if (batch.is_due || batch.closing !== null || isOver) {
    return {
      ...base,
      kind: 'batch',
      what: { ...what, state: isOver && batch.closing === null ? 'overdue' : 'ending' },
      is_live: live_workers > 0,
      next: sweepOrStart('end_batch', { live_workers }),
    };
  }
  return {
    ...base,
    kind: 'batch',
    on_turn_ids: open,
    what: { ...what, state: 'running' },
    is_live: true,
    next: null,
  };
}

const wordOf = (value: unknown): string => (typeof value === 'string' ? value : '');
/**
 * A turn that waits for a time, a provider, a budget or a selector. Any living worker wakes it, or a person outside
 * does.
 */
export function describeTimer(
  wait: WaitFactsWait,
  turn: { readonly deadline_at: string | null },
  { at, live_workers }: Clock,
): WaitDraft {
  const { kind, created_at: since, due_at, detail, provider } = wait;
  const base = { since, until: due_at ?? turn.deadline_at };
  const isLive = live_workers > 0;
  const start = isLive ? null : startWorker('');
  switch (kind) {
    case 'retry': {
      const isLate = due_at !== null && due_at <= at;
      return {
        ...base,
        kind: 'retry',
        what: {
          kind: 'retry',
          retry: String(detail.retry ?? '?'),
          code: wordOf(detail.code),
          message: wordOf(detail.message),
        },
        is_live: isLive,
        next: start ?? (isLate ? { kind: 'sweep', does: 'wake' } : null),
      };
    }
    case 'limit': {
      if (provider === null)
        return {
          ...base,
          kind: 'provider',
          what: { kind: 'provider', provider: null },
          is_live: isLive,
          next: start,
        };
      const { name, open_until: openUntil, failures, waiting } = provider;
      const { max_concurrent, requests_per_minute } = provider;
      if (openUntil !== null)
        return {
          ...base,
          kind: 'breaker',
          provider: name,
          until: openUntil,
          what: { kind: 'breaker', provider: name, failures, waiting },
          is_live: isLive,
          next: start ?? { kind: 'tried_again' },
        };
      return {
        ...base,
        kind: 'provider',
        provider: name,
        what: {
          kind: 'provider',
          provider: name,
          max_concurrent,
          requests_per_minute,
          reason: wordOf(detail.reason),
          waiting,
        },
        is_live: isLive,
        next: start ?? { kind: 'more_room', provider: name },
      };
    }
    case 'budget': {
      const id = wordOf(detail.budget_id);
      const limit = wordOf(detail.limit);
      return {
        ...base,
        kind: 'budget',
        budget_id: id,
        what: {
          kind: 'budget',
          budget_id: id,
          limit,
          limit_value: String(detail.limit_value ?? '?'),
          needed: String(detail.needed ?? '?'),
        },
        is_live: false,
        next: { kind: 'raise_budget', budget_id: id, limit },
      };
    }
    case 'selector': {
      const { name = wordOf(detail.selector), version = null, workers = [] } = wait.selector ?? {};
      return {
        ...base,
        kind: 'selector',
        what: { kind: 'selector', selector: name, version, workers },
        is_live: isLive,
        next: { kind: 'selector_worker', is_there: workers.length > 0, due_at },
      };
    }
    default:
      return kind satisfies never;
  }
}

/** A queued turn whose project has reached its limit of running turns. */
export const describeProjectLimit = (
  { name, max_concurrent, active }: WaitFactsProject,
  turn: { readonly created_at: string; readonly deadline_at: string | null },
  { live_workers }: Clock,
): WaitDraft => ({
  kind: 'project_limit',
  what: { kind: 'project_limit', project: name, active, max_concurrent },
  since: turn.created_at,
  until: turn.deadline_at,
  is_live: live_workers > 0,
  next: live_workers > 0 ? { kind: 'raise_concurrency', project: name } : startWorker(''),
});
