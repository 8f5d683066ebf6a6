/**
 * The message about a handoff's end to the agent that asked for it. Rule: docs/reference/handoff.md, "Telling the
 * source agent".
 */
import type { HandoffStatus } from './phases.js';

/** The instruction of a turn that is started so that the agent reads the end of its handoff. */
export const HANDOFF_RESULT_INSTRUCTION =
  'A handoff that you asked for has ended: see the message that begins with [HANDOFF RESULT]. Go on with your work from there.';

/** The same instruction for results of handoffs and of sessions. */
export const UNREAD_RESULTS_INSTRUCTION =
  'Results that you have not read have come to your tape: see the messages that begin with [HANDOFF RESULT] or [FORK RESULT]. Go on with your work from there.';

/** The limit in characters; the row of the handoff holds the whole result. */
const MAX_RESULT = 32_000;

export function handoffResultText(handoff: {
  readonly handoffId: string;
  readonly targetAgent: string;
  readonly status: HandoffStatus;
  /** The result of the handoff, or its error. */
  readonly outcome: { readonly result: string } | { readonly error: string };
}): string {
  const { handoffId, targetAgent, status, outcome } = handoff;
  const [word, text] = 'result' in outcome ? ['Result', outcome.result] : ['Error', outcome.error];
  const isLong = text.length > MAX_RESULT;
  const shown = isLong ? `${text.slice(0, MAX_RESULT).toWellFormed()} […]` : text;
  return `[HANDOFF RESULT] ${targetAgent}: ${status}\nHandoff: ${handoffId}\n${word}: ${shown}`;
}
