/** What an agent that can hand off is told about the length of its context. */

export const DEFAULT_CONTEXT_TOKENS = 200_000;
/** Of the context: an estimate above it brings the reminder. */
export const DEFAULT_REMINDER_SHARE = 0.8;

/** The seed's `<context_contract>` with the model's real limit. */
export function contextContract(_limitTokens: number): string {
  throw new Error('not yet');
}

export interface ContextEstimate {
  readonly estimateTokens: number;
  readonly limitTokens: number;
}

/** True above the share, not at it. */
export function isReminderDue(_estimate: ContextEstimate, _share = DEFAULT_REMINDER_SHARE): boolean {
  throw new Error('not yet');
}

/** The one reminder of a turn. */
export function contextReminder(_estimate: ContextEstimate): string {
  throw new Error('not yet');
}
