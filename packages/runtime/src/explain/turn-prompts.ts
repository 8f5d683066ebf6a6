/**
 * The prompts of one turn, rebuilt from its rows: read once, asked often. `explain` tells what a step's model saw and why;
 * `why` finds where a text came from. Rule: docs/explain.md.
 */
import { type CardId, KernelError, parseJsonValue } from '@boxcar/kernel';
import { loadTurnRows, type StepRow, type StoredCard, type TurnRows } from '@boxcar/store';
import type pg from 'pg';
import type { Selectors } from '../selectors.js';
import { type CardOrigin, CardOrigins } from './card-origin.js';
import {
  explainOmissions,
  explainPrompt,
  explainTool,
  originsOf,
  type StepExplanation,
} from './explain-step.js';
import { type PromptPart, PromptText } from './prompt-text.js';
import { type RebuiltPrompt, rebuildPrompt, storedCards } from './rebuild.js';
import {
  findNearest,
  hintCards,
  placesOf,
  type SearchedPrompt,
  searchPrompts,
  type WhyAnswer,
  type WhyHint,
  type WhyPart,
} from './why.js';

/** Longer texts are refused: nobody asks for so much at once. */
const MAX_WHY_CHARACTERS = 100_000;

/** Prompts of longer turns are built again when they are looked at again: each is about as long as the turn so far. */
const MAX_KEPT_PROMPTS = 50;

export interface StepChoice {
  /** Default: the last committed step; without one, the one under way. */
  readonly step?: number | undefined;
  /** Default: the committed attempt; without one, the latest. */
  readonly attempt?: number | undefined;
}

export interface SelectorsOption {
  /** The selectors of this process. Without the one that made a prompt, the prompt cannot be rebuilt. */
  readonly selectors?: Selectors | undefined;
}

/** Of each step the attempt that counts: the committed one, else the latest. */
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

/** @throws KernelError `not_found` naming what the turn has. */
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

export class TurnPrompts {
  readonly #rows: TurnRows;
  readonly #cards: ReadonlyMap<CardId, StoredCard>;
  readonly #origins: CardOrigins;
  readonly #rebuilt = new Map<StepRow, RebuiltPrompt>();
  readonly #texts = new Map<StepRow, PromptText>();
  readonly #mayKeep: boolean;
  readonly #selectors: Selectors | undefined;

  /**
   * Reads the rows in a constant number of statements.
   *
   * @param ref - The turn's id, or a beginning of it of at least eight digits.
   * @param options.project - Id or name; a turn of another project is not found.
   * @throws KernelError `not_found` for the turn, or a step it has not; `bad_request` for what is no id.
   */
  static async load(
    pool: pg.Pool,
    ref: string,
    options: { readonly project: string } & StepChoice & SelectorsOption & { readonly allSteps?: boolean },
  ): Promise<TurnPrompts> {
    parseJsonValue(options.project, 'project_id');
    const rows = await loadTurnRows(pool, ref, {
      project: options.project,
      choose: (turn, steps) => {
        const chosen = chooseStep(turn, steps, options);
        return options.allSteps === true ? attemptsThatCount(steps) : [chosen];
      },
    });
    return new TurnPrompts(rows, options.selectors);
  }

  private constructor(rows: TurnRows, selectors: Selectors | undefined) {
    this.#selectors = selectors;
    this.#rows = rows;
    this.#cards = storedCards(rows);
    this.#origins = new CardOrigins(rows);
    this.#mayKeep = rows.steps.length <= MAX_KEPT_PROMPTS;
  }

  /** The numbers of the steps that were read, in order. */
  get steps(): readonly number[] {
    return this.#rows.steps.map((step) => step.step);
  }

  /** @throws KernelError `not_found` for a step that was not read. */
  explain(choice: StepChoice = {}): StepExplanation {
    const step = chooseStep(this.#rows.turn, this.#rows.steps, choice);
    return explainPrompt(this.#rows, this.#rebuild(step), this.#origins);
  }

  /**
   * @throws KernelError `bad_request` for a blank or very long text, `not_found` for a step that was not read, `selector_unknown` or
   *   `selector_failed` for a prompt that cannot be rebuilt.
   */
  why(text: string, options: { readonly step?: number | undefined } = {}): WhyAnswer {
    checkText(text);
    const { turn, steps } = this.#rows;
    const chosen = options.step === undefined ? steps : [chooseStep(turn, steps, { step: options.step })];
    for (const step of chosen) {
      const { unmade } = this.#rebuild(step);
      if (unmade !== undefined) throw unmade;
    }
    const prompts = chosen.map((step) => this.#searched(step));
    const head = { turn_id: turn.turnId, text };
    const found = searchPrompts(prompts, text);
    const first = found?.hits[0];
    if (found === undefined || first === undefined) {
      const hints = [...this.#otherSteps(chosen, text), ...this.#hints(chosen, text)];
      const nearest = findNearest(prompts, text);
      return {
        ...head,
        outcome: 'not_found',
        searched_steps: chosen.map((step) => step.step),
        hints: [...hints, ...(nearest === undefined ? [] : [nearest])],
      };
    }
    const prompt = this.#rebuild(first.row);
    const { places, count } = placesOf(first.read(), text, {
      match: found.match,
      describe: (part, share) => this.#describe(prompt, part, share),
    });
    return {
      ...head,
      outcome: 'found',
      match: found.match,
      step: first.step,
      attempt: first.attempt,
      verified: prompt.isVerified,
      steps: found.hits.map((hit) => hit.step),
      places,
      place_count: count,
    };
  }

  #rebuild(step: StepRow): RebuiltPrompt {
    const known = this.#rebuilt.get(step) ?? rebuildPrompt(this.#rows, step, this.#cards, this.#selectors);
    if (this.#mayKeep) this.#rebuilt.set(step, known);
    return known;
  }

  #searched(row: StepRow): SearchedPrompt & { readonly row: StepRow } {
    const read = (): PromptText => {
      const text = this.#texts.get(row) ?? new PromptText(this.#rebuild(row), this.#cards);
      if (this.#mayKeep) this.#texts.set(row, text);
      return text;
    };
    return { step: row.step, attempt: row.attempt, row, read };
  }

  #describe(prompt: RebuiltPrompt, part: PromptPart, text: string): WhyPart {
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

  /** Cards that were left out of the prompts, then what came out of the turn and went into no prompt. */
  #hints(steps: readonly StepRow[], text: string): readonly WhyHint[] {
    return [
      ...hintCards(this.#omitted(steps), this.#cards, text),
      ...hintCards(this.#outputs(), this.#cards, text),
    ];
  }

  *#omitted(steps: readonly StepRow[]): Iterable<Extract<WhyHint, { kind: 'omitted' }>> {
    for (const step of steps) {
      for (const omission of explainOmissions(this.#rows, this.#rebuild(step), this.#origins))
        yield { kind: 'omitted', step: step.step, ...omission };
    }
  }

  *#outputs(): Iterable<Extract<WhyHint, { kind: 'output' }>> {
    const { entries, steps, turn } = this.#rows;
    const head = Math.max(...steps.map((step) => step.toPosition));
    for (const { entry } of entries) {
      if (entry.position <= head || entry.turnId !== turn.turnId) continue;
      for (const card of this.#origins.at({ kind: 'tape', from: entry.position, to: entry.position }))
        yield { kind: 'output', is_deliverable: card.card_id === turn.deliverableCardId, card };
    }
  }

  /** Steps that were not asked for and show the text. */
  #otherSteps(asked: readonly StepRow[], text: string): readonly WhyHint[] {
    const others = this.#rows.steps.filter((step) => !asked.includes(step));
    const found = searchPrompts(
      others.map((step) => this.#searched(step)),
      text,
    );
    return found === undefined ? [] : [{ kind: 'other_steps', steps: found.hits.map((hit) => hit.step) }];
  }
}

function checkText(text: string): void {
  if (text.trim() !== '' && text.length <= MAX_WHY_CHARACTERS) return;
  const what = text.trim() === '' ? 'must not be blank' : `is longer than ${MAX_WHY_CHARACTERS} characters`;
  throw new KernelError('bad_request', { message: `text: ${what}.`, details: { field: 'text' } });
}

/** The exact messages of a step with their reasons. @throws KernelError `not_found`, `bad_request`. */
export async function explainStep(
  pool: pg.Pool,
  turn: string,
  options: { readonly project: string } & StepChoice & SelectorsOption,
): Promise<StepExplanation> {
  return (await TurnPrompts.load(pool, turn, options)).explain();
}

/** Where a text of a turn's prompts came from. @throws KernelError `not_found`, `bad_request`. */
export async function why(
  pool: pg.Pool,
  turn: string,
  of: {
    readonly text: string;
    readonly project: string;
    readonly step?: number | undefined;
  } & SelectorsOption,
): Promise<WhyAnswer> {
  checkText(of.text);
  const { project, step, selectors } = of;
  const prompts = await TurnPrompts.load(pool, turn, { project, step, selectors, allSteps: true });
  return prompts.why(of.text, { step: of.step });
}
