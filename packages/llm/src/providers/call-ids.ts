/** Call ids on the wire: the provider's own where it gave them, the kernel's in the provider's form elsewhere. */
import { type Message, sha256 } from '@boxcar/kernel';

export interface CallIdRules {
  /** Ids that the provider takes; one of its own that is none of them is replaced too. */
  readonly callId?: RegExp;
  /** A call id of the kernel in the form that the provider takes; default: as it is. */
  readonly toCallId?: (id: string) => string;
}

/** By the kernel's id. An id is used once in a prompt, whatever the provider did; what comes first decides, so that prompts stay prefixes. */
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

/** Nine letters and digits, which is what Mistral's API takes: https://github.com/langchain-ai/langchain/pull/24668 */
export const toNineCharacters = (id: string): string =>
  BigInt(`0x${sha256(id)}`)
    .toString(36)
    .padStart(9, '0')
    .slice(-9);
