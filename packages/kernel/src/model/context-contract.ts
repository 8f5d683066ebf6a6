/** The texts about the length of its context for an agent that can hand off. */

/** The context limit of a model without a configured limit. */
export const DEFAULT_CONTEXT_TOKENS = 200_000;
/** Share of the context limit; the reminder is sent when the estimate exceeds it. */
export const DEFAULT_REMINDER_SHARE = 0.8;

/** Formats 200000 as `200k` and 1000000 as `1M`; a number that is not round stays unchanged. */
function shortTokens(tokens: number): string {
  if (tokens >= 1_000_000 && tokens % 1_000_000 === 0) return `${tokens / 1_000_000}M`;
  return tokens >= 1_000 && tokens % 1_000 === 0 ? `${tokens / 1_000}k` : String(tokens);
}

/** Bub's `<context_contract>` text, with the model's real limit. */
export function contextContract(limitTokens: number): string {
  return [
    '<context_contract>',
    'Excessively long context may cause model call failures. In this case, you SHOULD first use tape.handoff tool to ' +
      `shorten the length of the retrieved history. The current limit is ${shortTokens(limitTokens)} tokens.`,
    '</context_contract>',
  ].join('\n');
}

/** The only reminder about the context's length. */
export function contextReminder({
  estimateTokens,
  limitTokens,
}: {
  readonly estimateTokens: number;
  readonly limitTokens: number;
}): string {
  const percent = Math.floor((estimateTokens / limitTokens) * 100);
  return (
    `The context has about ${estimateTokens} of ${limitTokens} tokens (${percent} %). Call tape.handoff now: what lies ` +
    'before it will no longer be shown, so say in summary and next_steps what you need from it.'
  );
}
