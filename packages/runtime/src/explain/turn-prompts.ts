/**
 * The prompts of one turn, rebuilt from its rows, which are read once for many questions. `explain` shows the prompt
 * that the model of a step received, with reasons. `why` finds the origin of a text. Rule: docs/reference/explain.md.
 */
import {
  type CardId,
  KernelError,
  type Model,
  parseJsonValue,
  renderAhead,
  WantedText,
} from '@boxcar/kernel';
import { loadTurnRows, type StepRow, type StoredCard, type TurnRows } from '@boxcar/store/report';
import type pg from 'pg';
import { inSlices, SLICE_CHARACTERS, unlessAborted } from '../lib/index.js';
import type { Selectors } from '../pack/index.js';
import { type CardOrigin, CardOrigins } from './card-origin.js';
import { explainPrompt, explainTool, originsOf, type StepExplanation } from './explain-step.js';
import { type PromptPart, PromptText } from './prompt-text.js';
import { type BuiltPrompt, buildPrompt, rebuildPrompt, storedCards, verifyPrompt } from './rebuild.js';
import {
  type HintCandidate,
  hintCards,
  placesOf,
  type SearchedPrompt,
  searchPrompts,
  type WhyAnswer,
  type WhyHint,
  type WhyPart,
} from './why.js';

/** Longer texts are refused: no realistic question is longer. */
const MAX_WHY_CHARACTERS = 100_000;

/**
 * Prompts beyond this total length are not kept but rebuilt at each use. Each prompt is about as long as the turn so
 * far.
 */
const MAX_KEPT_CHARACTERS = 4_000_000;

export interface StepChoice {
  /** Default: the last committed step, or the step in progress when none is committed. */
  readonly step?: number | undefined;
  /** Default: the committed attempt, or the latest when none is committed. */
  readonly attempt?: number | undefined;
}

/** An option of `explainStep` and `why`. */
export interface SelectorsOption {
  /** The selectors of this process. A prompt cannot be rebuilt without the selector that made it. */
  readonly selectors?: Selectors | undefined;
}

/** An option of `explainStep` and `why`. */
export interface ModelOption {
  /** The models of this process. Their adapters describe their additions to a prompt. */
  readonly model?: Pick<Model, 'describeWire'> | undefined;
}

/** The attempt that counts of each step: the committed attempt, or the latest when none is committed. */
function attemptsThatCount(steps: readonly StepRow[]): readonly StepRow[] {
  const chosen = new Map<number, StepRow>();
  for (const step of steps) if (chosen.get(step.step)?.committedAt == null) chosen.set(step.step, step);
  return [...chosen.values()];
}

function describeSteps(steps: readonly StepRow[]): string {
  const numbers = [...new Set(steps.map((step) => step.step))];
  const last = numbers.at(-1) ?? 0;
  return numbers.length > 1 ? `steps ${numbers[0]}–${last}` : `step ${last}`;
}

/** @throws KernelError `not_found`, naming the steps or attempts that exist. */
function chooseStep(turn: TurnRows['turn'], steps: readonly StepRow[], choice: StepChoice): StepRow {
  const { turnId, status } = turn;
  const refuse = (message: string): never => {
    throw new KernelError('not_found', { message, details: { turn_id: turnId, ...choice } });
  };
  if (steps.length === 0)
    return refuse(`Turn ${turnId} has no step yet: it is ${status}, and no prompt was built.`);
  const counting = attemptsThatCount(steps);
  const last = counting.findLast((step) => step.committedAt !== null) ?? counting.at(-1);
  const number = choice.step ?? last?.step;
  const ofStep = steps.filter((step) => step.step === number);
  if (ofStep.length === 0)
    return refuse(`Turn ${turnId} has no step ${number}; it has ${describeSteps(steps)}.`);
  if (choice.attempt === undefined)
    return attemptsThatCount(ofStep)[0] ?? refuse(`Step ${number} has no attempt.`);
  const attempts = ofStep.map((step) => step.attempt).join(', ');
  return (
    ofStep.find((step) => step.attempt === choice.attempt) ??
    refuse(`Step ${number} of turn ${turnId} has no attempt ${choice.attempt}; it has ${attempts}.`)
  );
}

/** A prompt with its text, ready to be searched. */
interface ReadPrompt {
  readonly prompt: BuiltPrompt;
  readonly text: PromptText;
}

export class TurnPrompts {
  readonly #rows: TurnRows;
  readonly #cards: ReadonlyMap<CardId, StoredCard>;
  readonly #origins: CardOrigins;
  readonly #kept = new Map<StepRow, ReadPrompt>();
  #keptCharacters = 0;
  readonly #verified = new Map<StepRow, boolean>();
  readonly #selectors: Selectors | undefined;
  readonly #model: ModelOption['model'];

  /**
   * Reads the rows in a constant number of statements.
   *
   * @param ref - The turn's id, or a beginning of it of at least eight digits.
   * @param options.project - Id or name; a turn of another project is not found.
   * @throws KernelError `not_found` for the turn, or for a step that it does not have; `bad_request` for an id that is
   * not valid.
   */
  static async load(
    pool: pg.Pool,
    ref: string,
    options: { readonly project: string } & StepChoice &
      SelectorsOption &
      ModelOption & { readonly allSteps?: boolean },
  ): Promise<TurnPrompts> {
    parseJsonValue(options.project, 'project_id');
    const rows = await loadTurnRows(pool, ref, {
      project: options.project,
      choose: (turn, steps) => {
        const chosen = chooseStep(turn, steps, options);
        return options.allSteps === true ? attemptsThatCount(steps) : [chosen];
      },
    });
    return new TurnPrompts(rows, options);
  }

  private constructor(rows: TurnRows, { selectors, model }: SelectorsOption & ModelOption) {
    this.#selectors = selectors;
    this.#model = model;
    this.#rows = rows;
    this.#cards = storedCards(rows);
    this.#origins = new CardOrigins(rows);
  }

  /** The numbers of the steps that were read, in order. */
  get steps(): readonly number[] {
    return this.#rows.steps.map((step) => step.step);
  }

  /** @throws KernelError `not_found` for a step that was not read. */
  explain(choice: StepChoice = {}): StepExplanation {
    const step = chooseStep(this.#rows.turn, this.#rows.steps, choice);
    const prompt = rebuildPrompt(this.#rows, step, this.#cards, this.#selectors);
    return explainPrompt(this.#rows, prompt, { origins: this.#origins, model: this.#model });
  }

  /**
   * Works in slices, so that the process can do other work in between.
   *
   * @param options.signal - Stops the work between two slices, with the signal's reason.
   * @throws KernelError `bad_request` for a blank or very long text, `not_found` for a step that was not read,
   * `selector_unknown` or `selector_failed` for a prompt that cannot be rebuilt.
   */
  async why(
    text: string,
    options: { readonly step?: number | undefined; readonly signal?: AbortSignal | undefined } = {},
  ): Promise<WhyAnswer> {
    checkText(text);
    const { turn, steps } = this.#rows;
    const chosen = options.step === undefined ? steps : [chooseStep(turn, steps, { step: options.step })];
    return inSlices(this.#why(new WantedText(text), chosen), options.signal);
  }

  *#why(wanted: WantedText, chosen: readonly StepRow[]): Generator<number, WhyAnswer> {
    yield* this.#renderCards();
    const { turn } = this.#rows;
    const head = { turn_id: turn.turnId, text: wanted.text };
    const found = yield* searchPrompts(
      chosen.map((step) => this.#searched(step, { isAsked: true })),
      wanted,
    );
    if (found.match === undefined) {
      const others = yield* this.#otherSteps(chosen, wanted);
      const hints = yield* this.#hints(chosen, wanted);
      return {
        ...head,
        outcome: 'not_found',
        searched_steps: chosen.map((step) => step.step),
        hints: [...others, ...hints, ...(found.nearest === undefined ? [] : [found.nearest])],
      };
    }
    const [first] = found.hits;
    if (first === undefined) throw new Error('a text was found in no prompt');
    const { prompt, text } = yield* this.#read(first.row);
    const { places, count } = yield* placesOf(text, wanted, {
      match: found.match,
      describe: (part, share) => this.#describe(prompt, part, share),
    });
    return {
      ...head,
      outcome: 'found',
      match: found.match,
      step: first.step,
      attempt: first.attempt,
      verified: yield* this.#verify(first.row),
      steps: found.hits.map((hit) => hit.step),
      places,
      place_count: count,
    };
  }

  /**
   * Rendering the cards takes longer than all other work on a prompt, so it is done before the first prompt is built.
   */
  *#renderCards(): Generator<number, void> {
    for (const { card } of this.#cards.values()) yield 1 + renderAhead(card);
  }

  /**
   * The work grows with the number of cards and entries, even when the prompt is short, so it gets a slice of its own.
   */
  *#build(step: StepRow): Generator<number, BuiltPrompt> {
    yield SLICE_CHARACTERS;
    const prompt = buildPrompt(this.#rows, step, this.#selectors);
    yield SLICE_CHARACTERS;
    return prompt;
  }

  *#read(step: StepRow): Generator<number, ReadPrompt> {
    const known = this.#kept.get(step);
    if (known !== undefined) return known;
    const prompt = yield* this.#build(step);
    const read = { prompt, text: yield* PromptText.of(prompt, this.#cards) };
    const { length } = read.text.text;
    if (this.#keptCharacters + length <= MAX_KEPT_CHARACTERS) {
      this.#keptCharacters += length;
      this.#kept.set(step, read);
    }
    return read;
  }

  *#verify(step: StepRow): Generator<number, boolean> {
    const known = this.#verified.get(step) ?? (yield* verifyPrompt((yield* this.#read(step)).prompt));
    this.#verified.set(step, known);
    return known;
  }

  /** @throws KernelError on reading a requested prompt that its selector cannot make again. */
  #searched(
    row: StepRow,
    { isAsked }: { readonly isAsked: boolean },
  ): SearchedPrompt & { readonly row: StepRow } {
    const readRow = (): Generator<number, ReadPrompt> => this.#read(row);
    function* read(): Generator<number, PromptText> {
      const { prompt, text } = yield* readRow();
      if (isAsked && prompt.unmade !== undefined) throw prompt.unmade;
      return text;
    }
    return { step: row.step, attempt: row.attempt, row, read };
  }

  #describe(prompt: BuiltPrompt, part: PromptPart, text: string): WhyPart {
    const tool = part.tool === null ? null : explainTool(part.tool, this.#rows, prompt.hasResultFields);
    return {
      text,
      rule: part.rule,
      is_own: part.isOwn,
      message: part.message === null ? null : part.message + 1,
      role: part.message === null ? null : (prompt.view.messages[part.message]?.role ?? null),
      field: part.field,
      card: this.#cardOf(part),
      tool:
        tool === null
          ? null
          : { name: tool.name, source: tool.source, offered_by: tool.offered_by, tokens: tool.tokens },
    };
  }

  #cardOf({ origin, cardId }: PromptPart): CardOrigin | null {
    if (origin === null) return null;
    const cards = originsOf(origin, this.#origins);
    if (origin.source.kind === 'profile') return cards[0] ?? null;
    return cards.find((card) => card.card_id === cardId) ?? null;
  }

  /** Cards that were left out of the prompts, then outputs of the turn that no prompt contains. */
  *#hints(steps: readonly StepRow[], wanted: WantedText): Generator<number, readonly WhyHint[]> {
    const candidates: HintCandidate[] = [];
    const seen = new Set<CardId>();
    for (const step of steps) {
      const prompt = this.#kept.get(step)?.prompt ?? (yield* this.#build(step));
      for (const candidate of this.#omitted(prompt)) {
        yield 1;
        // Each step leaves out the cards that the previous step left out.
        if (seen.has(candidate.cardId)) continue;
        seen.add(candidate.cardId);
        candidates.push(candidate);
      }
      if (step === steps[0]) candidates.push(...this.#cuts(step));
    }
    const omitted = yield* hintCards(candidates, this.#cards, wanted);
    return [...omitted, ...(yield* hintCards(this.#outputs(), this.#cards, wanted))];
  }

  *#omitted({ step, view }: BuiltPrompt): Iterable<HintCandidate> {
    const { step: number } = step;
    for (const range of view.manifest.omitted) {
      const { reason } = range;
      for (const cardId of this.#origins.idsAt(range)) {
        const hint = (): WhyHint | undefined => {
          const card = this.#origins.at(range).find((origin) => origin.card_id === cardId);
          return card && { kind: 'omitted', step: number, reason, cut: null, card };
        };
        yield { cardId, hint };
      }
    }
  }

  #cuts({ step }: StepRow): readonly HintCandidate[] {
    return this.#origins.cutFrom(this.#rows.turn.contextBoxId).map(({ card, cut }) => ({
      cardId: card.card_id,
      hint: () => ({ kind: 'omitted', step, reason: 'budget', cut, card }),
    }));
  }

  *#outputs(): Iterable<HintCandidate> {
    const { entries, steps, turn } = this.#rows;
    const head = steps.reduce((last, step) => Math.max(last, step.toPosition), 0);
    for (const { entry, stored } of entries) {
      if (entry.position <= head || entry.turnId !== turn.turnId || stored === null) continue;
      const hint = (): WhyHint | undefined => {
        const [card] = this.#origins.at({ kind: 'tape', from: entry.position, to: entry.position });
        return card && { kind: 'output', is_deliverable: card.card_id === turn.deliverableCardId, card };
      };
      yield { cardId: stored.card.id, hint };
    }
  }

  /** Other steps, outside the requested selection, whose prompts show the text. */
  *#otherSteps(asked: readonly StepRow[], wanted: WantedText): Generator<number, readonly WhyHint[]> {
    const isAsked = new Set(asked);
    const others = this.#rows.steps.filter((step) => !isAsked.has(step));
    const found = yield* searchPrompts(
      others.map((step) => this.#searched(step, { isAsked: false })),
      wanted,
    );
    if (found.match === undefined) return [];
    return [{ kind: 'other_steps', steps: found.hits.map((hit) => hit.step) }];
  }
}

/** Untyped programs call this too. */
function checkText(text: unknown): asserts text is string {
  const isText = typeof text === 'string' && text.trim() !== '';
  if (isText && text.length <= MAX_WHY_CHARACTERS) return;
  const what = !isText
    ? 'must be a text that is not blank'
    : `is longer than ${MAX_WHY_CHARACTERS} characters`;
  throw new KernelError('bad_request', { message: `text: ${what}.`, details: { field: 'text' } });
}

/** The exact messages of a step with their reasons. @throws KernelError `not_found`, `bad_request`. */
export async function explainStep(
  pool: pg.Pool,
  turn: string,
  options: { readonly project: string } & StepChoice & SelectorsOption & ModelOption,
): Promise<StepExplanation> {
  return (await TurnPrompts.load(pool, turn, options)).explain();
}

/**
 * Finds the origin of a text in a turn's prompts.
 *
 * @param of.signal - Stops the search with the signal's reason.
 * @throws KernelError `not_found`, `bad_request`.
 */
export async function why(
  pool: pg.Pool,
  turn: string,
  of: {
    readonly text: string;
    readonly project: string;
    readonly step?: number | undefined;
    readonly signal?: AbortSignal | undefined;
  } & SelectorsOption,
): Promise<WhyAnswer> {
  checkText(of.text);
  const { project, step, selectors, signal } = of;
  signal?.throwIfAborted();
  const ask = async (): Promise<WhyAnswer> => {
    const prompts = await TurnPrompts.load(pool, turn, { project, step, selectors, allSteps: true });
    return prompts.why(of.text, { step, signal });
  };
  return signal === undefined ? ask() : unlessAborted(ask(), signal);
}
