/** Call ids on the wire: the provider's own id for calls that it made, else the kernel's id in the provider's form. */
import { type Message, sha256 } from '@boxcar/kernel';

export interface CallIdRules {
  /** The ids that the provider accepts. The provider's own id is replaced too when it does not match. */
  readonly callId?: RegExp;
  /** Converts a call id of the kernel to the form that the provider accepts. Default: unchanged. */
  readonly toCallId?: (id: string) => string;
}

/**
 * The wire id of each call, by the kernel's id. An id occurs once per prompt, even when the provider repeated it. The first call keeps a
 * contested id, so a prompt stays a prefix of the next one.
 */
export function mapCallIds(messages: readonly Message[], rules: CallIdRules): ReadonlyMap<string, string> {
  const wireIds = new Map<string, string>();
  const used = new Set<string>();
  for (const message of messages) {
    if (message.role !== 'assistant') continue;
    const own = (message.provider?.parts ?? []).flatMap((part) => (part.kind === 'call' ? [part.id] : []));
    for (const [index, { id }] of (message.toolCalls ?? []).entries()) {
      const given = own[index] ?? '';
      const isUsable = given !== '' && !used.has(given) && rules.callId?.test(given) !== false;
      let wireId = isUsable ? given : (rules.toCallId?.(id) ?? id);
      for (let round = 1; used.has(wireId); round += 1) {
        const next = `${id}:${round}`;
        wireId = rules.toCallId?.(next) ?? sha256(next).slice(0, 32);
      }
      used.add(wireId);
      wireIds.set(id, wireId);
    }
  }
  return wireIds;
}

/** Nine letters and digits, the form that Mistral's API accepts: https://github.com/langchain-ai/langchain/pull/24668 */
export const toNineCharacters = (id: string): string =>
  BigInt(`0x${sha256(id)}`)
    .toString(36)
    .padStart(9, '0')
    .slice(-9);
