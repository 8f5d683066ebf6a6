/**
 * Histories for the properties of the view: several turns on one tape, each with a context box, steps, and entries from
 * outside at any place. A plan is plain data that fast-check makes and shrinks; `play` writes it and takes the rows at
 * every moment at which a prompt of the last turn may be built.
 */
import fc from 'fast-check';
import type { Card, Role } from '../card.js';
import type { TurnId } from '../ids.js';
import type { JsonObject, JsonValue } from '../json.js';
import type { ViewRows } from '../view.js';
import type { ContextCard } from '../view-context.js';
import { isBlank } from '../view-render.js';
import { CardMaker, OTHER, READER, TestTape, testId } from './view-rows.js';

/** Every card says its own mark, so that a text in a prompt can be traced without the view's help. */
export const markOf = (index: number): string => `§${index}§`;

/** The step of entries that others write in some turn's name. */
export const OUTSIDE_STEP = 77;

const tools = ['list', 'read', 'tape.handoff', 'submit_result', 'gone', 'no name!'] as const;
const statuses = ['success', 'failed', 'timeout', 'canceled'] as const;
const roles = ['user', 'assistant', 'system', 'tool', null] as const;

const text = fc.oneof(
  { weight: 6, arbitrary: fc.constant('word') },
  { weight: 2, arbitrary: fc.constantFrom('', ' \n', '\u0085', '\u001f') },
  {
    weight: 2,
    arbitrary: fc.string({ unit: 'grapheme', maxLength: 8 }).filter((value) => !value.includes('\u0000')),
  },
);
const json: fc.Arbitrary<JsonValue> = fc.oneof(
  fc.constantFrom<JsonValue>(null, '', ' ', 0, true, '{broken'),
  fc.dictionary(fc.constantFrom('a', 'b', '1'), fc.constantFrom<JsonValue>(1, 'x', null, ['y']), {
    maxKeys: 2,
  }),
);
const isHidden = fc.nat(9).map((number) => number === 0);
const isOwn = fc.boolean();
const tool = fc.constantFrom(...tools);

const cardPlan = fc.oneof(
  fc.record({ kind: fc.constant('text'), role: fc.constantFrom(...roles), text, isOwn, isHidden }),
  fc.record({ kind: fc.constant('thought'), text, isOwn, isHidden }),
  fc.record({ kind: fc.constant('json'), role: fc.constantFrom(...roles), json, isOwn, isHidden }),
  fc.record({ kind: fc.constant('call'), tool, json, isOwn, isHidden, idKind: fc.nat(9) }),
  fc.record({
    kind: fc.constant('result'),
    of: fc.nat(),
    status: fc.constantFrom(...statuses),
    json,
    isOwn,
    isHidden,
  }),
  fc.record({ kind: fc.constant('fields'), isHidden, isOwn }),
  fc.record({ kind: fc.constant('pointer'), isHidden, isOwn }),
  fc.record({ kind: fc.constant('deliverable'), text, isOwn, isHidden }),
  fc.record({ kind: fc.constant('file'), isOwn, isHidden, role: fc.constantFrom(...roles) }),
  fc.record({ kind: fc.constant('again'), of: fc.nat() }),
);
type CardPlan = typeof cardPlan extends fc.Arbitrary<infer T> ? T : never;

const contextPlan = fc.record({
  inherited: fc.array(fc.record({ card: cardPlan, isNative: fc.boolean() }), { maxLength: 6 }),
  arguments: fc.array(cardPlan, { maxLength: 2 }),
  hasInstruction: fc.nat(4).map((number) => number > 0),
  hasParent: fc.boolean(),
  hasFields: fc.boolean(),
  stepsLeft: fc.constantFrom(undefined, 1, 2, 3),
});
type ContextPlan = typeof contextPlan extends fc.Arbitrary<infer T> ? T : never;

/** Something that is written to the tape by somebody else. */
const outsidePlan = fc.oneof(
  {
    weight: 4,
    arbitrary: fc.record({ kind: fc.constant('card'), card: cardPlan, inTurn: fc.constantFrom(0, 1, 2, 90) }),
  },
  { weight: 2, arbitrary: fc.record({ kind: fc.constant('anchor'), state: json, isHidden }) },
  { weight: 1, arbitrary: fc.record({ kind: fc.constant('event') }) },
  { weight: 1, arbitrary: fc.record({ kind: fc.constant('late'), json, of: fc.nat() }) },
);
type OutsidePlan = typeof outsidePlan extends fc.Arbitrary<infer T> ? T : never;

const outsides = fc.oneof(
  { weight: 2, arbitrary: fc.constant<OutsidePlan[]>([]) },
  { weight: 1, arbitrary: fc.array(outsidePlan, { maxLength: 3 }) },
);

const stepPlan = fc.record({
  text,
  hasThought: fc.nat(5).map((number) => number > 0),
  isThoughtHidden: isHidden,
  calls: fc.array(
    fc.record({
      tool,
      json,
      idKind: fc.nat(12),
      isHidden,
      isResultHidden: isHidden,
      isAnswered: fc.nat(3).map((number) => number > 0),
      status: fc.constantFrom(...statuses),
      body: json,
    }),
    { maxLength: 3 },
  ),
  before: outsides,
  afterThought: outsides,
  whileOpen: outsides,
  betweenResults: outsides,
});
type StepPlan = typeof stepPlan extends fc.Arbitrary<infer T> ? T : never;

const turnPlan = fc.record({
  context: contextPlan,
  steps: fc.array(stepPlan, { maxLength: 4 }),
  after: outsides,
});
type TurnPlan = typeof turnPlan extends fc.Arbitrary<infer T> ? T : never;

export const historyPlan = fc.record({
  turns: fc.array(turnPlan, { minLength: 1, maxLength: 3 }),
  profile: fc.record({
    instructions: fc.constantFrom('You work.', '', ' '),
    tools: fc.subarray(['list', 'read', 'tape.handoff', 'submit_result']),
    must_end_with: fc.subarray(['submit_result']),
  }),
});
export type HistoryPlan = typeof historyPlan extends fc.Arbitrary<infer T> ? T : never;

/** What `play` wrote: the rows of each prompt of the last turn, and the mark of every card that says one. */
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
  /** Calls that anyone made: their ids and names. */
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

  /** A text that says a mark, unless it is blank. */
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
    for (const { card, isNative } of plan.inherited) {
      add(this.card(card), { rule: 'inherited', ...(isNative ? { native: true } : {}) });
    }
    if (plan.hasParent)
      add(this.card({ kind: 'pointer', isHidden: false, isOwn: false }), { rule: 'parent' });
    return context;
  }

  #outside(plan: OutsidePlan): void {
    switch (plan.kind) {
      case 'card': {
        const card = this.card(plan.card);
        // Nobody else writes in the name of the turn whose prompts are built.
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
    if (plan.hasThought) {
      const metadata = metadataOf(plan.isThoughtHidden);
      this.tape.add(
        this.#say(plan.text, (words) => this.cards.thought(words, { metadata })),
        at,
      );
    }
    if (plan.calls.length > 0) outside(plan.afterThought);
    const calls = plan.calls.map((call) => {
      const id = this.#callId(call.idKind);
      this.#calls.push({ id, name: call.tool });
      const metadata = metadataOf(call.isHidden);
      this.tape.add(
        this.#json(call.json, (args) => this.cards.call(id, call.tool, args, { metadata })),
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
    if (calls.length === 0)
      this.tape.add(
        this.#say('reminder', (words) => this.cards.text('user', words)),
        at,
      );
  }

  turn(plan: TurnPlan, number: number): void {
    const isLastTurn = number === this.#lastTurn;
    const turnId = this.tape.begin(number, this.#context(plan.context), plan.context.stepsLeft);
    const capture = (): void => {
      if (isLastTurn) this.prompts.push(this.tape.rows(this.#profile));
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
