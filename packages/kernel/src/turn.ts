/**
 * The states of a turn and what may follow what.
 *
 *   queued → dispatched → running → success | partial | failed | timeout | canceled
 *   running → suspended → dispatched        (waits for calls; resume)
 *   running → dispatched                    (release, takeover)
 *   queued, dispatched, suspended → a final status (cancel, deadline, a budget's end)
 *   suspended → dispatched                  (a wait is over; boxcar.waits says why it waited)
 *
 * T1  Every transition into `dispatched` raises the epoch by one; a claim needs `dispatched` at exactly that epoch.
 * T2  Nothing leaves a final status.
 * T3  Every end leaves exactly one `task.deliverable`.
 */
import type { ErrorBody } from './errors.js';
import type { JsonValue } from './json.js';
import type { ModelReply } from './ports.js';

export const TURN_STATUSES = [
  'queued',
  'dispatched',
  'running',
  'suspended',
  'success',
  'partial',
  'failed',
  'timeout',
  'canceled',
] as const;
export type TurnStatus = (typeof TURN_STATUSES)[number];

export const FINAL_STATUSES = ['success', 'partial', 'failed', 'timeout', 'canceled'] as const;
export type FinalStatus = (typeof FINAL_STATUSES)[number];

const NEXT: Readonly<Record<TurnStatus, readonly TurnStatus[]>> = {
  queued: ['dispatched', 'partial', 'timeout', 'failed', 'canceled'],
  dispatched: ['running', 'dispatched', 'partial', 'timeout', 'failed', 'canceled'],
  running: ['suspended', 'dispatched', ...FINAL_STATUSES],
  suspended: ['dispatched', 'partial', 'timeout', 'failed', 'canceled'],
  success: [],
  partial: [],
  failed: [],
  timeout: [],
  canceled: [],
};

export const isFinal = (status: TurnStatus): status is FinalStatus => NEXT[status].length === 0;
export const canFollow = (from: TurnStatus, to: TurnStatus): boolean => NEXT[from].includes(to);

export type CallOutcome = 'success' | 'failed' | 'timeout' | 'canceled';

/** What a finished tool call gives back. `result` on success, `error` otherwise (a result may stand beside it). */
export interface CallResult {
  readonly status: CallOutcome;
  readonly result?: JsonValue;
  readonly error?: ErrorBody;
}

/** How a turn ended, as its caller sees it. */
export interface TurnEnd {
  readonly status: FinalStatus;
  readonly deliverable: JsonValue;
  readonly error?: ErrorBody;
}

/** What the kernel reads in a model's reply. */
export type StepOutcome =
  | { readonly kind: 'calls' }
  | { readonly kind: 'end'; readonly text: string }
  | { readonly kind: 'remind'; readonly reminder: string };

/** A turn whose model answers nothing usable this many times in a row is ended as failed. */
export const MAX_EMPTY_REPLIES = 3;

/**
 * What follows from a reply: calls are run; text ends the turn when nothing else must; otherwise the model is reminded.
 * Source: docs/turns.md, "Ends".
 */
export function decideStep(
  reply: Pick<ModelReply, 'text' | 'toolCalls'>,
  profile: { readonly must_end_with: readonly string[] },
): StepOutcome {
  if (reply.toolCalls.length > 0) return { kind: 'calls' };
  if (reply.text.trim() === '') {
    return { kind: 'remind', reminder: 'Your last answer was empty. Answer with text or call a tool.' };
  }
  if (profile.must_end_with.length > 0) {
    return {
      kind: 'remind',
      reminder: `This task ends only with a call of ${profile.must_end_with.join(' or ')}. Call it when you are done.`,
    };
  }
  return { kind: 'end', text: reply.text };
}

/** The notice the model gets when few steps are left; undefined when there are enough. */
export function stepNotice(stepsLeft: number, canSubmitResult: boolean): string | undefined {
  if (stepsLeft === 2) return 'Two steps are left for this task. Prepare your answer.';
  if (stepsLeft === 1) {
    return canSubmitResult
      ? 'This is the last step. Call submit_result now.'
      : 'This is the last step. Give your answer now, without calling tools.';
  }
  return undefined;
}
