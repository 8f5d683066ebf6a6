import type { CardContent, JsonValue } from '@boxcar/kernel';

/** The deliverable inside a card's content. */
export function deliverableOf(content: JsonValue): JsonValue {
  if (typeof content !== 'object' || content === null || Array.isArray(content)) return null;
  const tagged = content as { kind?: string; text?: JsonValue; data?: JsonValue };
  return (tagged.kind === 'text' ? tagged.text : tagged.data) ?? null;
}

/** The content of the card that keeps a deliverable. */
export const deliverableContent = (value: JsonValue): Extract<CardContent, { kind: 'text' | 'json' }> =>
  typeof value === 'string' ? { kind: 'text', text: value } : { kind: 'json', data: value };
