/**
 * Rebuilds a step's prompt from the rows with the function that built it first, and compares it with the prompt that
 * was sent. The step's row keeps the hash of messages and tools.
 */
import {
  bindProfile,
  buildView,
  type Card,
  type CardId,
  canonicalJson,
  foldManifest,
  givenNames,
  type JsonValue,
  KernelError,
  PromptHasher,
  promptHash,
  resultFieldsOf,
  type StoredManifest,
  sha256,
  type View,
  type ViewRows,
} from '@boxcar/kernel';
import type { OfferedTool } from '@boxcar/store';
import type { StepRow, StoredCard, TurnRows } from '@boxcar/store/report';
import { type Selectors, selectorUnknown, toContextCard } from '../pack/index.js';

/** A reason why a rebuilt prompt cannot be proven equal to the prompt that was sent. */
export interface Finding {
  readonly code:
    | 'selector_unknown'
    | 'selector_failed'
    | 'not_committed'
    | 'served_elsewhere'
    | 'tools_unknown'
    | 'card_erased'
    | 'card_altered'
    | 'manifest_differs'
    | 'prompt_differs';
  readonly message: string;
  readonly card_ids?: readonly CardId[];
}

/** The prompt of a step as built from the rows, not yet compared. */
export interface BuiltPrompt {
  readonly step: StepRow;
  readonly view: View;
  /** Null when the rows do not tell which tools the step offered. */
  readonly tools: readonly OfferedTool[] | null;
  readonly hasResultFields: boolean;
  /** Set when the selector that made the prompt could not make it again here: then no messages are shown. */
  readonly unmade?: KernelError;
}

export interface RebuiltPrompt extends BuiltPrompt {
  /** Hash of the rebuilt prompt; null when the tools are not known. */
  readonly hash: string | null;
  /** True when the messages and tools have the hash in the step's row: then they equal the sent prompt byte by byte. */
  readonly isVerified: boolean;
  readonly findings: readonly Finding[];
}

/** The cards that a turn's prompts may show, by id. */
export function storedCards(rows: TurnRows): ReadonlyMap<CardId, StoredCard> {
  const all = [
    ...rows.entries.flatMap(({ stored }) => stored ?? []),
    ...[...rows.contexts.values(), ...rows.cuts.values()].flat().map(({ stored }) => stored),
  ];
  return new Map(all.map((stored) => [stored.card.id, stored]));
}

/** Builds the view of a step as the worker did, from the same rows and with the same binding of result fields. */
function buildStepView(
  rows: TurnRows,
  step: StepRow,
): { readonly view: View; readonly viewRows: ViewRows; readonly hasResultFields: boolean } {
  const { turn } = rows;
  const profile = turn.profile.content;
  const contexts = new Map(
    [...rows.contexts].map(([boxId, cards]) => [
      boxId,
      cards.map(({ stored, rule, shownAs }) => toContextCard({ card: stored.card, rule, ...shownAs })),
    ]),
  );
  const context = contexts.get(turn.contextBoxId) ?? [];
  const viewRows: ViewRows = {
    turn,
    profile: bindProfile(profile, context),
    entries: rows.entries.flatMap(({ entry }) =>
      entry.position >= step.fromPosition && entry.position <= step.toPosition ? [entry] : [],
    ),
    lastAnchorPosition: step.anchorPosition,
    contexts,
    names: shownNames(rows, step),
    contextLimit: toldLimit(step.manifest),
  };
  return { view: buildView(viewRows), viewRows, hasResultFields: resultFieldsOf(context) !== undefined };
}

/** The agent names that the prompt showed. They are in its manifest; prompts of older builds showed no names. */
const shownNames = ({ agentNames }: TurnRows, { manifest }: StepRow): ReadonlyMap<string, string> =>
  manifest === null ? givenNames(agentNames) : new Map(Object.entries(manifest.names ?? {}));

/** The context limit that the agent was told. */
function toldLimit(manifest: StoredManifest | null): number | undefined {
  const first = manifest?.messages[0];
  return first?.kind === 'profile' ? first.contextLimit : undefined;
}

/**
 * The tools of a step. Its row names the toolset; a step of an older build names no toolset, so a toolset that gives
 * the same hash is used.
 */
function findTools(rows: TurnRows, step: StepRow, view: View): readonly OfferedTool[] | null {
  if (step.toolsetHash !== null) return rows.toolsets.get(step.toolsetHash) ?? null;
  const candidates = [[], ...rows.toolsets.values()];
  return candidates.find((tools) => promptHash(view.messages, tools) === step.promptHash) ?? null;
}

/** Describes the first difference between two manifests; undefined when they are equal. */
function compareManifests(stored: StoredManifest, rebuilt: StoredManifest): string | undefined {
  const text = (value: unknown): string => canonicalJson(value as JsonValue);
  if (text(stored) === text(rebuilt)) return undefined;
  const at = rebuilt.messages.findIndex(
    (range, index) => text(range) !== text(stored.messages[index] ?? null),
  );
  const range = rebuilt.messages[at] ?? stored.messages[rebuilt.messages.length];
  if (range === undefined) return 'the manifest of the step lists other omissions';
  return `from message ${range.first + 1} on, the manifest of the step names other sources`;
}

const isAltered = ({ card, hash, isErased }: StoredCard): boolean =>
  !isErased && sha256(canonicalJson(card.content as JsonValue)) !== hash;

function findDifferences(
  step: StepRow,
  view: View,
  of: { readonly hasTools: boolean; readonly shown: readonly StoredCard[] },
): readonly Finding[] {
  if (step.committedAt === null) {
    return [
      {
        code: 'not_committed',
        message:
          'This attempt was never committed: its prompt is not recorded, and entries written since it was opened may be missing here.',
      },
    ];
  }
  const findings: Finding[] = [];
  const cardFinding = (
    code: 'card_erased' | 'card_altered',
    cards: readonly StoredCard[],
    what: string,
  ): void => {
    if (cards.length === 0) return;
    const ids = cards.map(({ card }) => card.id);
    findings.push({
      code,
      message: `${what}: ${ids.slice(0, 3).join(', ')}${ids.length > 3 ? ', …' : ''}.`,
      card_ids: ids,
    });
  };
  cardFinding(
    'card_erased',
    of.shown.filter(({ isErased }) => isErased),
    'Cards have been erased since',
  );
  cardFinding(
    'card_altered',
    of.shown.filter(isAltered),
    'The content of cards no longer has the hash it was stored with',
  );
  const rebuilt = step.manifest?.v === 1 ? view.manifest : foldManifest(view);
  const difference = step.manifest === null ? undefined : compareManifests(step.manifest, rebuilt);
  if (difference !== undefined)
    findings.push({ code: 'manifest_differs', message: `The sources differ: ${difference}.` });
  if (!of.hasTools) {
    const agrees = step.manifest !== null && difference === undefined;
    findings.push({
      code: 'tools_unknown',
      message: `The rows do not record which tools this step offered, so its hash cannot be checked.${
        agrees ? ' Its messages are from the sources that its manifest names.' : ''
      }`,
    });
  } else if (findings.length === 0) {
    findings.push({
      code: 'prompt_differs',
      message: 'The hash of the rebuilt prompt differs from the hash of the sent prompt.',
    });
  }
  return findings;
}

/**
 * The prompt of a step whose selector is missing or fails in this process: the tools that the step offered, and no
 * messages.
 */
function withoutMessages(
  rows: TurnRows,
  { step, view, error }: { readonly step: StepRow; readonly view: View; readonly error: KernelError },
): Omit<BuiltPrompt, 'hasResultFields'> {
  return {
    step,
    view: { ...view, messages: [], origins: [], manifest: { ...view.manifest, messages: [], omitted: [] } },
    tools: step.toolsetHash === null ? null : (rows.toolsets.get(step.toolsetHash) ?? null),
    unmade: error,
  };
}

/**
 * The selector that made the prompt of a step: the selector in its manifest, or without a manifest the selector of the
 * turn.
 */
function selectorOf(
  { turn }: TurnRows,
  { manifest }: StepRow,
): { readonly name: string; readonly version: string | null } | null {
  return manifest === null ? turn.selector : (manifest.selector ?? null);
}

/** @throws KernelError `selector_unknown`, `selector_failed`. */
function select(
  built: { readonly view: View; readonly viewRows: ViewRows },
  wanted: { readonly name: string; readonly version: string | null },
  selectors: Selectors | undefined,
): View {
  const { name, version } = wanted;
  const cannot = (why: string): KernelError =>
    selectorUnknown(wanted, `made this prompt, which cannot be rebuilt: ${why}`);
  if (version === null) throw cannot('no step of the turn has fixed its version yet');
  if (selectors?.find(wanted) === undefined) throw cannot('this process does not have it');
  return selectors.apply(built.view, built.viewRows, { name, version });
}

/** Builds the prompt of a step without comparing it. */
export function buildPrompt(rows: TurnRows, step: StepRow, selectors?: Selectors): BuiltPrompt {
  const { hasResultFields, ...built } = buildStepView(rows, step);
  let { view } = built;
  const wanted = selectorOf(rows, step);
  if (wanted !== null) {
    try {
      view = select(built, wanted, selectors);
    } catch (error) {
      if (!(error instanceof KernelError)) throw error;
      return { ...withoutMessages(rows, { step, view, error }), hasResultFields };
    }
  }
  const tools = step.committedAt === null ? null : findTools(rows, step, view);
  return { step, view, tools, hasResultFields };
}

/** Characters of a prompt that are hashed between two yields. */
const HASHED_AT_ONCE = 100_000;

/**
 * Whether messages and tools have the hash in the step's row, so that they equal the sent prompt byte by byte. Yields
 * the length of the text that it has hashed.
 */
export function* verifyPrompt({ step, view, tools, unmade }: BuiltPrompt): Generator<number, boolean> {
  if (tools === null || unmade !== undefined) return false;
  const hasher = new PromptHasher();
  let work = 0;
  for (const [index, message] of view.messages.entries()) {
    work += message.content.length;
    if (work < HASHED_AT_ONCE) continue;
    hasher.hash(view.messages.slice(0, index + 1), []);
    yield work;
    work = 0;
  }
  return hasher.hash(view.messages, tools) === step.promptHash;
}

/** Rebuilds the prompt of a step, and tells whether it equals the prompt that was sent. */
export function rebuildPrompt(
  rows: TurnRows,
  step: StepRow,
  cards: ReadonlyMap<CardId, StoredCard> = storedCards(rows),
  selectors?: Selectors,
): RebuiltPrompt {
  const built = buildPrompt(rows, step, selectors);
  const { view, tools, unmade } = built;
  if (unmade !== undefined) {
    const code = unmade.code === 'selector_failed' ? 'selector_failed' : 'selector_unknown';
    return { ...built, hash: null, isVerified: false, findings: [{ code, message: unmade.message }] };
  }
  const hash = tools === null ? null : promptHash(view.messages, tools);
  const isVerified = hash !== null && hash === step.promptHash;
  const shown = (): readonly StoredCard[] =>
    view.origins.flatMap(({ cardIds }) => cardIds.flatMap((id) => cards.get(id) ?? []));
  return {
    ...built,
    hash,
    isVerified,
    findings: isVerified ? [] : findDifferences(step, view, { hasTools: tools !== null, shown: shown() }),
  };
}

/** The cards with these ids, without ids that have no card. */
export const cardsOf = (ids: readonly CardId[], cards: ReadonlyMap<CardId, StoredCard>): readonly Card[] =>
  ids.flatMap((id) => cards.get(id)?.card ?? []);
