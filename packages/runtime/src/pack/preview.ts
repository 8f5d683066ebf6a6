/** What a child would see: the cards of a planned context with what each costs, and the first prompt made of them. */
import {
  agentsIn,
  type BoxId,
  bindProfile,
  buildView,
  type Card,
  type CardId,
  type ContextCard,
  candidatesOf,
  contextLimitsOf,
  givenNames,
  type HandoverNotice,
  KernelError,
  type Message,
  type NewCard,
  type NewId,
  type PackCandidate,
  type Profile,
  type Role,
  renderBody,
  type Segment,
  type SegmentRule,
  selectorOfView,
  TURN_STARTED,
  toldLimitOf,
  type View,
  type ViewRows,
} from '@boxcar/kernel';
import { loadAgentNames, loadCards, loadProfiles, type Queryable } from '@boxcar/store';
import { toContextCard } from './context-rows.js';
import type { PlannedContext, ResolvedSpec } from './plan.js';
import { type Selectors, selectorUnknown } from './selectors.js';

/** Counts tokens as the named model does, or nearly. */
export type CountTokens = (text: string, model: string) => number | Promise<number>;

export interface PreviewOptions {
  /** Without it there are the stored estimates only. */
  readonly countTokens?: CountTokens | undefined;
}

export interface PreviewCard {
  /** `new`: the packing makes it. */
  readonly card_id: CardId | 'new';
  readonly type: string;
  readonly role: Role | null;
  readonly author_id: string;
  readonly rule: SegmentRule;
  readonly argument: string | null;
  /** The box or tape it stands in, and its position there. */
  readonly source: BoxId | null;
  readonly position: number | null;
  /** Of its words, by the tokenizer; null without one. */
  readonly tokens: number | null;
  /** The stored estimate, which budgets are counted in. */
  readonly estimated_tokens: number;
  readonly size_bytes: number;
  readonly is_kept: boolean;
  /** Why it is cut. */
  readonly reason: string | null;
}

export interface PreviewSum {
  readonly cards: number;
  readonly tokens: number | null;
  readonly estimated_tokens: number;
  readonly size_bytes: number;
}

export interface PreviewMessage {
  readonly message: Message;
  readonly tokens: number | null;
  readonly card_ids: readonly (CardId | 'new')[];
}

export interface PackPreview {
  readonly profile: {
    readonly name: string;
    readonly version: number;
    readonly box_id: BoxId;
    readonly model: string;
  };
  readonly budget: {
    readonly budget_tokens: number;
    readonly budget_strategy: string;
    /** The estimate of the whole, before anything is cut. */
    readonly estimated_tokens: number;
    readonly is_exceeded: boolean;
  } | null;
  /** In stored order, the cut ones where they would have stood. */
  readonly cards: readonly PreviewCard[];
  readonly kept: PreviewSum;
  readonly cut: PreviewSum;
  /** The manifest of the box. */
  readonly segments: readonly Segment[];
  /** What the model of a fresh agent would be sent first, without its tools. */
  readonly prompt: {
    readonly messages: readonly PreviewMessage[];
    readonly tokens: number | null;
    readonly estimated_tokens: number;
    /** Why there are no messages: the profile's selector makes them, and is not in this process or has failed. */
    readonly unmade?: string;
  };
  /**
   * Rules of the handover that are skipped, and keys that are ignored: settings of a handler, or typing errors. With the field `prompt`:
   * the first step will see another prompt, as this one is too long or nearly so.
   */
  readonly notices: readonly HandoverNotice[];
}

const YIELD_CHARACTERS = 256 * 1024;

/** Counts text after text, and lets others work in between. */
class Counter {
  readonly #count: CountTokens | undefined;
  readonly #model: string;
  #sinceYield = 0;

  constructor(count: CountTokens | undefined, model: string) {
    this.#count = count;
    this.#model = model;
  }

  async count(text: string): Promise<number | null> {
    if (this.#count === undefined) return null;
    this.#sinceYield += text.length;
    if (this.#sinceYield > YIELD_CHARACTERS) {
      this.#sinceYield = 0;
      await new Promise((resolve) => setImmediate(resolve));
    }
    return this.#count(text, this.#model);
  }
}

const sumOf = (cards: readonly PreviewCard[]): PreviewSum => ({
  cards: cards.length,
  tokens: cards.reduce<number | null>(
    (sum, card) => (sum === null || card.tokens === null ? null : sum + card.tokens),
    cards.some((card) => card.tokens === null) ? null : 0,
  ),
  estimated_tokens: cards.reduce((sum, card) => sum + card.estimated_tokens, 0),
  size_bytes: cards.reduce((sum, card) => sum + card.size_bytes, 0),
});

type Sized = Card & { readonly sizeBytes: number };

interface Line {
  readonly card: Sized | undefined;
  readonly of: Pick<PackCandidate, 'rule' | 'argument' | 'source' | 'position' | 'tokens'>;
  readonly isNew: boolean;
  readonly reason: string | undefined;
}

/** Every card of the plan with its content, the digest where it would stand: behind the packed arguments. */
function linesOf(
  { draft, cuts, packing }: PlannedContext,
  stored: ReadonlyMap<CardId, Sized>,
): readonly Line[] {
  const own = new Map<CardId, NewCard>(packing.cards.map((card) => [card.id, card]));
  const lines: Line[] = candidatesOf(draft, new Map()).map((candidate) => {
    const packed = own.get(candidate.cardId);
    return {
      card: packed ?? stored.get(candidate.cardId),
      of: candidate,
      isNew: packed !== undefined,
      reason: cuts?.reasons.get(candidate.cardId),
    };
  });
  const digest = cuts?.digest === undefined ? undefined : packing.cards[draft.args.length];
  if (digest !== undefined) {
    const of = {
      rule: 'digest' as const,
      argument: undefined,
      source: undefined,
      position: 0,
      tokens: digest.tokenEstimate,
    };
    lines.splice(draft.args.length, 0, { card: digest, of, isNew: true, reason: undefined });
  }
  return lines;
}

const askedIn = ({ inherited }: PlannedContext['draft']): readonly CardId[] =>
  inherited.flatMap(({ asked }) => asked.flatMap(({ cardIds }) => cardIds));

/** The lines with what turns were asked, where a view shows it: at the starts of the turns on an inherited tape. */
function withAsked(
  lines: readonly Line[],
  draft: PlannedContext['draft'],
  stored: ReadonlyMap<CardId, Sized>,
): readonly Line[] {
  if (askedIn(draft).length === 0) return lines;
  const inherited = new Set<CardId>(draft.inheritedIds);
  const isInherited = ({ card, isNew }: Line): boolean =>
    !isNew && card !== undefined && inherited.has(card.id);
  const byCard = new Map(
    lines.flatMap((line) => (isInherited(line) && line.card ? [[line.card.id, line]] : [])),
  );
  const shown = draft.inherited.flatMap(({ rule, argument, range, asked }) => {
    const placed: { readonly position: number; readonly line: Line }[] = [];
    for (const [index, cardId] of range.cardIds.entries()) {
      const line = byCard.get(cardId);
      if (line === undefined) continue;
      byCard.delete(cardId);
      placed.push({ position: range.positions[index] ?? 0, line });
    }
    for (const { position, cardIds } of asked)
      for (const cardId of cardIds) {
        const of = { rule, argument, source: range.source, position, tokens: 0 };
        placed.push({ position, line: { card: stored.get(cardId), of, isNew: false, reason: undefined } });
      }
    return placed.sort((a, b) => a.position - b.position).map(({ line }) => line);
  });
  const first = lines.findIndex(isInherited);
  const others = lines.filter((line) => !isInherited(line));
  const at = first === -1 ? draft.args.length : first;
  return [...others.slice(0, at), ...shown, ...others.slice(at)];
}

async function toCard({ card, of, isNew, reason }: Line, counter: Counter): Promise<PreviewCard> {
  return {
    card_id: card === undefined || isNew ? 'new' : card.id,
    type: card?.type ?? 'unknown',
    role: card?.role ?? null,
    author_id: card?.authorId ?? 'unknown',
    rule: of.rule,
    argument: of.argument ?? null,
    source: of.source ?? null,
    position: of.source === undefined ? null : of.position,
    tokens: card === undefined ? 0 : await counter.count(renderBody(card.content)),
    estimated_tokens: of.tokens,
    size_bytes: card?.sizeBytes ?? 0,
    is_kept: reason === undefined,
    reason: reason ?? null,
  };
}

/** The words of a message, calls included. */
const wordsOf = (message: Message): string =>
  message.role === 'assistant' && message.toolCalls !== undefined
    ? [
        message.content,
        ...message.toolCalls.map((call) => `${call.name} ${JSON.stringify(call.arguments)}`),
      ].join('\n')
    : message.content;

/** The rows of a fresh agent's first step: its tape says no more than that the turn has begun. */
function firstRows(
  context: readonly ContextCard[],
  of: { readonly profile: Profile; readonly newId: NewId },
): ViewRows {
  const turnId = of.newId<'turn'>();
  const contextBoxId = of.newId<'box'>();
  const { max_steps: stepsLeft } = of.profile.limits;
  const data = { turn_id: turnId, context_box_id: contextBoxId, steps_left: stepsLeft };
  return {
    turn: { turnId, agentId: of.newId<'agent'>(), contextBoxId },
    profile: of.profile,
    entries: [
      {
        position: 1,
        kind: 'event',
        card: null,
        payload: { name: TURN_STARTED, data },
        anchorName: null,
        turnId,
        step: null,
      },
    ],
    lastAnchorPosition: 0,
    contexts: new Map([[contextBoxId, context]]),
  };
}

/** The first prompt as the selector of the profile makes it, in the version that a first step here would have. */
function selected(
  view: View,
  rows: ViewRows,
  { profile, selectors }: { readonly profile: Profile; readonly selectors: Selectors | undefined },
): View | KernelError {
  const name = selectorOfView(profile.view);
  if (name === null) return view;
  const wanted = { name, version: null };
  const ref = selectors?.find(wanted);
  if (selectors === undefined || ref === undefined)
    return selectorUnknown(wanted, 'makes the prompts of this profile, and this process does not have it');
  try {
    return selectors.apply(view, rows, ref);
  } catch (error) {
    if (error instanceof KernelError) return error;
    throw error;
  }
}

async function toPrompt(
  lines: readonly Line[],
  of: {
    readonly profile: Profile;
    readonly counter: Counter;
    readonly newId: NewId;
    readonly selectors: Selectors | undefined;
    readonly arrange: (lines: readonly Line[]) => readonly Line[];
    readonly namesOf: (ids: ReadonlySet<string>) => Promise<ReadonlyMap<string, string>>;
  },
): Promise<PackPreview['prompt']> {
  const isNew = new Set(lines.flatMap(({ card, isNew }) => (isNew && card !== undefined ? [card.id] : [])));
  const context = of
    .arrange(lines)
    .flatMap(({ card, of: { rule }, reason }): ContextCard[] =>
      card === undefined || reason !== undefined
        ? []
        : [toContextCard({ card, rule, native: false, isReference: false, isExpandable: false })],
    );
  const profile = bindProfile(of.profile, context);
  const bare = firstRows(context, { ...of, profile });
  const rows = {
    ...bare,
    names: await of.namesOf(agentsIn(bare)),
    contextLimit: toldLimitOf(of.profile),
  };
  const view = selected(buildView(rows), rows, of);
  if (view instanceof KernelError)
    return { messages: [], tokens: null, estimated_tokens: 0, unmade: view.message };
  const messages: PreviewMessage[] = [];
  for (const [index, message] of view.messages.entries()) {
    messages.push({
      message,
      tokens: await of.counter.count(wordsOf(message)),
      card_ids: (view.origins[index]?.cardIds ?? []).map((id) => (isNew.has(id) ? 'new' : id)),
    });
  }
  return {
    messages,
    tokens: messages.reduce<number | null>(
      (sum, { tokens }) => (sum === null || tokens === null ? null : sum + tokens),
      0,
    ),
    estimated_tokens: view.estimateTokens,
  };
}

/** What the worker does to this prompt before its first call; the tools count there as well, which a preview does not know. */
function promptNotices(prompt: PackPreview['prompt'], profile: Profile): readonly HandoverNotice[] {
  const { promptTokens, limitTokens, reminderTokens } = contextLimitsOf(profile);
  const tokens = prompt.tokens ?? prompt.estimated_tokens;
  const notice = (what: string): readonly HandoverNotice[] => [
    { field: 'prompt', message: `has about ${tokens} tokens without its tools; ${what}` },
  ];
  const hasSelector = selectorOfView(profile.view) !== null;
  if (tokens > promptTokens)
    return notice(
      `the model takes ${limitTokens}, of which ${limitTokens - promptTokens} are left to its answer: ${
        hasSelector
          ? 'it is not sent, and the turn ends as failed: the prompts of selectors are not made shorter'
          : 'before the first call large cards become references'
      }`,
    );
  if (reminderTokens !== undefined && tokens > reminderTokens)
    return notice(
      `the model takes ${limitTokens}: before the first call the agent is reminded that it can hand off`,
    );
  return [];
}

/** Describes a plan. Three statements: the contents of its cards, the profile, and the names of agents. */
export async function previewPlan(
  db: Queryable,
  plan: PlannedContext<ResolvedSpec>,
  options: PreviewOptions & {
    readonly newId: NewId;
    readonly notices: readonly HandoverNotice[];
    readonly selectors: Selectors | undefined;
  },
): Promise<PackPreview> {
  const { spec, draft, packing } = plan;
  const stored = await loadCards(
    db,
    [...new Set([...draft.inheritedIds, ...askedIn(draft)])],
    spec.projectId,
  );
  const profile = (await loadProfiles(db, [spec.profile.profileId])).get(spec.profile.profileId);
  if (profile === undefined)
    throw new KernelError('internal_error', {
      message: `Profile ${spec.profile.profileId} has no row.`,
      details: { profile_id: spec.profile.profileId },
    });
  const counter = new Counter(options.countTokens, profile.model);
  const lines = linesOf(plan, stored);
  const cards: PreviewCard[] = [];
  for (const line of lines) cards.push(await toCard(line, counter));
  const prompt = await toPrompt(lines, {
    profile,
    counter,
    newId: options.newId,
    selectors: options.selectors,
    arrange: (all) => withAsked(all, draft, stored),
    namesOf: async (ids) => givenNames(await loadAgentNames(db, spec.projectId, ids)),
  });
  return {
    profile: {
      name: spec.profile.name,
      version: spec.profile.version,
      box_id: spec.profile.boxId,
      model: profile.model,
    },
    budget:
      draft.budget === undefined
        ? null
        : {
            budget_tokens: draft.budget.tokens,
            budget_strategy: draft.budget.strategy,
            estimated_tokens: draft.tokens,
            is_exceeded: draft.tokens > draft.budget.tokens,
          },
    cards,
    kept: sumOf(cards.filter((card) => card.is_kept)),
    cut: sumOf(cards.filter((card) => !card.is_kept)),
    segments: packing.box.segments,
    prompt,
    notices: [...options.notices, ...promptNotices(prompt, profile)],
  };
}
