/** `why`: finds the card, box, packing rule, right, author and tokens of any text in any prompt of a turn. */
import {
  type CardId,
  type Message,
  type OmissionReason,
  type PartField,
  renderBody,
  type TextMatch,
  type TextRange,
  type TurnId,
  type WantedText,
} from '@boxcar/kernel';
import type { StoredCard } from '@boxcar/store/report';
import type { BudgetCut, CardOrigin } from './card-origin.js';
import type { ExplainedTool } from './explain-step.js';
import type { PromptPart, PromptText } from './prompt-text.js';

/** A part of a found text that one card or one rule wrote. */
export interface WhyPart {
  readonly text: string;
  /** The rule that wrote it: see docs/reference/explain.md. */
  readonly rule: PromptPart['rule'];
  /** True when the card holds this text itself; false when a rule generates it. */
  readonly is_own: boolean;
  /** Counts from 1; null in a tool's schema. */
  readonly message: number | null;
  readonly role: Message['role'] | null;
  readonly field: PartField['kind'] | 'tool_schema';
  readonly card: CardOrigin | null;
  readonly tool: Pick<ExplainedTool, 'name' | 'source' | 'offered_by' | 'tokens'> | null;
}

export interface WhyPlace {
  /** The text of the prompt at this place, unchanged. */
  readonly text: string;
  /** The same, with the text around it. */
  readonly excerpt: string;
  readonly parts: readonly WhyPart[];
}

/** Another place of a text that no prompt shows. */
export type WhyHint =
  | {
      readonly kind: 'omitted';
      readonly step: number;
      readonly reason: OmissionReason | 'budget';
      readonly cut: BudgetCut | null;
      readonly card: CardOrigin;
    }
  /** The text came from the model or a tool, and no prompt of the searched steps shows it yet. */
  | { readonly kind: 'output'; readonly is_deliverable: boolean; readonly card: CardOrigin }
  | { readonly kind: 'other_steps'; readonly steps: readonly number[] }
  /** The longest beginning of the text that a prompt contains. */
  | { readonly kind: 'nearest'; readonly step: number; readonly text: string };

/** The part that every answer of `why` has. */
export interface WhyHead {
  readonly turn_id: TurnId;
  readonly text: string;
}

export type WhyAnswer =
  | (WhyHead & {
      readonly outcome: 'found';
      readonly match: TextMatch;
      /** The first step whose prompt shows the text; the places are in its prompt. */
      readonly step: number;
      readonly attempt: number;
      readonly verified: boolean;
      /** Every step whose prompt shows the text. */
      readonly steps: readonly number[];
      /** Best first: the own words of a single card, then by position. */
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
/** A shorter beginning occurs by chance. */
const MIN_NEAREST = 8;
const AROUND = 40;

/** A searchable prompt. It is built when it is read, because all prompts of a long turn need too much memory. */
export interface SearchedPrompt {
  readonly step: number;
  readonly attempt: number;
  read(): Generator<number, PromptText>;
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

/** The prompts that show a text, or the prompt that shows the longest beginning of it. */
type SearchResult<P> =
  | { readonly match: TextMatch; readonly hits: readonly P[] }
  | { readonly match: undefined; readonly nearest: Extract<WhyHint, { kind: 'nearest' }> | undefined };

/** Whether a prompt shows a text, and how much of its beginning. */
function* look(
  prompt: PromptText,
  wanted: WantedText,
  match: TextMatch,
): Generator<number, { readonly isFound: boolean; readonly length: number }> {
  let isFound = false;
  const onFound = (): boolean => {
    isFound = true;
    return true;
  };
  const length = yield* wanted.search(prompt.text, match, { onFound });
  return { isFound, length };
}

/**
 * Finds the first kind of match under which any prompt shows the text, and all prompts that show it in that way. Each
 * prompt is read twice at most.
 */
export function* searchPrompts<P extends SearchedPrompt>(
  prompts: readonly P[],
  wanted: WantedText,
): Generator<number, SearchResult<P>> {
  const hits: P[] = [];
  for (const prompt of prompts)
    if ((yield* look(yield* prompt.read(), wanted, 'exact')).isFound) hits.push(prompt);
  if (hits.length > 0) return { match: 'exact', hits };
  const unescaped: P[] = [];
  let best: { step: number; length: number } | undefined;
  for (const prompt of prompts) {
    const text = yield* prompt.read();
    const plain = yield* look(text, wanted, 'whitespace');
    if (plain.isFound) hits.push(prompt);
    if (hits.length > 0) continue;
    const other = yield* look(text, wanted, 'unescaped');
    if (other.isFound) unescaped.push(prompt);
    const length = Math.max(plain.length, other.length);
    if (length >= MIN_NEAREST && length > (best?.length ?? 0)) best = { step: prompt.step, length };
  }
  if (hits.length > 0) return { match: 'whitespace', hits };
  if (unescaped.length > 0) return { match: 'unescaped', hits: unescaped };
  if (best === undefined) return { match: undefined, nearest: undefined };
  const text = wanted.text.slice(0, best.length).trim().toWellFormed();
  return { match: undefined, nearest: { kind: 'nearest', step: best.step, text } };
}

interface RankedPlace {
  readonly range: TextRange;
  readonly rank: number;
}

/** The best of the places that are added in sequence, limited to the number that is listed. */
class BestPlaces {
  readonly list: RankedPlace[] = [];

  add(range: TextRange, rank: number): void {
    const last = this.list.at(-1);
    if (this.list.length >= MAX_PLACES && last !== undefined && last.rank <= rank) return;
    // A later place follows earlier places of the same rank.
    const after = this.list.findLastIndex((other) => other.rank <= rank);
    this.list.splice(after + 1, 0, { range, rank });
    this.list.length = Math.min(this.list.length, MAX_PLACES);
  }
}

/** The places of a text in one prompt, best first, limited to the number that is listed. */
export function* placesOf(
  prompt: PromptText,
  wanted: WantedText,
  of: { readonly match: TextMatch; readonly describe: (part: PromptPart, text: string) => WhyPart },
): Generator<number, { readonly places: readonly WhyPlace[]; readonly count: number }> {
  const best = new BestPlaces();
  let count = 0;
  const onFound = (range: TextRange): boolean => {
    count += 1;
    best.add(range, rankOf(prompt.partsAt(range)));
    return false;
  };
  yield* wanted.search(prompt.text, of.match, { onFound });
  const places = best.list.map(({ range }) => ({
    text: prompt.around(range, 0),
    excerpt: prompt.around(range, AROUND),
    parts: prompt.partsAt(range).map(({ part, text: share }) => of.describe(part, share)),
  }));
  return { places, count };
}

/** A card that may hold the text, and the hint to give if it does. */
export interface HintCandidate {
  readonly cardId: CardId;
  readonly hint: () => WhyHint | undefined;
}

/** The hints of the candidates whose card holds the text: each card once, up to the limit. */
export function* hintCards(
  candidates: Iterable<HintCandidate>,
  cards: ReadonlyMap<CardId, StoredCard>,
  wanted: WantedText,
): Generator<number, readonly WhyHint[]> {
  const found: WhyHint[] = [];
  const seen = new Set<CardId>();
  for (const { cardId, hint } of candidates) {
    if (found.length >= MAX_HINTS) break;
    yield 1;
    const stored = cards.get(cardId);
    if (seen.has(cardId) || stored === undefined) continue;
    seen.add(cardId);
    const body = renderBody(stored.card.content);
    if ((yield* wanted.match(body)) === undefined) continue;
    const given = hint();
    if (given !== undefined) found.push(given);
  }
  return found;
}
