/**
 * Packing: the rules that decide which cards enter a context box, and in which order. Pure; ids and rows are passed in.
 * Source: docs/reference/packing.md.
 *
 * P1  Order: packed arguments in rule order, the digest if a budget made one, inherited cards, parent pointer.
 * P2  A card id appears once, at its first occurrence.
 * P3  A card enters only if a rule names it.
 * P4  A budget cuts inherited cards only; the manifest names each cut card and the reason (strategy.ts).
 */

import type { BoxId, CardId, JsonObject, JsonValue, NewId, ProjectId } from '../base/index.js';
import { KernelError, safeParse, toBadRequest } from '../base/index.js';
import type {
  Asked,
  ContextBoxDraft,
  ExpandedBox,
  LeafRange,
  Segment,
  SegmentRule,
  ShownMarks,
} from '../card/index.js';
import {
  buildCard,
  CARD_TYPES,
  type CardContent,
  type CardDraft,
  fieldsSchema,
  type NewCard,
  ROLES,
  type Role,
} from '../card/index.js';
import { DEFAULT_STRATEGY } from './budget.js';
import type { Handover, NamedBox, PackRule } from './handover.js';
import { cutSegment } from './manifest.js';
import type { PackingCuts } from './strategy.js';

/** A box whose cards are inherited; `rule` is `snapshot` for the history that a clone saw. */
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
  readonly maxCardBytes?: number | undefined;
  readonly maxInstructionBytes?: number | undefined;
  readonly maxCards?: number | undefined;
}

export interface Packing {
  readonly cards: readonly NewCard[];
  readonly box: ContextBoxDraft;
  /** Every card id of the box in stored order. */
  readonly attachedCardIds: readonly CardId[];
}

const MAX_INSTRUCTION_BYTES = 256 * 1024;
export const MAX_CONTEXT_CARDS = 10_000;

function argumentContent(rule: PackRule, value: JsonValue): CardContent {
  if (rule.as_card_type === CARD_TYPES.resultFields) {
    const fields = safeParse(fieldsSchema, value);
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

/** A packed card with the rule and argument of its segment. */
interface OwnCard {
  readonly card: NewCard;
  readonly segment: Pick<Segment, 'rule' | 'argument'>;
}

/** A leaf range and the cards in it that are new. */
export interface InheritedRange {
  readonly rule: SegmentRule;
  readonly argument: string;
  readonly boxId: BoxId;
  readonly range: LeafRange;
  /** The requests of the range's turns; empty under a budget, which does not count them. */
  readonly asked: readonly Asked[];
  /** Positions of cards that an earlier range already has, in order. */
  readonly duplicates: readonly number[];
  /** Positions of cards of a clone's history that an explicitly named box already has. */
  readonly repeats: readonly number[];
  readonly count: number;
  readonly tokens: number;
}

/** The token limit of a box, and the strategy for a box that would exceed it. */
export interface PackingBudget {
  readonly tokens: number;
  readonly strategy: string;
}

/** A context box after the rules, before its budget is applied. */
export interface PackingDraft {
  readonly input: PackInput;
  readonly args: readonly OwnCard[];
  readonly inherited: readonly InheritedRange[];
  /** The ids of the inherited cards, in order. */
  readonly inheritedIds: readonly CardId[];
  readonly parent: OwnCard | undefined;
  readonly tokens: number;
  readonly budget: PackingBudget | undefined;
}

/** True when a strategy must choose, with the facts of `inheritedIds`. */
export const isOverBudget = ({ tokens, budget }: PackingDraft): boolean =>
  budget !== undefined && tokens > budget.tokens;

/**
 * Applies the rules of a handover.
 *
 * @throws KernelError `bad_request` for result fields that are not a list of fields, `payload_too_large` for a card or
 * an instruction above its limit.
 */
export function draftPacking(input: PackInput): PackingDraft {
  const config = input.handover.context_packing_config;
  const own = (draft: CardDraft, segment: OwnCard['segment'], maxBytes = input.maxCardBytes): OwnCard => ({
    card: buildCard(draft, { id: input.newId<'card'>(), projectId: input.projectId }, maxBytes),
    segment,
  });

  const args: OwnCard[] = [];
  for (const rule of config?.pack_arguments ?? []) {
    const value = Object.hasOwn(input.arguments, rule.arg_key) ? input.arguments[rule.arg_key] : undefined;
    if (value === undefined) continue;
    const isInstruction = rule.as_card_type === CARD_TYPES.instruction;
    const maxBytes = isInstruction
      ? (input.maxInstructionBytes ?? MAX_INSTRUCTION_BYTES)
      : input.maxCardBytes;
    args.push(
      own(
        argumentDraft(rule, value, input.toolSuffix),
        { rule: 'pack_arguments', argument: rule.arg_key },
        maxBytes,
      ),
    );
  }

  const seen = new Set<CardId>();
  const inherited: InheritedRange[] = [];
  let tokens = args.reduce((sum, { card }) => sum + card.tokenEstimate, 0);
  // A clone's history follows the explicitly named boxes.
  let named: ReadonlySet<CardId> | undefined;
  const history = new Set<CardId>();
  for (const { argument, boxId, box, rule = 'inherit' } of input.inherited) {
    if (rule === 'snapshot') named ??= new Set(seen);
    for (const range of box.ranges) {
      const repeats = rule === 'snapshot' ? findRepeats(range, named ?? history, history) : [];
      const taken = takeNew(range, seen);
      const asked = config?.budget_tokens === undefined ? (range.asked ?? []) : [];
      inherited.push({ rule, argument, boxId, range, asked, repeats, ...taken });
      tokens += taken.tokens;
    }
  }

  const parent =
    config?.inherit_context?.include_parent === true
      ? own(
          {
            type: CARD_TYPES.parentPointer,
            role: 'system',
            content: { kind: 'json', data: { parent_agent_id: input.sourceAgentId } },
            metadata: { role: 'system' },
            authorId: input.toolSuffix,
          },
          { rule: 'parent' },
        )
      : undefined;
  return {
    input,
    args,
    inherited,
    inheritedIds: [...seen],
    parent,
    tokens: tokens + (parent?.card.tokenEstimate ?? 0),
    budget:
      config?.budget_tokens === undefined
        ? undefined
        : { tokens: config.budget_tokens, strategy: config.budget_strategy ?? DEFAULT_STRATEGY },
  };
}

/** The positions of cards that were named before and are new to the history; adds them to the history. */
function findRepeats(
  { cardIds, positions }: LeafRange,
  named: ReadonlySet<CardId>,
  history: Set<CardId>,
): readonly number[] {
  if (named.size === 0) return [];
  const repeats: number[] = [];
  for (const [index, id] of cardIds.entries()) {
    if (!named.has(id) || history.has(id)) continue;
    history.add(id);
    repeats.push(positions[index] ?? 0);
  }
  return repeats;
}

/** Adds the cards of a range to `seen`, which keeps their order (P2). */
function takeNew(
  { cardIds, positions, tokens }: LeafRange,
  seen: Set<CardId>,
): Pick<InheritedRange, 'duplicates' | 'count' | 'tokens'> {
  const duplicates: number[] = [];
  let sum = 0;
  let size = seen.size;
  for (let index = 0; index < cardIds.length; index++) {
    seen.add(cardIds[index] as CardId);
    // Comparing sizes needs a single look-up to test and to add.
    if (seen.size === size) duplicates.push(positions[index] ?? 0);
    else {
      size = seen.size;
      sum += tokens[index] ?? 0;
    }
  }
  return { duplicates, count: cardIds.length - duplicates.length, tokens: sum };
}

/**
 * Makes the box of a draft.
 *
 * @param cuts - The cards that the budget leaves out; required when the draft exceeds its budget.
 * @throws KernelError `payload_too_large` for a digest or a box above its limit.
 */
export function sealPacking(draft: PackingDraft, cuts?: PackingCuts): Packing {
  if (cuts === undefined && isOverBudget(draft)) {
    throw new KernelError('internal_error', {
      message: `A box of ${draft.tokens} tokens was sealed over its budget of ${draft.budget?.tokens}.`,
    });
  }
  const { input, parent } = draft;
  const cards: NewCard[] = [];
  const segments: Segment[] = [];
  const addOwn = ({ card, segment }: OwnCard): void => {
    cards.push(card);
    segments.push({ ...segment, from: cards.length, to: cards.length, count: 1, tokens: card.tokenEstimate });
  };
  for (const own of draft.args) addOwn(own);
  if (cuts?.digest !== undefined) addOwn(digestCard(input, cuts.digest));
  const attached = cards.map((card) => card.id);
  const inheritedIds =
    cuts === undefined ? draft.inheritedIds : draft.inheritedIds.filter((id) => !cuts.reasons.has(id));
  for (const id of inheritedIds) attached.push(id);
  const placed = new Set<CardId>();
  for (const range of draft.inherited)
    segments.push(
      cuts === undefined
        ? wholeSegment(range)
        : cutSegment(wholeSegment(range), { range: range.range, cuts, placed }),
    );
  if (parent !== undefined) {
    addOwn(parent);
    attached.push(parent.card.id);
  }

  const maxCards = input.maxCards ?? MAX_CONTEXT_CARDS;
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

/** The segment of an inherited range without cuts. */
function wholeSegment(inherited: InheritedRange): Segment {
  const { rule, argument, boxId, range, duplicates, asked, repeats, count, tokens } = inherited;
  const skip = duplicates.length === 0 ? range.skip : [...range.skip, ...duplicates].sort((a, b) => a - b);
  return {
    rule,
    argument,
    ...(range.source === boxId ? {} : { via: boxId }),
    source: range.source,
    from: range.from,
    to: range.to,
    ...(skip.length > 0 ? { skip } : {}),
    count,
    tokens,
    ...(range.native && rule === 'snapshot' ? { native: true as const } : {}),
    ...listed('references', range.references),
    // Only clones receive the right to read the cards behind a summary: for other agents, no check has been made that
    // they may read them.
    ...listed('summaries', rule === 'snapshot' ? range.summaries : undefined),
    ...listed('repeats', repeats),
    ...(asked.length === 0 ? {} : { asked: asked.map(({ position }) => position) }),
  };
}

const listed = (name: keyof ShownMarks, positions: readonly number[] = []): ShownMarks =>
  positions.length === 0 ? {} : { [name]: positions };

function digestCard(input: PackInput, { text, cardIds }: NonNullable<PackingCuts['digest']>): OwnCard {
  const draft: CardDraft = {
    type: CARD_TYPES.summary,
    role: 'user',
    content: { kind: 'text', text },
    metadata: { role: 'user', summarizes: [...cardIds] },
    authorId: input.toolSuffix,
  };
  return {
    card: buildCard(draft, { id: input.newId<'card'>(), projectId: input.projectId }, input.maxCardBytes),
    segment: { rule: 'digest' },
  };
}

/** Decides a context box that has no budget, or that is within it without cuts. */
export const decidePacking = (input: PackInput): Packing => sealPacking(draftPacking(input));

/** The segments of a box of individually named cards. */
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
