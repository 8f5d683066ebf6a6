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
import type { ErrorBody, JsonValue } from '../base/index.js';
import type { ModelReply } from '../model/index.js';

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

const SUBMIT_RESULT = 'submit_result';

/** What makes the end of a turn a success: a call of one of `must_end_with`, and a result with the fields that bind it. */
export interface EndRule {
  readonly must_end_with: readonly string[];
  /** Fields bind the result of the turn. */
  readonly hasResultFields?: boolean;
}

/** The calls that may bring a turn to its end: all that its last step may make. */
export function enders(
  { must_end_with: names, hasResultFields = false }: EndRule,
  canSubmitResult = false,
): readonly string[] {
  const canSubmit = hasResultFields || (names.length === 0 && canSubmitResult);
  return [...new Set([...names, ...(canSubmit ? [SUBMIT_RESULT] : [])])];
}

/** The calls that a turn needs to end, in words; empty when text ends it. */
function describeEnd({ must_end_with: names, hasResultFields = false }: EndRule): string {
  const first = names.join(' or ');
  if (!hasResultFields) return first;
  return names.length === 0 || names.includes(SUBMIT_RESULT)
    ? SUBMIT_RESULT
    : `${first}, and then of ${SUBMIT_RESULT}`;
}

/**
 * What follows from a reply: calls are run; text ends the turn when nothing else must; otherwise the model is reminded.
 * Source: docs/turns.md, "Ends".
 */
export function decideStep(reply: Pick<ModelReply, 'text' | 'toolCalls'>, rule: EndRule): StepOutcome {
  if (reply.toolCalls.length > 0) return { kind: 'calls' };
  if (reply.text.trim() === '') {
    return { kind: 'remind', reminder: 'Your last answer was empty. Answer with text or call a tool.' };
  }
  const needed = describeEnd(rule);
  if (needed !== '')
    return {
      kind: 'remind',
      reminder: `This task ends only with a call of ${needed}. Call it when you are done.`,
    };
  return { kind: 'end', text: reply.text };
}

const TWO_LEFT = 'Two steps are left for this task.';
const ONE_LEFT = 'This is the last step.';

/**
 * The notice the model gets when few steps are left; undefined when there are enough.
 *
 * @param calls - All that the last step may call.
 */
export function stepNotice(stepsLeft: number, calls: readonly string[]): string | undefined {
  if (stepsLeft === 2) return `${TWO_LEFT} Prepare your answer.`;
  if (stepsLeft === 1) {
    return calls.length > 0
      ? `${ONE_LEFT} Call ${calls.join(' or ')} now.`
      : `${ONE_LEFT} Give your answer now, without calling tools.`;
  }
  return undefined;
}

/** Whether the kernel wrote this notice as `stepNotice`. */
export const isStepNotice = (text: string): boolean => text.startsWith(TWO_LEFT) || text.startsWith(ONE_LEFT);
