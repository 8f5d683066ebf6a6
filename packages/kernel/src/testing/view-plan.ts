/** Plans of histories for the properties of the view: plain data that fast-check generates and shrinks. */
import fc from 'fast-check';
import type { JsonValue } from '../base/json.js';

const tools = ['list', 'read', 'tape.handoff', 'submit_result', 'gone', 'no name!'] as const;
export const statuses = ['success', 'failed', 'timeout', 'canceled'] as const;
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
export type CardPlan = typeof cardPlan extends fc.Arbitrary<infer T> ? T : never;

/** A step of the tape from which a context box was made; a clone inherits it as its own. */
const inheritedStep = fc.record({
  kind: fc.constant('step'),
  text,
  isNative: fc.nat(2).map((number) => number > 0),
  calls: fc.array(fc.record({ tool, json, isAnswered: fc.nat(4).map((number) => number > 0) }), {
    maxLength: 2,
  }),
  between: fc.option(cardPlan, { nil: undefined }),
});
export type InheritedStep = typeof inheritedStep extends fc.Arbitrary<infer T> ? T : never;

const contextPlan = fc.record({
  inherited: fc.array(
    fc.oneof(fc.record({ kind: fc.constant('card'), card: cardPlan, isNative: fc.boolean() }), inheritedStep),
    {
      maxLength: 5,
    },
  ),
  arguments: fc.array(cardPlan, { maxLength: 2 }),
  hasInstruction: fc.nat(4).map((number) => number > 0),
  hasParent: fc.boolean(),
  hasFields: fc.boolean(),
  stepsLeft: fc.constantFrom(undefined, 1, 2, 3),
});
export type ContextPlan = typeof contextPlan extends fc.Arbitrary<infer T> ? T : never;

/** An entry that is written to the tape from outside the turn. */
const outsidePlan = fc.oneof(
  {
    weight: 4,
    arbitrary: fc.record({ kind: fc.constant('card'), card: cardPlan, inTurn: fc.constantFrom(0, 1, 2, 90) }),
  },
  { weight: 2, arbitrary: fc.record({ kind: fc.constant('anchor'), state: json, isHidden }) },
  { weight: 1, arbitrary: fc.record({ kind: fc.constant('event') }) },
  { weight: 1, arbitrary: fc.record({ kind: fc.constant('late'), json, of: fc.nat() }) },
);
export type OutsidePlan = typeof outsidePlan extends fc.Arbitrary<infer T> ? T : never;

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
  /** In an earlier turn: the text ended the turn, and its deliverable repeats the text. */
  isDelivered: fc.boolean(),
  before: outsides,
  afterThought: outsides,
  whileOpen: outsides,
  betweenResults: outsides,
});
export type StepPlan = typeof stepPlan extends fc.Arbitrary<infer T> ? T : never;

const turnPlan = fc.record({
  context: contextPlan,
  steps: fc.array(stepPlan, { maxLength: 4 }),
  after: outsides,
});
export type TurnPlan = typeof turnPlan extends fc.Arbitrary<infer T> ? T : never;

export const historyPlan = fc.record({
  turns: fc.array(turnPlan, { minLength: 1, maxLength: 3 }),
  profile: fc.record({
    instructions: fc.constantFrom('You work.', '', ' '),
    tools: fc.subarray(['list', 'read', 'tape.handoff', 'submit_result']),
    must_end_with: fc.subarray(['submit_result']),
  }),
});
export type HistoryPlan = typeof historyPlan extends fc.Arbitrary<infer T> ? T : never;
