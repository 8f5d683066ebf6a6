/**
 * The states of a turn and the allowed transitions.
 *
 *   queued → dispatched → running → success | partial | failed | timeout | canceled
 *   running → suspended → dispatched        (waits for calls; resume)
 *   running → dispatched                    (release, takeover)
 *   queued, dispatched, suspended → a final status (cancel, deadline, a budget's end)
 *   suspended → dispatched                  (a wait is over; boxcar.waits holds the reason)
 *
 * T1  Every transition into `dispatched` raises the epoch by one; a claim needs `dispatched` at exactly that epoch.
 * T2  A final status never changes.
 * T3  Every end leaves exactly one `task.deliverable`.
 */
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

/**
 * Why a turn changes its status. `ring_again` keeps the status and raises the epoch. `call`: the turn waits for the
 * results of its calls. `wait`: it waits for something else (`boxcar.waits`). `release`: its worker gives it back.
 * `take_over`: its worker is dead.
 */
export type TransitionCause =
  | 'submit'
  | 'promote'
  | 'claim'
  | 'ring_again'
  | 'call'
  | 'wait'
  | 'resume'
  | 'wake'
  | 'release'
  | 'take_over'
  | 'end';

export interface Transition {
  readonly cause: TransitionCause;
  /** Null for a new turn. */
  readonly from: TurnStatus | null;
  readonly to: TurnStatus;
}

const ENDS_UNHELD = ['partial', 'failed', 'timeout', 'canceled'] as const;
const endsOf = (from: TurnStatus, ends: readonly FinalStatus[]): readonly Transition[] =>
  ends.map((to) => ({ cause: 'end', from, to }));

/**
 * All transitions of a turn. Tests compare every statement that writes a status with this list, and also
 * docs/reference/turns.md.
 */
export const TRANSITIONS: readonly Transition[] = [
  { cause: 'submit', from: null, to: 'queued' },
  { cause: 'submit', from: null, to: 'dispatched' },
  { cause: 'promote', from: 'queued', to: 'dispatched' },
  { cause: 'claim', from: 'dispatched', to: 'running' },
  { cause: 'ring_again', from: 'dispatched', to: 'dispatched' },
  { cause: 'call', from: 'running', to: 'suspended' },
  { cause: 'wait', from: 'running', to: 'suspended' },
  { cause: 'resume', from: 'suspended', to: 'dispatched' },
  { cause: 'wake', from: 'suspended', to: 'dispatched' },
  { cause: 'release', from: 'running', to: 'dispatched' },
  { cause: 'take_over', from: 'running', to: 'dispatched' },
  ...endsOf('running', FINAL_STATUSES),
  ...endsOf('queued', ENDS_UNHELD),
  ...endsOf('dispatched', ENDS_UNHELD),
  ...endsOf('suspended', ENDS_UNHELD),
];

export const isFinal = (status: TurnStatus): status is FinalStatus =>
  (FINAL_STATUSES as readonly TurnStatus[]).includes(status);

/**
 * The most turns per target that may be dispatched at once, as a multiple of the concurrency of the target's live
 * workers. Rule: docs/reference/turns.md, "Window".
 */
export const WINDOW_FACTOR = 4;

/** The kernel's interpretation of a model's reply. */
export type StepOutcome =
  | { readonly kind: 'calls' }
  | { readonly kind: 'end'; readonly text: string }
  | { readonly kind: 'remind'; readonly reminder: string };

/** The number of unusable replies in a row after which a turn ends as failed. */
export const MAX_EMPTY_REPLIES = 3;

const SUBMIT_RESULT = 'submit_result';

/**
 * The conditions for a successful end of a turn: a call of one of `must_end_with`, and a result with the fields that
 * bind the turn.
 */
export interface EndRule {
  readonly must_end_with: readonly string[];
  /** True when fields bind the result of the turn. */
  readonly hasResultFields?: boolean;
}

/** The calls that may end a turn: its last step may make only these calls. */
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
 * The next action after a reply. Calls are run. Text ends the turn when no particular call must end it. Otherwise the
 * model is reminded.
 * Source: docs/reference/turns.md, "Ends".
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
 * The notice for the model when few steps are left; undefined when there are enough.
 *
 * @param calls - All calls that the last step may make.
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

/** Whether this text is a notice of `stepNotice`. */
export const isStepNotice = (text: string): boolean => text.startsWith(TWO_LEFT) || text.startsWith(ONE_LEFT);
