/**
 * Histories for the properties of the view: several turns on one tape, each with a context box, steps, and entries from
 * outside at any place. `play` writes a plan, and takes the rows at every moment at which a prompt of the last turn may
 * be built.
 */

import type { TurnId } from '../base/ids.js';
import type { JsonObject, JsonValue } from '../base/json.js';
import type { Card, Role } from '../card/card.js';
import type { ProviderData } from '../card/provider-data.js';
import { isBlank } from '../render/render.js';
import type { ContextCard, ViewRows } from '../view/context.js';
import type {
  CardPlan,
  ContextPlan,
  HistoryPlan,
  InheritedStep,
  OutsidePlan,
  StepPlan,
  statuses,
  TurnPlan,
} from './view-plan.js';
import { CardMaker, OTHER, READER, TestTape, testId } from './view-rows.js';

/** Every card contains its own mark, so that a text in a prompt can be traced without the view's help. */
const markOf = (index: number): string => `§${index}§`;

/** The model that reads the prompts. */
export const READER_MODEL = 'test:reader';
/** Another model, which gave some of the earlier answers. */
const OTHER_MODEL = 'test:other';

/** The step number of entries that are written from outside in a turn's name. */
export const OUTSIDE_STEP = 77;

/** The result of `play`: the rows of each prompt of the last turn, and the marks of all marked cards. */
export interface History {
  readonly prompts: readonly ViewRows[];
  readonly marks: ReadonlyMap<string, string>;
}

const metadataOf = (hidden: boolean): JsonObject => (hidden ? { context: false } : { note: true });

class Player {
  readonly tape = new TestTape();
  readonly cards = new CardMaker();
  readonly marks = new Map<string, string>();
  readonly prompts: ViewRows[] = [];
  readonly #made: Card[] = [];
  /** All calls so far: their ids and names. */
  readonly #calls: { readonly id: string; readonly name: string }[] = [];
  readonly #unanswered: {
    readonly id: string;
    readonly name: string;
    readonly turnId: TurnId;
    readonly step: number;
  }[] = [];
  readonly #profile: HistoryPlan['profile'];
  readonly #lastTurn: number;
  #count = 0;

  constructor(plan: HistoryPlan) {
    this.#profile = plan.profile;
    this.#lastTurn = plan.turns.length;
  }

  #mark(): string {
    this.#count += 1;
    return markOf(this.#count);
  }

  #keep(card: Card, mark?: string): Card {
    this.#made.push(card);
    if (mark !== undefined) this.marks.set(card.id, mark);
    return card;
  }

  /** A text that contains a mark, unless it is blank. */
  #say(words: string, make: (text: string) => Card): Card {
    const mark = this.#mark();
    return isBlank(words) ? this.#keep(make(words)) : this.#keep(make(`${mark} ${words}`), mark);
  }

  #json(value: JsonValue, make: (data: JsonValue) => Card): Card {
    const mark = this.#mark();
    if (typeof value === 'string' && value.trim() === '') return this.#keep(make(value));
    const marked =
      typeof value === 'object' && value !== null && !Array.isArray(value)
        ? { ...value, mark }
        : [mark, value];
    return this.#keep(make(marked), mark);
  }

  #callId(kind: number): string {
    const last = this.#calls.at(-1)?.id;
    if (kind === 0) return `il:legal:${this.#calls.length}`;
    if (kind === 1 && last !== undefined) return last;
    return testId('tool_call', this.#calls.length + 1);
  }

  card(plan: CardPlan): Card | undefined {
    if (plan.kind === 'again') return this.#made[plan.of % Math.max(this.#made.length, 1)];
    const authorId = plan.isOwn ? READER : OTHER;
    const options = { authorId, metadata: metadataOf(plan.isHidden) };
    switch (plan.kind) {
      case 'text':
        return this.#say(plan.text, (words) => this.cards.text(plan.role, words, options));
      case 'thought':
        return this.#say(plan.text, (words) => this.cards.thought(words, options));
      case 'deliverable':
        return this.#say(plan.text, (words) =>
          this.cards.card('task.deliverable', 'assistant', { kind: 'text', text: words }, options),
        );
      case 'json':
        return this.#json(plan.json, (data) =>
          this.cards.card('doc', plan.role, { kind: 'json', data }, options),
        );
      case 'call':
        return this.#json(plan.json, (args) => {
          const id = this.#callId(plan.idKind);
          this.#calls.push({ id, name: plan.tool });
          return this.cards.call(id, plan.tool, args, options);
        });
      case 'result': {
        const call = this.#calls[plan.of % (this.#calls.length + 1)] ?? { id: 'orphan', name: 'list' };
        return this.#result(call, plan.status, plan.json, options);
      }
      case 'fields': {
        const mark = this.#mark();
        return this.#keep(this.cards.fields([{ name: mark, required: true }], options), mark);
      }
      case 'pointer': {
        const mark = this.#mark();
        return this.#keep(this.cards.parent(mark, options), mark);
      }
      case 'file': {
        const mark = this.#mark();
        return this.#keep(this.#file(mark, plan.role, options), mark);
      }
      default:
        return plan satisfies never;
    }
  }

  #file(uri: string, role: Role | null, options: { authorId: string }): Card {
    return this.cards.card('doc', role, { kind: 'file', uri, checksum: 'c', preview: 'a\nb' }, options);
  }

  #result(
    call: { readonly id: string; readonly name: string },
    status: (typeof statuses)[number],
    body: JsonValue,
    options: { authorId?: string; metadata: JsonObject },
  ): Card {
    const head = { tool_call_id: call.id, name: call.name, status };
    const error = status === 'success' ? {} : { error: { code: 'tool_failed', message: 'No.' } };
    return this.#json(body, (result) => this.cards.outcome({ ...head, ...error, result }, options));
  }

  #context(plan: ContextPlan): ContextCard[] {
    const context: ContextCard[] = [];
    const add = (card: Card | undefined, rest: Omit<ContextCard, 'card'>): void => {
      if (card !== undefined) context.push({ card, ...rest });
    };
    const instruction = plan.hasInstruction
      ? this.#say('do', (words) => this.cards.instruction(words))
      : undefined;
    add(instruction, { rule: 'argument' });
    for (const card of plan.arguments) add(this.card(card), { rule: 'argument' });
    if (plan.hasFields)
      add(this.card({ kind: 'fields', isHidden: false, isOwn: true }), { rule: 'argument' });
    for (const item of plan.inherited) {
      const rest = { rule: 'inherited' as const, ...(item.isNative ? { native: true as const } : {}) };
      const cards = item.kind === 'step' ? this.#inheritedStep(item) : [this.card(item.card)];
      for (const card of cards) add(card, rest);
    }
    if (plan.hasParent)
      add(this.card({ kind: 'pointer', isHidden: false, isOwn: false }), { rule: 'parent' });
    return context;
  }

  #inheritedStep(plan: InheritedStep): readonly (Card | undefined)[] {
    const options = { authorId: OTHER, metadata: {} };
    const thought = this.#say(plan.text, (words) => this.cards.thought(words, options));
    const calls: Card[] = [];
    const results: Card[] = [];
    for (const call of plan.calls) {
      const made = { id: this.#callId(9), name: call.tool };
      this.#calls.push(made);
      calls.push(this.#json(call.json, (args) => this.cards.call(made.id, made.name, args, options)));
      if (call.isAnswered) results.push(this.#result(made, 'success', call.json, options));
    }
    return [thought, ...calls, plan.between && this.card(plan.between), ...results];
  }

  #outside(plan: OutsidePlan): void {
    switch (plan.kind) {
      case 'card': {
        const card = this.card(plan.card);
        // No outside entry has the turn whose prompts are built.
        const isOutside = plan.inTurn === 0 || plan.inTurn === this.#lastTurn;
        const options = isOutside ? {} : { turnId: testId('turn', plan.inTurn), step: OUTSIDE_STEP };
        if (card !== undefined) this.tape.add(card, options);
        return;
      }
      case 'anchor': {
        const metadata = metadataOf(plan.isHidden);
        this.tape.anchor(
          'phase',
          this.#json(plan.state, (state) => this.cards.anchor(state, { metadata })),
        );
        return;
      }
      case 'event':
        this.tape.event('cost', { usd: 1 });
        return;
      case 'late': {
        const call = this.#unanswered[plan.of % Math.max(this.#unanswered.length, 1)];
        if (call === undefined) return;
        const { turnId, step } = call;
        this.tape.add(this.#result(call, 'success', plan.json, { metadata: {} }), { turnId, step });
        return;
      }
      default:
        plan satisfies never;
    }
  }

  #step(plan: StepPlan, turnId: TurnId, step: number, isLastTurn: boolean): void {
    const at = { turnId, step };
    const outside = (list: readonly OutsidePlan[]): void => {
      for (const item of list) this.#outside(item);
    };
    const thought = plan.hasThought ? this.#thought(plan) : undefined;
    if (thought !== undefined) this.tape.add(thought, at);
    if (plan.calls.length > 0) outside(plan.afterThought);
    const calls = plan.calls.map((call, index) => {
      const id = this.#callId(call.idKind);
      this.#calls.push({ id, name: call.tool });
      const metadata = metadataOf(call.isHidden);
      // For an answer without words, the first call holds the provider's attachment.
      const attached = thought === undefined && index === 0 ? { providerData: this.#attached(plan) } : {};
      this.tape.add(
        this.#json(call.json, (args) => ({
          ...this.cards.call(id, call.tool, args, { metadata }),
          ...attached,
        })),
        at,
      );
      return { ...call, id };
    });
    if (calls.length > 0) outside(plan.whileOpen);
    for (const [index, call] of calls.entries()) {
      if (index === 1) outside(plan.betweenResults);
      if (isLastTurn || call.isAnswered) {
        const metadata = metadataOf(call.isResultHidden);
        this.tape.add(
          this.#result({ id: call.id, name: call.tool }, call.status, call.body, { metadata }),
          at,
        );
      } else this.#unanswered.push({ id: call.id, name: call.tool, turnId, step });
    }
    if (calls.length > 0) return;
    if (isLastTurn || !plan.isDelivered || thought === undefined) {
      const reminder = this.#say('reminder', (words) => this.cards.text('user', words));
      this.tape.add(reminder, at);
    } else {
      const deliverable = this.cards.card('task.deliverable', 'assistant', thought.content);
      this.tape.add(this.#keep(deliverable, this.marks.get(thought.id)), at);
    }
  }

  #thought(plan: StepPlan): Card {
    const metadata = metadataOf(plan.isThoughtHidden);
    const providerData = this.#attached(plan);
    return this.#say(plan.text, (said) => ({ ...this.cards.thought(said, { metadata }), providerData }));
  }

  /** The provider attached something to every answer; every third answer is from another model. */
  #attached({ calls }: StepPlan): ProviderData {
    return {
      v: 1,
      model: this.#count % 3 === 0 ? OTHER_MODEL : READER_MODEL,
      parts: [
        { kind: 'reasoning', text: `attached ${this.#count}` },
        ...calls.map(() => ({ kind: 'call', id: 'call_0' }) as const),
      ],
    };
  }

  turn(plan: TurnPlan, number: number): void {
    const isLastTurn = number === this.#lastTurn;
    const turnId = this.tape.begin(number, this.#context(plan.context), plan.context.stepsLeft);
    const capture = (): void => {
      if (isLastTurn) this.prompts.push(this.tape.rows({ ...this.#profile, model: READER_MODEL }));
    };
    capture();
    const outside = (list: readonly OutsidePlan[]): void => {
      for (const item of list) {
        this.#outside(item);
        capture();
      }
    };
    for (const [index, step] of plan.steps.entries()) {
      outside(step.before);
      this.#step(step, turnId, index + 1, isLastTurn);
      capture();
    }
    outside(plan.after);
  }
}

export function play(plan: HistoryPlan): History {
  const player = new Player(plan);
  for (const [index, turn] of plan.turns.entries()) player.turn(turn, index + 1);
  return { prompts: player.prompts, marks: player.marks };
}
