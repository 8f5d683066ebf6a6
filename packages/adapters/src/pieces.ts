/**
 * The content of a handoff as pieces, which each platform converts to its own form: one piece for each card, then context, payload and
 * task. The same card gives the same piece on every platform, so that the loss report can look for it in the sent bodies.
 */
import {
  type CardContent,
  isJsonObject,
  type JsonObject,
  type JsonValue,
  jsonText,
  renderBody,
} from '@boxcar/kernel';
import type { AdapterRequest, CarriedKind, PackedCard } from './adapter.js';

export type Piece =
  | { readonly kind: 'text'; readonly text: string }
  /** JSON for platforms that carry it natively; `text` is for the others. */
  | { readonly kind: 'json'; readonly data: JsonObject; readonly text: string }
  /** The address in the form in which the platforms' clients send it, regardless of its form in the card. */
  | { readonly kind: 'file'; readonly url: string; readonly mediaType: string };

export function kindOf(content: CardContent): CarriedKind {
  switch (content.kind) {
    case 'fields_schema':
      return 'text';
    case 'file':
      return content.content_type?.startsWith('image/') === true ? 'image' : 'file';
    default:
      return content.kind;
  }
}

/**
 * Why the content of a file cannot be handed over; undefined when it can.
 *
 * @param types - The content types that the platform accepts, except images. Default: any.
 */
export function findFileFault(content: CardContent, types?: readonly string[]): string | undefined {
  if (content.kind !== 'file') return undefined;
  const isPublic = URL.canParse(content.uri) && /^https?:$/.test(new URL(content.uri).protocol);
  if (!isPublic) return 'its content is not at an http:// or https:// address that the platform could read';
  const { content_type } = content;
  if (content_type === undefined) return 'its content type is not known';
  const isTaken = types === undefined || kindOf(content) === 'image' || types.includes(content_type);
  return isTaken ? undefined : `the platform does not carry files of type ${content_type}`;
}

const headOf = ({ id, type, role }: PackedCard): string =>
  `[card ${id}: ${type}${role === null ? '' : `, ${role}`}]`;

/** The content of a call or its result, without the ids of other systems. */
function callOf(content: Extract<CardContent, { kind: 'tool_call' | 'tool_result' }>): JsonObject {
  const { tool_call_id, name } = content;
  if (content.kind === 'tool_call') return { tool_call_id, name, arguments: content.arguments };
  const { status, result, error } = content;
  const { code, message } = error ?? {};
  return {
    tool_call_id,
    name,
    status,
    ...(result === undefined ? {} : { result }),
    ...(code === undefined || message === undefined ? {} : { error: { code, message } }),
  };
}

/** The piece of one card. The card's id makes its text unique. */
export function pieceOfCard(card: PackedCard): Piece {
  const { content, id, type, role } = card;
  const asJson = (data: JsonValue): Piece => ({
    kind: 'json',
    data: { card_id: id, type, ...(role === null ? {} : { role }), data },
    text: `${headOf(card)}\n${jsonText(data)}`,
  });
  switch (content.kind) {
    case 'json':
      return asJson(content.data);
    case 'tool_call':
    case 'tool_result':
      return asJson(callOf(content));
    case 'file':
      if (findFileFault(content) === undefined)
        return { kind: 'file', url: new URL(content.uri).href, mediaType: content.content_type ?? '' };
      break;
    default:
  }
  return { kind: 'text', text: `${headOf(card)}\n${renderBody(content)}` };
}

export const textOf = (piece: Piece): string => (piece.kind === 'file' ? piece.url : piece.text);

const labelled = (name: 'context' | 'payload', value: AdapterRequest['payload']): Piece => ({
  kind: 'json',
  data: { [name]: value },
  text: `[${name}]\n${jsonText(value)}`,
});

/** The pieces that are sent in addition to the cards, in the order of the prompt. */
export function fixedPieces({ context, payload, task }: AdapterRequest): readonly Piece[] {
  const isEmpty = isJsonObject(context) && Object.keys(context).length === 0;
  return [
    ...(isEmpty ? [] : [labelled('context', context)]),
    ...(payload === null ? [] : [labelled('payload', payload)]),
    { kind: 'text', text: task },
  ];
}
