/** Data that a provider attaches to its answer: how it gets into a reply and back into a prompt. */
import type { LanguageModelV3Message, SharedV3ProviderMetadata } from '@ai-sdk/provider';
import {
  isJsonObject,
  type JsonObject,
  type Message,
  type MessageToolCall,
  type ProviderPart,
  sanitizeJson,
} from '@boxcar/kernel';

type AssistantMessage = Extract<Message, { readonly role: 'assistant' }>;
type AssistantParts = Extract<LanguageModelV3Message, { readonly role: 'assistant' }>['content'];

/** A later value of a name replaces the earlier value; null and undefined replace nothing. */
export function mergeOptions(
  before: JsonObject | undefined,
  added: SharedV3ProviderMetadata | undefined,
): JsonObject | undefined {
  const entries = Object.entries(added ?? {}).flatMap(([provider, values]) => {
    const given = Object.entries(values).filter(([, value]) => value !== undefined && value !== null);
    const known = before?.[provider];
    if (given.length === 0) return [];
    const merged = { ...(isJsonObject(known) ? known : {}), ...Object.fromEntries(given) };
    return [[provider, sanitizeJson(merged).value] as const];
  });
  return entries.length === 0 ? before : { ...before, ...Object.fromEntries(entries) };
}

export interface PartRules {
  /** Whether the provider accepts the part in a later prompt. Default: all parts. */
  readonly takesBack?: (part: ProviderPart) => boolean;
  /** Renames the options to the names under which the SDK sends them, when it reads them under other names. */
  readonly toOptions?: (options: JsonObject) => JsonObject;
}

/** An answer as its provider gave it: the parts in order, each with its attached data. */
export function toAssistantParts(
  message: AssistantMessage,
  toCall: (call: MessageToolCall) => Extract<AssistantParts[number], { readonly type: 'tool-call' }>,
  rules: PartRules & { readonly onLeftOut?: () => void },
): AssistantParts {
  const { content: words, toolCalls = [], provider } = message;
  const all = provider?.parts ?? [];
  // All parts or none: OpenAI refuses the id of a message without the reasoning that came with it.
  const isWhole = all.every((part) => rules.takesBack?.(part) !== false);
  const given = isWhole ? all : all.filter(({ kind }) => kind !== 'reasoning');
  const optionsOf = ({ options }: ProviderPart) => {
    if (options === undefined || !isWhole) return {};
    // The SDK passes these values through unchanged; its type describes the same JSON.
    return { providerOptions: (rules.toOptions?.(options) ?? options) as SharedV3ProviderMetadata };
  };
  const lengths = given.flatMap((part) => (part.kind === 'text' ? [part.length] : []));
  // Attached data belongs to the original text: it is dropped when the text was cleaned or cut.
  const isSameText = lengths.reduce((sum, length) => sum + length, 0) === words.length;
  if (!isWhole || (lengths.length > 0 && !isSameText)) rules.onLeftOut?.();
  const parts: AssistantParts = [];
  const calls = [...toolCalls];
  let from = 0;
  const addText = (text: string, options: object): void => {
    if (text.trim() !== '') parts.push({ type: 'text', text, ...options });
  };
  const addRest = (): void => {
    addText(words.slice(from), {});
    from = words.length;
  };
  for (const part of given) {
    switch (part.kind) {
      case 'reasoning':
        parts.push({ type: 'reasoning', text: part.text, ...optionsOf(part) });
        break;
      case 'text':
        if (isSameText) {
          addText(words.slice(from, from + part.length), optionsOf(part));
          from += part.length;
        } else addRest();
        break;
      case 'call': {
        const call = calls.shift();
        if (lengths.length === 0) addRest();
        if (call !== undefined) parts.push({ ...toCall(call), ...optionsOf(part) });
        break;
      }
      default:
        part satisfies never;
    }
  }
  addRest();
  return [...parts, ...calls.map(toCall)];
}
