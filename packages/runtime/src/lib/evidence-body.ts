import type { JsonValue } from '@boxcar/kernel';

/** Maximum characters of a body: evidence is for people who ask about costs, not for prompts. */
const MAX_BODY = 100_000;

/** A body in the form that evidence stores. */
export function toBody(value: JsonValue): JsonValue {
  const text = JSON.stringify(value);
  return text.length <= MAX_BODY ? value : { cut: true, beginning: text.slice(0, MAX_BODY).toWellFormed() };
}
