/**
 * Recognizes the provider failures that mean that the prompt is too long. Wordings differ and no provider documents
 * them. A missed overflow costs a turn; a false match costs a needless handoff.
 */

export interface OverflowEvidence {
  readonly message: string;
  /** HTTP status of the answer. */
  readonly status?: number | undefined;
  /** Code or type of the provider's error object. */
  readonly code?: string | undefined;
}

/** The name of the anchor that is written when the context overflows, and the `reason` in its state. */
export const AUTO_HANDOFF_ANCHOR = 'auto_handoff/context_overflow';
export const AUTO_HANDOFF_REASON = 'context_length_exceeded';
/** The limit for each turn. */
export const MAX_AUTO_HANDOFFS = 1;

const CODES: ReadonlySet<string> = new Set([
  'context_length_exceeded',
  'context_window_exceeded',
  'exceed_context_size_error',
  'model_context_window_exceeded',
  'model_max_prompt_tokens_exceeded',
  'request_too_large',
  'string_above_max_length',
]);

/** Wordings that name the context or the prompt, and so have no other meaning. */
const CERTAIN: readonly RegExp[] = [
  /context.{0,20}(length|window)/i,
  /maximum.{0,20}context/i,
  /prompt.{0,10}too long/i,
  /tokens? > [\d,]+ maximum/i,
  /(exceed|overflow|too (long|large)).{0,80}context (size|limit)/i,
  /context (size|limit)s?\b.{0,40}(exceed|overflow)/i,
  /(available|exceeds?( the)?) (model )?context/i,
  /input is too long/i,
  /(input|prompt).{0,40}too (long|large) (for|and)/i,
  /(input|prompt) tokens?.{0,20}( count)?.{0,20}exceed/i,
  /(input|prompt) (token count|length).{0,60}exceed/i,
  /maximum (prompt|input) (length|size)/i,
  /maximum model length/i,
  /range of input length should be/i,
  /reduce the length of (the|your) (messages|prompt|input)/i,
  /inputs?\W.{0,20}must have less than \d+ tokens/i,
  /number of tokens in the prompt.{0,20}exceed/i,
  /prompt contains \d+ tokens.{0,40}too large/i,
  /prompt exceeds (the )?max/i,
  /too many (input|prompt) tokens/i,
  /input token count.{0,40}only supports up to/i,
  /inputs?\W{0,3}tokens \+ \W?max_new_tokens\W{0,3}must be/i,
  /request body too large for .{0,60} model/i,
];

/** Wordings that can also mean a rate limit or a limit of the answer's length. */
const LIKELY: readonly RegExp[] = [
  /token.{0,10}limit/i,
  /\b413\b.{0,40}too large/i,
  /(request|payload|content|request entity) (is )?too large/i,
  /too many tokens/i,
];
const ANSWER = /max_(completion_|output_|new_)?tokens|(completion|output) token/i;
/** The requested length of the answer, whatever it is compared with. */
const ANSWER_ALONE =
  /(?<!\+ \W?)max_\w{0,40}tokens\W{0,3}(must|should|has to) be (≤|<=|<|less|lower|smaller|at most|no more)/i;
/** An allowance of any kind. */
const RATE =
  /rate.?limit|too many requests|per.?(second|minute|min\b|hour|day)|\b[TR]P[MDS]\b|quota|throttl|please wait/i;

const matches = (patterns: readonly RegExp[], text: string): boolean =>
  patterns.some((pattern) => pattern.test(text));

export function isContextOverflow({ message, status, code = '' }: OverflowEvidence): boolean {
  if (CODES.has(code.toLowerCase())) return true;
  // Some hosts answer 413 when a request exceeds the allowance of a minute.
  if (status === 429 || RATE.test(code) || RATE.test(message) || ANSWER_ALONE.test(message)) return false;
  if (status === 413 || matches(CERTAIN, message)) return true;
  return matches(LIKELY, message) && !ANSWER.test(message);
}
