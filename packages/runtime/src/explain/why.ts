/** `why`: the card, box, packing rule, right, author and tokens behind any text of any prompt of a turn. */
import {
  type CardId,
  type Message,
  type OmissionReason,
  type PartField,
  renderBody,
  SearchableText,
  TEXT_MATCHES,
  type TextMatch,
  type TextRange,
  type TurnId,
} from '@boxcar/kernel';
import type { StoredCard } from '@boxcar/store';
import type { BudgetCut, CardOrigin } from './card-origin.js';
import type { ExplainedTool } from './explain-step.js';
import type { PromptPart, PromptText } from './prompt-text.js';

/** A stretch of a found text that one card or one rule wrote. */
export interface WhyPart {
  readonly text: string;
  /** The rule that wrote it: see docs/explain.md. */
  readonly rule: PromptPart['rule'];
  /** True when the card holds this text itself; false when a rule words it. */
  readonly is_own: boolean;
  /** From 1; null in a tool's schema. */
  readonly message: number | null;
  readonly role: Message['role'] | null;
  readonly field: PartField['kind'] | 'tool_schema';
  readonly card: CardOrigin | null;
  readonly tool: Pick<ExplainedTool, 'name' | 'source' | 'offered_by' | 'tokens'> | null;
}

export interface WhyPlace {
  /** What stands there, as it stands there. */
  readonly text: string;
  /** With the text around it. */
  readonly excerpt: string;
  readonly parts: readonly WhyPart[];
}

/** Where a text that no prompt shows was found instead. */
export type WhyHint =
  | {
      readonly kind: 'omitted';
      readonly step: number;
      readonly reason: OmissionReason | 'budget';
      readonly cut: BudgetCut | null;
      readonly card: CardOrigin;
    }
  /** It came from the model or a tool, and no prompt of the steps looked at shows it yet. */
  | { readonly kind: 'output'; readonly is_deliverable: boolean; readonly card: CardOrigin }
  | { readonly kind: 'other_steps'; readonly steps: readonly number[] }
  /** The longest beginning of the text that does stand in a prompt. */
  | { readonly kind: 'nearest'; readonly step: number; readonly text: string };

interface WhyHead {
  readonly turn_id: TurnId;
  readonly text: string;
}

export type WhyAnswer =
  | (WhyHead & {
      readonly outcome: 'found';
      readonly match: TextMatch;
      /** The first step whose prompt shows it; the places are those of its prompt. */
      readonly step: number;
      readonly attempt: number;
      readonly verified: boolean;
      /** Every step whose prompt shows it. */
      readonly steps: readonly number[];
      /** The best first: own words of one card, then whatever stands first. */
      readonly places: readonly WhyPlace[];
      readonly place_count: number;
    })
  | (WhyHead & {
      readonly outcome: 'not_found';
      readonly searched_steps: readonly number[];
      readonly hints: readonly WhyHint[];
    });

const MAX_PLACES = 20;
const MAX_HINTS = 5;
/** A shorter beginning stands anywhere. */
const MIN_NEAREST = 8;
const AROUND = 40;

/** A prompt that can be searched; it is built when it is read, since a long turn has more than memory should hold. */
export interface SearchedPrompt {
  readonly step: number;
  readonly attempt: number;
  read(): PromptText;
}

/** Lower is better. */
function rankOf(parts: readonly { readonly part: PromptPart }[]): number {
  const [first] = parts;
  if (first === undefined) return Number.POSITIVE_INFINITY;
  const { field, isOwn, cardId } = first.part;
  const spread = Math.min(parts.length - 1, 9) * 10;
  if (field === 'tool_schema') return spread + 4;
  if (field !== 'content' && field !== 'call_arguments') return spread + 3;
  if (!isOwn) return spread + (cardId === null ? 1 : 2);
  return spread + (field === 'content' ? 0 : 1);
}

/** Finds the first way of matching under which any prompt shows the text, and all prompts that show it so. */
export function searchPrompts<P extends SearchedPrompt>(
  prompts: readonly P[],
  text: string,
): { readonly match: TextMatch; readonly hits: readonly P[] } | undefined {
  for (const match of TEXT_MATCHES) {
    const hits = prompts.filter((prompt) => prompt.read().text.find(text, match).length > 0);
    if (hits.length > 0) return { match, hits };
  }
  return undefined;
}

/** The places of a text in one prompt, the best first, as many as are listed. */
export function placesOf(
  prompt: PromptText,
  text: string,
  of: { readonly match: TextMatch; readonly describe: (part: PromptPart, text: string) => WhyPart },
): { readonly places: readonly WhyPlace[]; readonly count: number } {
  const ranges = prompt.text.find(text, of.match);
  const ranked = ranges
    .map((range: TextRange) => ({ range, parts: prompt.partsAt(range) }))
    .map((place) => ({ ...place, rank: rankOf(place.parts) }))
    .sort((a, b) => a.rank - b.rank || a.range.start - b.range.start);
  const places = ranked.slice(0, MAX_PLACES).map(({ range, parts }) => ({
    text: prompt.around(range, 0),
    excerpt: prompt.around(range, AROUND),
    parts: parts.map(({ part, text: share }) => of.describe(part, share)),
  }));
  return { places, count: ranges.length };
}

/** Those of the candidates whose card holds the text, each card once, the first few. */
export function hintCards<T extends { readonly card: CardOrigin }>(
  candidates: Iterable<T>,
  cards: ReadonlyMap<CardId, StoredCard>,
  text: string,
): readonly T[] {
  const found: T[] = [];
  const seen = new Set<CardId>();
  for (const candidate of candidates) {
    if (found.length >= MAX_HINTS) break;
    const { card_id } = candidate.card;
    const stored = cards.get(card_id);
    if (seen.has(card_id) || stored === undefined) continue;
    seen.add(card_id);
    if (new SearchableText(renderBody(stored.card.content)).match(text) !== undefined) found.push(candidate);
  }
  return found;
}

/** The prompt that shows the longest beginning of the text; undefined when only a few characters of it stand anywhere. */
export function findNearest(prompts: readonly SearchedPrompt[], text: string): WhyHint | undefined {
  let best: { step: number; length: number } | undefined;
  for (const prompt of prompts) {
    const length = prompt.read().text.longestPrefix(text);
    if (length >= MIN_NEAREST && length > (best?.length ?? 0)) best = { step: prompt.step, length };
  }
  if (best === undefined) return undefined;
  return { kind: 'nearest', step: best.step, text: text.slice(0, best.length).trim().toWellFormed() };
}
