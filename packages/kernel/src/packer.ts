/**
 * Packing: the rules that decide which cards enter a context box, in which order. Pure; ids and rows are handed in.
 * Source: docs/packing.md.
 *
 * P1  Order: packed arguments in rule order, inherited cards, parent pointer.
 * P2  A card id appears once; its first occurrence stays.
 * P3  Nothing enters that no rule named.
 */
import { z } from 'zod';
import type { ContextBoxDraft, ExpandedBox, Segment, SegmentRule } from './box.js';
import {
  buildCard,
  CARD_TYPES,
  type CardContent,
  type CardDraft,
  fieldsSchema,
  type NewCard,
  ROLES,
  type Role,
  toBadRequest,
} from './card.js';
import { KernelError } from './errors.js';
import { type BoxId, type CardId, type NewId, type ProjectId, tryParseId } from './ids.js';
import { isJsonObject, type JsonObject, type JsonValue, parseJsonValue } from './json.js';

const packRuleSchema = z.strictObject({
  arg_key: z.string().min(1),
  as_card_type: z.string().trim().min(1).default(CARD_TYPES.instruction),
  card_metadata: z
    .record(
      z.string(),
      z.custom<JsonValue>((value) => value !== undefined),
    )
    .default({}),
});
export type PackRule = z.infer<typeof packRuleSchema>;

/** How a handover packs; the keys are those of the PMO document, unknown ones are refused. */
export const handoverSchema = z.strictObject({
  target_profile_config: z.strictObject({ profile_name: z.string().optional() }).optional(),
  context_packing_config: z
    .strictObject({
      /** Items that are no objects are ignored, as the PMO document says. */
      pack_arguments: z
        .preprocess(
          (items) => (Array.isArray(items) ? items.filter(isJsonObject) : items),
          z.array(packRuleSchema),
        )
        .optional(),
      inherit_context: z
        .strictObject({
          include_boxes_from_args: z.array(z.string().min(1)).optional(),
          include_parent: z.boolean().optional(),
        })
        .optional(),
    })
    .optional(),
});
export type Handover = z.infer<typeof handoverSchema>;
export type HandoverInput = z.input<typeof handoverSchema>;

/** @throws KernelError `bad_request` naming the path inside the handover. */
export function parseHandover(input: unknown): Handover {
  const parsed = handoverSchema.safeParse(parseJsonValue(input, 'handover'));
  if (!parsed.success) throw toBadRequest(parsed.error, 'handover');
  return parsed.data;
}

/** The profile a handover targets: the argument wins over the configuration; both are trimmed. */
export function decideTargetProfile(args: JsonObject, handover: Handover): string {
  const { profile_name: fromArguments } = args;
  if (fromArguments !== undefined && fromArguments !== null && typeof fromArguments !== 'string') {
    throw new KernelError('bad_request', {
      message: 'arguments.profile_name: must be a string.',
      details: { field: 'arguments.profile_name' },
    });
  }
  const name = fromArguments?.trim() || handover.target_profile_config?.profile_name?.trim() || '';
  if (name === '') {
    throw new KernelError('bad_request', {
      message:
        'No target profile: give arguments.profile_name or handover.target_profile_config.profile_name.',
      details: { field: 'arguments.profile_name' },
    });
  }
  return name;
}

/** A box that an argument names. */
export interface NamedBox {
  readonly argument: string;
  readonly boxId: BoxId;
}

/**
 * The boxes that the listed arguments name, in order. An absent argument is skipped.
 *
 * @throws KernelError `bad_request` for a value that is no string, number or list of them; `not_found` for an id that is
 * no uuid, since no box can have it.
 */
export function decideNamedBoxes(args: JsonObject, handover: Handover): readonly NamedBox[] {
  const named: NamedBox[] = [];
  for (const argument of handover.context_packing_config?.inherit_context?.include_boxes_from_args ?? []) {
    if (!Object.hasOwn(args, argument)) continue;
    const value = args[argument];
    const items = Array.isArray(value) ? value : [value];
    items.forEach((item: JsonValue | undefined, index) => {
      const field = Array.isArray(value) ? `arguments.${argument}.${index}` : `arguments.${argument}`;
      if (typeof item !== 'string' && typeof item !== 'number') {
        throw new KernelError('bad_request', { message: `${field}: must be a box id.`, details: { field } });
      }
      const boxId = tryParseId<'box'>(String(item));
      if (boxId === undefined) {
        throw new KernelError('not_found', {
          message: `${field}: no box '${String(item).slice(0, 80)}'.`,
          details: { field, box_id: item },
        });
      }
      named.push({ argument, boxId });
    });
  }
  return named;
}

/** A box whose cards are inherited; `rule` is `snapshot` for what a clone saw. */
export interface InheritedBox extends NamedBox {
  readonly rule?: Extract<SegmentRule, 'inherit' | 'snapshot'>;
  readonly box: ExpandedBox;
}

export interface PackInput {
  readonly projectId: ProjectId;
  readonly toolSuffix: string;
  readonly sourceAgentId: string;
  readonly arguments: JsonObject;
  readonly handover: Handover;
  readonly inherited: readonly InheritedBox[];
  readonly newId: NewId;
  readonly maxCardBytes?: number;
  readonly maxInstructionBytes?: number;
  readonly maxCards?: number;
}

export interface Packing {
  readonly cards: readonly NewCard[];
  readonly box: ContextBoxDraft;
  /** Every card id of the box in stored order. */
  readonly attachedCardIds: readonly CardId[];
}

export const MAX_INSTRUCTION_BYTES = 256 * 1024;
export const MAX_CONTEXT_CARDS = 10_000;

function argumentContent(rule: PackRule, value: JsonValue): CardContent {
  if (rule.as_card_type === CARD_TYPES.resultFields) {
    const fields = fieldsSchema.safeParse(value);
    if (!fields.success) throw toBadRequest(fields.error, `arguments.${rule.arg_key}`);
    return { kind: 'fields_schema', fields: fields.data };
  }
  if (typeof value === 'object' && value !== null) return { kind: 'json', data: value };
  return { kind: 'text', text: String(value) };
}

function argumentDraft(rule: PackRule, value: JsonValue, toolSuffix: string): CardDraft {
  const metadata = { role: 'user', ...rule.card_metadata };
  const role = ROLES.find((known) => known === metadata.role);
  if (role === undefined) {
    throw new KernelError('bad_request', {
      message: `handover: card_metadata.role of '${rule.arg_key}' must be one of ${ROLES.join(', ')}.`,
      details: { field: 'card_metadata.role', arg_key: rule.arg_key },
    });
  }
  return {
    type: rule.as_card_type,
    role: role satisfies Role,
    content: argumentContent(rule, value),
    metadata,
    authorId: toolSuffix,
  };
}

/**
 * Decides one context box.
 *
 * @throws KernelError `bad_request` for result fields that are no list of fields, `payload_too_large` for a card, an
 * instruction or a box above its limit.
 */
export function decidePacking(input: PackInput): Packing {
  const cards: NewCard[] = [];
  const segments: Segment[] = [];
  const attached: CardId[] = [];
  const maxCards = input.maxCards ?? MAX_CONTEXT_CARDS;

  const addOwn = (
    draft: CardDraft,
    segment: Pick<Segment, 'rule' | 'argument'>,
    maxBytes = input.maxCardBytes,
  ): void => {
    const card = buildCard(draft, { id: input.newId<'card'>(), projectId: input.projectId }, maxBytes);
    cards.push(card);
    attached.push(card.id);
    segments.push({ ...segment, from: cards.length, to: cards.length, count: 1, tokens: card.tokenEstimate });
  };

  for (const rule of input.handover.context_packing_config?.pack_arguments ?? []) {
    const value = Object.hasOwn(input.arguments, rule.arg_key) ? input.arguments[rule.arg_key] : undefined;
    if (value === undefined) continue;
    const isInstruction = rule.as_card_type === CARD_TYPES.instruction;
    const maxBytes = isInstruction
      ? (input.maxInstructionBytes ?? MAX_INSTRUCTION_BYTES)
      : input.maxCardBytes;
    addOwn(
      argumentDraft(rule, value, input.toolSuffix),
      { rule: 'pack_arguments', argument: rule.arg_key },
      maxBytes,
    );
  }

  const seen = new Set<CardId>(attached);
  for (const { argument, boxId, box, rule = 'inherit' } of input.inherited) {
    for (const range of box.ranges) {
      const skip = [...range.skip];
      let tokens = 0;
      let count = 0;
      for (const [index, cardId] of range.cardIds.entries()) {
        if (seen.has(cardId)) {
          skip.push(range.positions[index] ?? 0);
          continue;
        }
        seen.add(cardId);
        attached.push(cardId);
        tokens += range.tokens[index] ?? 0;
        count++;
      }
      segments.push({
        rule,
        argument,
        ...(range.source === boxId ? {} : { via: boxId }),
        source: range.source,
        from: range.from,
        to: range.to,
        ...(skip.length > 0 ? { skip: skip.sort((a, b) => a - b) } : {}),
        count,
        tokens,
        ...(range.native && rule === 'snapshot' ? { native: true as const } : {}),
      });
    }
  }

  if (input.handover.context_packing_config?.inherit_context?.include_parent === true) {
    addOwn(
      {
        type: CARD_TYPES.parentPointer,
        role: 'system',
        content: { kind: 'json', data: { parent_agent_id: input.sourceAgentId } },
        metadata: { role: 'system' },
        authorId: input.toolSuffix,
      },
      { rule: 'parent' },
    );
  }

  if (attached.length > maxCards) {
    throw new KernelError('payload_too_large', {
      message: `The context box would hold ${attached.length} cards; the limit is ${maxCards}.`,
      details: { cards: attached.length, limitCards: maxCards },
    });
  }
  return {
    cards,
    box: {
      cardIds: cards.map((card) => card.id),
      cardTokens: cards.map((card) => card.tokenEstimate),
      segments,
      count: attached.length,
      tokens: segments.reduce((sum, segment) => sum + segment.tokens, 0),
    },
    attachedCardIds: attached,
  };
}

/** The segments of a box made of cards named one by one. */
export function decideListedBox(
  cards: readonly { readonly id: CardId; readonly tokens: number }[],
): ContextBoxDraft {
  const distinct = [...new Map(cards.map((card) => [card.id, card])).values()];
  const tokens = distinct.reduce((sum, card) => sum + card.tokens, 0);
  return {
    cardIds: distinct.map((card) => card.id),
    cardTokens: distinct.map((card) => card.tokens),
    segments:
      distinct.length === 0
        ? []
        : [{ rule: 'create_box', from: 1, to: distinct.length, count: distinct.length, tokens }],
    count: distinct.length,
    tokens,
  };
}

/** The fixed recipe of delegation: instruction, optional result fields, boxes of `input_box_ids`, parent pointer. */
export function instructionHandover(profileName: string): Handover {
  return {
    target_profile_config: { profile_name: profileName },
    context_packing_config: {
      pack_arguments: [
        { arg_key: 'instruction', as_card_type: CARD_TYPES.instruction, card_metadata: {} },
        { arg_key: 'result_fields', as_card_type: CARD_TYPES.resultFields, card_metadata: {} },
      ],
      inherit_context: { include_boxes_from_args: ['input_box_ids'], include_parent: true },
    },
  };
}
