/**
 * A selector makes the prompt of a turn from the content of the view. It is a pure function, written by the embedder,
 * from entries to messages.
 * Source: docs/reference/views.md, "Selectors".
 *
 * L1  The kernel's system message stays first and is not an entry. The selector decides all other messages, and V7 does
 *     not hold.
 * L2  The returned messages must pass the same check as every prompt, or the turn fails.
 * L3  A provider's attachment stays with its answer: the message is shown unchanged, or without the attachment.
 * L4  The manifest names the selector and its version. A message that equals an entry's message keeps its origin; the
 *     origin of the others is the selector. Omitted cards have the reason `not_selected`.
 */
import { z } from 'zod';
import type { CardId } from '../base/index.js';
import {
  canonicalJson,
  findingsOf,
  type JsonValue,
  KernelError,
  parseJsonValue,
  safeParse,
} from '../base/index.js';
import type { Card, Message, MessageToolCall, ProviderData } from '../card/index.js';
import { checkMessages } from './check-messages.js';
import type { ViewRows } from './context.js';
import { buildManifest, type ContextRule, type MessageOrigin, type SelectorRef } from './manifest.js';
import { estimateMessages, type View } from './view.js';

/** A card as a selector sees it. */
export interface SelectorCard
  extends Pick<Card, 'id' | 'type' | 'role' | 'authorId' | 'content' | 'metadata'> {}

/** One item of the view: a card, a step with its calls and their results, or a fixed text between them. */
export interface SelectorEntry {
  /**
   * Where the item is: on the agent's tape, or in the context that a turn was given. A `notice` is a fixed text such as
   * `[continue]`.
   */
  readonly place: 'tape' | 'context' | 'notice';
  /**
   * Position on the tape, or in the stored order of the context box, from 1. A step has the position of its first card.
   * Null for a notice.
   */
  readonly position: number | null;
  /** For a card in a context: the rule that put it there. */
  readonly rule: ContextRule | null;
  /** True for cards that this turn was given, and for cards that it has written. */
  readonly isOwnTurn: boolean;
  /** The cards that the messages show. */
  readonly cards: readonly SelectorCard[];
  /**
   * The messages that the view shows for this entry without a selector. The messages of all entries, in order, are the
   * prompt of a turn without a selector.
   */
  readonly messages: readonly Message[];
}

/** Must be pure and synchronous: the same entries give the same messages, on every worker and in `explain`. */
export type Select = (entries: readonly SelectorEntry[]) => readonly Message[];

const isSystem = ({ source }: MessageOrigin): boolean => source.kind === 'profile';

const toSelectorCard = ({ id, type, role, authorId, content, metadata }: Card): SelectorCard => ({
  id,
  type,
  role,
  authorId,
  content,
  metadata,
});

/** The entries that a selector receives for a view: everything but the system message. */
export function selectorEntries(view: View, { turn, entries, contexts }: ViewRows): readonly SelectorEntry[] {
  const cards = new Map<CardId, Card>();
  for (const { card } of [...[...contexts.values()].flat(), ...entries])
    if (card !== null) cards.set(card.id, card);
  const turnAt = new Map(entries.map(({ position, turnId }) => [position, turnId]));
  const made: (SelectorEntry & { readonly messages: Message[]; readonly cards: SelectorCard[] })[] = [];
  for (const [index, message] of view.messages.entries()) {
    const origin = view.origins[index];
    if (origin === undefined || isSystem(origin)) continue;
    const { source, cardIds } = origin;
    const shown = cardIds.flatMap((id) => cards.get(id) ?? []).map(toSelectorCard);
    const last = made.at(-1);
    if (message.role === 'tool' && last !== undefined) {
      last.messages.push(message);
      last.cards.push(...shown);
      continue;
    }
    made.push({
      place: source.kind === 'tape' || source.kind === 'context' ? source.kind : 'notice',
      position: 'from' in source ? source.from : null,
      rule: source.kind === 'context' ? source.rule : null,
      isOwnTurn:
        source.kind === 'context'
          ? source.boxId === turn.contextBoxId
          : source.kind === 'tape' && turnAt.get(source.from) === turn.turnId,
      cards: shown,
      messages: [message],
    });
  }
  return made;
}

const content = z.string();
const json = z.custom<JsonValue>((value) => value !== undefined);
const callSchema: z.ZodType<MessageToolCall> = z.strictObject({
  id: z.string(),
  name: z.string(),
  arguments: json,
});
const messageSchema: z.ZodType<Message> = z.discriminatedUnion('role', [
  z.strictObject({ role: z.literal('system'), content }),
  z.strictObject({ role: z.literal('user'), content }),
  z.strictObject({
    role: z.literal('assistant'),
    content,
    toolCalls: z.array(callSchema).optional(),
    provider: z.custom<ProviderData>((value) => typeof value === 'object' && value !== null).optional(),
  }),
  z.strictObject({
    role: z.literal('tool'),
    toolCallId: z.string(),
    name: z.string(),
    content,
    isError: z.boolean(),
  }),
]) as z.ZodType<Message>;

export const nameSelector = ({ name, version }: SelectorRef): string =>
  `Selector '${name}' version '${version}'`;

/** The error for a selector that failed or returned messages that are not valid. */
export function selectorFailed(
  selector: SelectorRef,
  what: string,
  options: { readonly findings?: readonly string[]; readonly cause?: unknown } = {},
): KernelError {
  const { findings, cause } = options;
  return new KernelError('selector_failed', {
    message: `${nameSelector(selector)}: ${what.slice(0, 2_000).toWellFormed()}.`,
    details: {
      selector: selector.name,
      selector_version: selector.version,
      ...(findings === undefined ? {} : { findings: findings.slice(0, 20) }),
    },
    ...(cause === undefined ? {} : { cause }),
  });
}

const MAX_NAMED = 3;

/** The error for a list of findings; its message names the first few. */
function refuse(selector: SelectorRef, findings: readonly string[]): KernelError {
  const more = findings.length > MAX_NAMED ? `; and ${findings.length - MAX_NAMED} more` : '';
  const named = findings.slice(0, MAX_NAMED).join('; ');
  return selectorFailed(selector, `it returned what cannot be a prompt: ${named}${more}`, { findings });
}

function parseMessages(selector: SelectorRef, returned: unknown): readonly Message[] {
  let value: JsonValue;
  try {
    value = parseJsonValue(returned, 'messages');
  } catch (error) {
    throw refuse(selector, [error instanceof KernelError ? error.message.replace(/\.$/, '') : String(error)]);
  }
  const parsed = safeParse(z.array(messageSchema), value);
  if (parsed.success) return parsed.data;
  throw refuse(
    selector,
    findingsOf(parsed.error, 'messages').map(({ path, message }) => `${path}: ${message}`),
  );
}

const keyOf = (message: Message): string => canonicalJson(message as unknown as JsonValue);

/**
 * Returns the view with the messages that its selector returned.
 *
 * @param returned - The selector's return value, unchecked; this function checks it.
 * @throws KernelError `selector_failed` when the messages are not a valid prompt.
 */
export function selectView(view: View, selector: SelectorRef, returned: unknown): View {
  const parsed = parseMessages(selector, returned);
  const [first] = view.origins;
  const system = first !== undefined && isSystem(first) ? 1 : 0;
  const messages = [...view.messages.slice(0, system), ...parsed];
  const places = new Map<string, number[]>();
  for (let at = view.messages.length - 1; at >= system; at -= 1) {
    const message = view.messages[at];
    if (message === undefined) continue;
    const key = keyOf(message);
    const known = places.get(key);
    if (known === undefined) places.set(key, [at]);
    else known.push(at);
  }
  const findings = [...checkMessages(messages, [])];
  const origins: MessageOrigin[] = view.origins.slice(0, system);
  const shown = new Set<number>();
  for (const [index, message] of parsed.entries()) {
    const at = places.get(keyOf(message))?.pop();
    const origin = at === undefined ? undefined : view.origins[at];
    if (at !== undefined) shown.add(at);
    if (origin === undefined && message.role === 'assistant' && message.provider !== undefined)
      findings.push(
        `messages[${index + system}]: keeps what a provider attached to an answer that is not shown as it was; leave out 'provider'`,
      );
    origins.push(origin ?? { source: { kind: 'selector' }, cardIds: [] });
  }
  if (findings.length > 0) throw refuse(selector, findings);
  const omissions = view.origins.flatMap(({ source, cardIds }, at) => {
    const [cardId] = cardIds;
    return at < system || shown.has(at) || cardId === undefined
      ? []
      : [{ source, cardId, reason: 'not_selected' as const }];
  });
  const { anchor, head, omitted, names } = view.manifest;
  const manifest = buildManifest({ anchor, head }, origins, {
    omissions,
    // The selector received messages with these names.
    ...(names === undefined ? {} : { names: new Map(Object.entries(names)) }),
  });
  return {
    ...view,
    messages,
    origins,
    manifest: { ...manifest, omitted: [...omitted, ...manifest.omitted], selector },
    estimateTokens: estimateMessages(messages),
    firstMessage: system,
    sharedMessages: undefined,
  };
}
