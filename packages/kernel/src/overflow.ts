/** Which failures of a provider say that the prompt is too long. */

export interface OverflowEvidence {
  readonly message: string;
  /** HTTP status of the answer. */
  readonly status?: number | undefined;
  /** Code or type of the provider's error object. */
  readonly code?: string | undefined;
}

/** The anchor and the reason the kernel writes when it hands off by itself. */
export const AUTO_HANDOFF_ANCHOR = 'auto_handoff/context_overflow';
export const AUTO_HANDOFF_REASON = 'context_length_exceeded';
/** In one turn. */
export const MAX_AUTO_HANDOFFS = 1;

export function isContextOverflow(_evidence: OverflowEvidence): boolean {
  throw new Error('not yet');
}
