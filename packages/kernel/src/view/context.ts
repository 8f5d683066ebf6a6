/** A context box as a model reads it, and the effect of its packed arguments on the turn. */

import type { AgentId, BoxId, TurnId } from '../base/index.js';
import { canonicalJson, type JsonValue } from '../base/index.js';
import { CARD_TYPES, type Card, type Field } from '../card/index.js';
import type { Profile } from '../profile/index.js';
import { toolNames } from '../profile/index.js';
import { renderFields } from '../render/render.js';
import { BOOTSTRAP_STATE, type TapeEntry } from '../tape/index.js';
import { enders, stepNotice } from '../turn/index.js';
import type { ContextRule } from './manifest.js';
import {
  isCall,
  isHidden,
  isThought,
  omit,
  type Placed,
  type Prompt,
  push,
  pushNotice,
  take,
  writeCard,
  writeStep,
} from './prompt.js';
import { groupInherited } from './steps.js';

export interface ContextCard {
  readonly card: Card;
  readonly rule: ContextRule;
  /** True for an inherited card that a clone's source saw as its own history: calls and results keep their form. */
  readonly native?: true;
  /**
   * The turn may read this card, or the cards that it summarizes, with `expand`: the clone's source did not see them
   * either.
   */
  readonly isExpandable?: true;
}

type ToolLists = Pick<Profile, 'tools' | 'must_end_with'>;

const SUBMIT_RESULT = 'submit_result';

/** Whether turns of this profile may end by `submit_result`. */
export const canSubmitResult = (profile: ToolLists): boolean =>
  toolNames(profile).includes(SUBMIT_RESULT) || profile.must_end_with.includes(SUBMIT_RESULT);

/** The tools whose calls keep their form in histories of other turns. */
export const toolsOf = (profile: ToolLists): ReadonlySet<string> =>
  new Set([...toolNames(profile), ...profile.must_end_with, SUBMIT_RESULT]);

/** Writes a context in the model's order: inherited cards, parent line, packed arguments, notice of few steps left. */
export function writeContextCards(
  prompt: Prompt,
  context: {
    readonly boxId: BoxId;
    readonly cards: readonly ContextCard[];
    readonly stepsLeft: number | null;
    readonly profile: ToolLists;
    /** The tools that the turn is offered. */
    readonly tools: ReadonlySet<string>;
  },
): void {
  const { boxId, cards, stepsLeft, profile, tools } = context;
  const byRule: Record<ContextRule, Placed[]> = { argument: [], inherited: [], parent: [] };
  for (const [index, { card, rule, native }] of cards.entries()) {
    const position = index + 1;
    const source = { kind: 'context', boxId, rule, from: position, to: position } as const;
    byRule[rule].push({ card, source, isNative: native ?? false });
  }
  for (const placed of byRule.inherited)
    if (placed.isNative === true && (isCall(placed) || isThought(placed)))
      prompt.ownAuthors.add(placed.card.authorId);
  for (const item of groupInherited(byRule.inherited)) {
    if ('card' in item && isBootstrap(item.card)) omit(prompt, item, 'bootstrap');
    else if ('card' in item) writeCard(prompt, item);
    else writeStep(prompt, item, (name) => tools.has(name));
  }
  for (const placed of byRule.parent) writeCard(prompt, placed);
  const canSubmit = canSubmitResult(profile);
  writeArguments(prompt, byRule.argument, canSubmit);
  const notice = stepsLeft === null ? undefined : stepNotice(stepsLeft, enders(profile, canSubmit));
  if (notice !== undefined) pushNotice(prompt, notice, 'steps_left');
}

/**
 * The bootstrap anchor of a tape has no content for the model. Its card belongs to the project; other anchors have
 * their name in the metadata.
 */
const isBootstrap = ({ type, content, metadata }: Card): boolean =>
  type === CARD_TYPES.anchor &&
  metadata.name === undefined &&
  content.kind === 'json' &&
  canonicalJson(content.data) === canonicalJson(BOOTSTRAP_STATE);

/** Writes packed arguments in their order, except that the binding result fields follow the instruction directly. */
function writeArguments(prompt: Prompt, placed: readonly Placed[], canSubmit: boolean): void {
  const binding = placed.find(({ card }) => bindingFields(card) !== undefined);
  const instruction = placed.find(({ card }) => card.type === CARD_TYPES.instruction);
  const last = instruction ?? binding;
  for (const item of placed) {
    if (item !== binding) writeCard(prompt, item);
    if (item !== last || binding === undefined || !take(prompt, binding)) continue;
    const content = renderFields(bindingFields(binding.card) ?? [], canSubmit);
    push(prompt, { role: 'user', content }, binding.source, [binding.card]);
  }
}

/**
 * The fields of a card that binds when it is packed as an argument. A hidden card does not bind: the model cannot see
 * it.
 */
function bindingFields(card: Card): readonly Field[] | undefined {
  if (card.type !== CARD_TYPES.resultFields || card.content.kind !== 'fields_schema' || isHidden(card))
    return undefined;
  return card.content.fields;
}

/** The result fields that bind the turn of this context: only packed arguments count, and the first of several wins. */
export function resultFieldsOf(context: readonly ContextCard[]): readonly Field[] | undefined {
  const binding = context.find(({ card, rule }) => rule === 'argument' && bindingFields(card) !== undefined);
  return binding === undefined ? undefined : bindingFields(binding.card);
}

/**
 * The profile as it binds a turn of this context. With result fields, `submit_result` becomes one of the calls that may
 * end the turn.
 */
export const bindProfile = <P extends ToolLists>(profile: P, context: readonly ContextCard[]): P =>
  resultFieldsOf(context) === undefined
    ? profile
    : { ...profile, must_end_with: [...new Set([...profile.must_end_with, SUBMIT_RESULT])] };

/**
 * The instruction of this context's turn: text, or the JSON that was given. Null when the context has no instruction.
 */
export function instructionOf(context: readonly ContextCard[]): JsonValue {
  const isInstruction = ({ card, rule }: ContextCard): boolean =>
    rule === 'argument' && card.type === CARD_TYPES.instruction;
  const content = context.find(isInstruction)?.card.content;
  if (content?.kind === 'text') return content.text;
  return content?.kind === 'json' ? content.data : null;
}

/** The rows of a view, loaded by the store in one statement. */
export interface ViewRows {
  readonly turn: { readonly turnId: TurnId; readonly agentId: AgentId; readonly contextBoxId: BoxId };
  /** `model`: the model that reads the view. Without a model, the view shows no data that a provider attached. */
  readonly profile: Pick<Profile, 'instructions' | 'tools' | 'must_end_with'> & { readonly model?: string };
  /**
   * The tape in order, without gaps, up to the head that this prompt reads. It begins at the last anchor, or earlier
   * when that anchor splits a step. The exact first position is the least of two: the last anchor's, and those of
   * entries whose (turnId, step) also occurs after the anchor.
   */
  readonly entries: readonly TapeEntry[];
  /** The anchor's entry is in `entries`, unless it is the bootstrap anchor; 0 on a tape without an anchor. */
  readonly lastAnchorPosition: number;
  /**
   * The cards of this turn's context box, and of each box that a `turn.started` in `entries` names, in stored order.
   */
  readonly contexts: ReadonlyMap<BoxId, readonly ContextCard[]>;
  /**
   * Given names of agents, by id. Authors and parents are shown by their names, or by their ids when they have none.
   */
  readonly names?: ReadonlyMap<string, string> | undefined;
  /** When it is set, the text after the agent's instructions states how long its context may be. */
  readonly contextLimit?: number | undefined;
}
