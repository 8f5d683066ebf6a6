/** Forked sessions: their intention, and the report to their parent. Source: docs/reference/tape.md, "Sessions". */
import type { FinalStatus } from './turn.js';

/** The anchor that states why a session was forked. */
export const INTENTION_ANCHOR = 'intention';
/** The only trigger: the ends of the session's turns are reported on the parent's tape. */
export const NOTIFY_PARENT = 'notify_parent';

/**
 * The state of the anchor `intention`, with Bub's members; `created_at` and `from_anchor` (name, state, reference) are
 * added.
 */
export interface Intention {
  readonly next_steps: string;
  readonly context_summary: string;
  readonly trigger_on_complete?: typeof NOTIFY_PARENT;
}

/** The limit in characters; the full text is at the place of the reference. */
const MAX_SUMMARY = 4_000;

/** The instruction of a turn that is started so that an agent reads the results of its forked sessions. */
export const FORK_RESULT_INSTRUCTION =
  'A session that was forked from your tape has reported its result: see the message that begins with [FORK RESULT]. Go on with your work from there.';

export function forkResultText(result: {
  readonly session: string;
  readonly status: FinalStatus;
  /** A reference to the turn on the session's tape. */
  readonly tapeRef: string;
  readonly summary: string;
}): string {
  const { session, status, tapeRef, summary } = result;
  const isLong = summary.length > MAX_SUMMARY;
  const shown = isLong ? `${summary.slice(0, MAX_SUMMARY).toWellFormed()} […]` : summary;
  return `[FORK RESULT] ${session}: ${status}\nReference: ${tapeRef}\nSummary: ${shown}`;
}
