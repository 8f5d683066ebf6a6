/**
 * Decides when a batch ends, and with which status.
 *
 * J1  A batch ends once all members have ended. A `collect` also ends at its deadline, with the results so far.
 * J2  The reason to end a batch earlier (`closing`) is decided once. The unfinished members are then ended, so J1
 *     follows. When no call waits for the batch any more (`cancel`), members with other waiters continue, and the batch
 *     ends without them.
 * J3  A final status never changes.
 */

import type { AgentId, BoxId, ErrorBody, TurnId } from '../base/index.js';
import { isJsonObject, type JsonValue, jsonText } from '../base/index.js';
import { type FinalStatus, isFinal, type TurnStatus } from './turn.js';

/** `fork_join` owns its members and may end them; `collect` only waits for them. */
export type BatchKind = 'fork_join' | 'collect';

export const BATCH_STATUSES = ['running', 'success', 'partial', 'failed', 'timeout', 'canceled'] as const;
export type BatchStatus = (typeof BATCH_STATUSES)[number];
export type FinalBatchStatus = Exclude<BatchStatus, 'running'>;

/** Why the unfinished members are being ended. */
export type Closing = 'deadline' | 'fail_fast' | 'min_success' | 'cancel';

/** The input of the decision; the counters come from the batch's row. */
export interface JoinState {
  readonly kind: BatchKind;
  readonly status: BatchStatus;
  readonly closing: Closing | null;
  readonly total: number;
  /** Members that have not ended. */
  readonly remaining: number;
  /** Members that ended in `success`. */
  readonly succeeded: number;
  /** Members that ended as failed, timeout or canceled; `partial` counts neither as succeeded nor as failed. */
  readonly failed: number;
  /**
   * Unfinished members that continue because of other waiters; only used when the batch itself is closed by `cancel`.
   */
  readonly sparedCount?: number;
  /** Members that could not be ended; they count as failed. */
  readonly lostCount?: number;
  readonly minSuccess: number | null;
  readonly isFailFast: boolean;
  readonly isOverdue: boolean;
}

export type JoinDecision =
  | { readonly kind: 'wait' }
  /** The unfinished members end as `memberStatus`; the batch ends after them. */
  | { readonly kind: 'close'; readonly closing: Closing; readonly memberStatus: 'canceled' | 'timeout' }
  | { readonly kind: 'finish'; readonly status: FinalBatchStatus; readonly closing: Closing | null };

function closingOf(state: JoinState): Closing | null {
  if (state.closing !== null) return state.closing;
  if (state.minSuccess !== null && state.succeeded >= state.minSuccess) return 'min_success';
  if (state.isFailFast && state.failed + (state.lostCount ?? 0) > 0) return 'fail_fast';
  return state.isOverdue ? 'deadline' : null;
}

function statusOf(state: JoinState, closing: Closing | null): FinalBatchStatus {
  if (closing === 'cancel') return 'canceled';
  if (state.succeeded >= (state.minSuccess ?? state.total)) return 'success';
  if (closing === 'deadline') return 'timeout';
  return state.succeeded > 0 ? 'partial' : 'failed';
}

/** The next action for a batch in this state. Rule: docs/reference/primitives.md, "fork_join". */
export function decideJoin(state: JoinState): JoinDecision {
  if (state.status !== 'running') return { kind: 'wait' };
  const spared = state.closing === 'cancel' ? (state.sparedCount ?? 0) : 0;
  if (state.remaining === spared + (state.lostCount ?? 0))
    return { kind: 'finish', status: statusOf(state, state.closing), closing: state.closing };
  const closing = closingOf(state);
  if (closing === null) return { kind: 'wait' };
  if (state.kind === 'collect') return { kind: 'finish', status: statusOf(state, closing), closing };
  return { kind: 'close', closing, memberStatus: closing === 'deadline' ? 'timeout' : 'canceled' };
}

const NO_SUCCESS: ReadonlySet<JsonValue | undefined> = new Set(['failed', 'timeout', 'canceled']);

/**
 * Whether the result of a call says that the awaited turn or batch did not succeed. The call itself is a success,
 * because it was answered.
 */
export const isFailedWork = (result: JsonValue): boolean =>
  isJsonObject(result) &&
  NO_SUCCESS.has(result.status) &&
  (typeof result.turn_id === 'string' || typeof result.batch_id === 'string');

/** The facts about a member that the answer needs. */
export interface JoinedTurn {
  readonly turnId: TurnId;
  readonly agentId: AgentId;
  readonly outputBoxId: BoxId;
  readonly status: TurnStatus;
  readonly deliverable: JsonValue;
  readonly error: Pick<ErrorBody, 'code' | 'message'> | null;
}

export interface MemberResult {
  readonly task_index: number;
  readonly status: FinalStatus;
  readonly turn_id: TurnId;
  readonly agent_id: AgentId;
  readonly output_box_id: BoxId;
  /** The deliverable, or its beginning when it is long. */
  readonly summary?: JsonValue;
  /** True when the summary is not the whole deliverable; the output box holds all of it. */
  readonly is_cut?: true;
  readonly error?: { readonly code: string; readonly message: string };
}

/**
 * The approximate maximum of characters in all summaries of an answer together, so that the results of a wide batch
 * still fit into a prompt.
 */
const MAX_SUMMARIES = 200_000;
const MAX_SUMMARY = 8_000;
const MIN_SUMMARY = 200;

function summarize(deliverable: JsonValue, limit: number): Pick<MemberResult, 'summary' | 'is_cut'> {
  if (deliverable === null) return {};
  const text = typeof deliverable === 'string' ? deliverable : jsonText(deliverable);
  if (text.length <= limit) return { summary: deliverable };
  // The cut must not split a character of two UTF-16 code units.
  const end = /[\ud800-\udbff]/.test(text.charAt(limit - 1)) ? limit - 1 : limit;
  return { summary: text.slice(0, end), is_cut: true };
}

/** How many characters of each deliverable an answer with this many members shows. The store need not read more. */
export const summaryLimit = (members: number): number =>
  Math.max(MIN_SUMMARY, Math.min(MAX_SUMMARY, Math.floor(MAX_SUMMARIES / Math.max(members, 1))));

/**
 * The outcome of every member, by index. A member that has not ended (a `collect` at its deadline) is listed as
 * `timeout`.
 */
export function buildResults(turns: readonly JoinedTurn[]): MemberResult[] {
  const limit = summaryLimit(turns.length);
  return turns.map((turn, index): MemberResult => {
    const ids = {
      task_index: index,
      turn_id: turn.turnId,
      agent_id: turn.agentId,
      output_box_id: turn.outputBoxId,
    };
    if (!isFinal(turn.status))
      return {
        ...ids,
        status: 'timeout',
        error: { code: 'wait_timeout', message: `The turn is ${turn.status} and continues.` },
      };
    return {
      ...ids,
      status: turn.status,
      ...summarize(turn.deliverable, limit),
      ...(turn.error === null ? {} : { error: { code: turn.error.code, message: turn.error.message } }),
    };
  });
}
