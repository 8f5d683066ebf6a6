/**
 * The data that a provider attaches to an answer in addition to its words: reasoning, signatures, its own ids. The data
 * are stored with the card that holds the answer, and are sent back only to the model that gave the answer. The kernel
 * knows the order of the parts, their size and the names of the attached values. It never interprets the values.
 * Source: docs/reference/views.md, "What providers attach".
 */
import {
  canonicalJson,
  isJsonObject,
  type JsonObject,
  type JsonValue,
  sanitizeText,
  sha256,
} from '../base/index.js';

/** One part of an answer, in the provider's order. `options` are sent back unchanged. */
export type ProviderPart =
  | { readonly kind: 'reasoning'; readonly text: string; readonly options?: JsonObject }
  /** This many characters of the answer's text; the text itself is in the card. */
  | { readonly kind: 'text'; readonly length: number; readonly options?: JsonObject }
  /** A call under the provider's own id; name and arguments are in the card of the call. */
  | { readonly kind: 'call'; readonly id: string; readonly options?: JsonObject };

export type ProviderData = {
  readonly v: 1;
  /** The profile's name for the model that gave the answer. */
  readonly model: string;
  readonly parts: readonly ProviderPart[];
};

/**
 * The most characters of a provider's call id in the card and the row of its call. Gateways put whole signatures into
 * ids, so only a part stores the whole id.
 */
const MAX_CALL_ID = 200;

/**
 * A provider's call id in the form of cards and rows. It is cut before it is sanitized, because a cut may leave half a
 * character.
 */
export const toProviderCallId = (id: string): string => sanitizeText(id.slice(0, MAX_CALL_ID)).value;

const isPart = (part: JsonValue): boolean => {
  if (!isJsonObject(part) || (part.options !== undefined && !isJsonObject(part.options))) return false;
  switch (part.kind) {
    case 'reasoning':
      return typeof part.text === 'string';
    case 'text':
      return typeof part.length === 'number';
    case 'call':
      return typeof part.id === 'string';
    default:
      return false;
  }
};

/** Reads the data from a row; undefined for a form that this build does not know. */
export function readProviderData(value: JsonValue): ProviderData | undefined {
  if (!isJsonObject(value) || value.v !== 1 || typeof value.model !== 'string') return undefined;
  if (!Array.isArray(value.parts) || !value.parts.every(isPart)) return undefined;
  return value as unknown as ProviderData;
}

const sizes = new WeakMap<ProviderData, number>();

/**
 * The bytes of the data's JSON text. Views are built again at every step from the same objects, so each object is
 * measured once.
 */
export function providerDataBytes(data: ProviderData | undefined): number {
  if (data === undefined) return 0;
  const known = sizes.get(data);
  if (known !== undefined) return known;
  const bytes = Buffer.byteLength(JSON.stringify(data));
  sizes.set(data, bytes);
  return bytes;
}

/**
 * The facts that may be shown: the model, the kinds of values, the size, and a hash for comparison. None of the values.
 */
export interface ProviderDataFacts {
  readonly model: string;
  /** `reasoning`, `call_id`, and the names of the provider's own values, such as `anthropic.signature`. */
  readonly kinds: readonly string[];
  readonly size_bytes: number;
  /** sha256 over the RFC 8785 text of the data. */
  readonly hash: string;
}

const kindsOf = (part: ProviderPart): readonly string[] => {
  const own = Object.entries(part.options ?? {}).flatMap(([provider, values]) =>
    isJsonObject(values) ? Object.keys(values).map((name) => `${provider}.${name}`) : [provider],
  );
  if (part.kind === 'reasoning') return ['reasoning', ...own];
  return part.kind === 'call' ? ['call_id', ...own] : own;
};

export const describeProviderData = (data: ProviderData): ProviderDataFacts => ({
  model: data.model,
  kinds: [...new Set(data.parts.flatMap(kindsOf))],
  size_bytes: providerDataBytes(data),
  hash: sha256(canonicalJson(data as unknown as JsonValue)),
});
