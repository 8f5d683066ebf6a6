import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { KernelError } from '../base/errors.js';
import type { BoxId, CardId, Id, NewId } from '../base/ids.js';
import type { ExpandedBox, Segment } from '../card/box.js';
import { PackingStrategies } from './budget.js';
import { cutDraft } from './candidates.js';
import { draftPacking, isOverBudget, type Packing, type PackingDraft, sealPacking } from './draft.js';
import { type HandoverInput, parseHandover } from './handover.js';
import type { CardFacts, PackCandidate, PackingChoice, PackingCuts, PackingStrategy } from './strategy.js';

/** Cases per property: 12,000 for the four properties together. */
const numRuns = 3_000;

const idOf = <K extends string>(kind: string, n: number): Id<K> =>
  `${kind}0000-0000-7000-8000-${n.toString(16).padStart(12, '0')}` as Id<K>;
const cardIdOf = (n: number): CardId => idOf('cacd', n);
const boxIdOf = (n: number): BoxId => idOf('b0b0', n);

function counter(): NewId {
  let n = 0;
  return <K extends string>() => idOf<K>('0e30', ++n);
}

interface TestCard {
  readonly id: CardId;
  readonly tokens: number;
  readonly facts: CardFacts;
}

const cardOf = (n: number, tokens: number, facts: Partial<CardFacts> = {}): TestCard => ({
  id: cardIdOf(n),
  tokens,
  facts: {
    type: 'task.context',
    role: 'user',
    authorId: 'author',
    sizeBytes: tokens * 4,
    toolCallId: null,
    summarizes: [],
    isHidden: false,
    preview: `card ${n}`,
    ...facts,
  },
});

/** Cards on a tape as a source; every third position is an event. */
function boxOf(boxId: BoxId, cards: readonly TestCard[]): ExpandedBox {
  const positions = cards.map((_card, index) => index + Math.floor(index / 2) + 1);
  return {
    boxId,
    ranges: [
      {
        source: boxId,
        from: 1,
        to: (positions.at(-1) ?? 0) + 1,
        skip: [],
        positions,
        cardIds: cards.map(({ id }) => id),
        tokens: cards.map(({ tokens }) => tokens),
        native: false,
      },
    ],
  };
}

interface World {
  readonly boxes: readonly (readonly TestCard[])[];
  readonly handover?: HandoverInput['context_packing_config'];
  readonly instruction?: string;
}

const draftOf = ({ boxes, handover, instruction = 'go' }: World): PackingDraft =>
  draftPacking({
    projectId: idOf('aaaa', 1),
    toolSuffix: 'tool',
    sourceAgentId: 'agent-1',
    arguments: { instruction },
    handover: parseHandover({
      context_packing_config: {
        pack_arguments: [{ arg_key: 'instruction' }],
        inherit_context: { include_parent: true },
        ...handover,
      },
    }),
    inherited: boxes.map((cards, index) => ({
      argument: `box-${index}`,
      boxId: boxIdOf(index),
      box: boxOf(boxIdOf(index), cards),
    })),
    newId: counter(),
  });

const factsOf = ({ boxes }: World): Map<CardId, CardFacts> =>
  new Map(boxes.flat().map(({ id, facts }) => [id, facts]));

interface Packed {
  readonly draft: PackingDraft;
  readonly cuts: PackingCuts | undefined;
  readonly packing: Packing;
}

function pack(world: World, strategies = new PackingStrategies()): Packed {
  const draft = draftOf(world);
  const cuts = cutDraft(draft, factsOf(world), strategies);
  return { draft, cuts, packing: sealPacking(draft, cuts) };
}

/** Tokens of the protected cards: the instruction and the parent pointer. */
const PROTECTED = draftOf({ boxes: [] }).tokens;

const under = (
  strategy: string,
  room: number,
  boxes: World['boxes'],
  strategies?: PackingStrategies,
): Packed =>
  pack({ boxes, handover: { budget_tokens: PROTECTED + room, budget_strategy: strategy } }, strategies);

/** The numbers of the inherited cards that stay. */
const keptOf = ({ packing }: Packed): number[] =>
  packing.attachedCardIds
    .filter((id) => id.startsWith('cacd'))
    .map((id) => Number.parseInt(id.slice(-12), 16));
const reasonOf = ({ cuts }: Packed, n: number): string | undefined => cuts?.reasons.get(cardIdOf(n));

const errorOf = (work: () => unknown): KernelError => {
  try {
    work();
  } catch (error) {
    if (error instanceof KernelError) return error;
    throw error;
  }
  throw new Error('nothing was thrown');
};

/** The cards of a segment, expanded as the store expands it. */
function expand(segment: Segment, boxes: World['boxes']): CardId[] {
  const range = boxes
    .map((cards, index) => boxOf(boxIdOf(index), cards).ranges[0])
    .find((candidate) => candidate?.source === segment.source);
  if (range === undefined) throw new Error('the segment names no box');
  return range.cardIds.filter((_id, index) => {
    const at = range.positions[index] ?? 0;
    return at >= segment.from && at <= segment.to && !(segment.skip ?? []).includes(at);
  });
}

describe('a budget', () => {
  const cards = [1, 2, 3].map((n) => cardOf(n, 10));

  test('that is not exceeded cuts nothing and does not call the strategy, but the strategy must exist', () => {
    const strategies = new PackingStrategies({
      never: () => {
        throw new Error('asked');
      },
    });
    expect(keptOf(under('never', 30, [cards], strategies))).toEqual([1, 2, 3]);
    expect(under('never', 30, [cards], strategies).cuts).toBeUndefined();
    const error = errorOf(() => under('nope', 30, [cards]));
    expect(error).toMatchObject({ code: 'bad_request', details: { budget_strategy: 'nope' } });
    expect(error.message).toContain('known are deliverables_only, error, newest, summary');
  });

  test.each([[0], [-1], [1.5], ['100'], [null], [Number.POSITIVE_INFINITY]])(
    'of %j tokens is a bad request',
    (budget_tokens) => {
      const handover = { context_packing_config: { budget_tokens } };
      expect(errorOf(() => parseHandover(handover)).code).toBe('bad_request');
    },
  );

  test('needs a strategy', () => {
    const error = errorOf(() => parseHandover({ context_packing_config: { budget_strategy: 'newest' } }));
    expect(error.code).toBe('bad_request');
    expect(error.message).toContain('budget_strategy: needs budget_tokens');
    for (const budget_strategy of [7, '', ' '])
      expect(
        errorOf(() => parseHandover({ context_packing_config: { budget_tokens: 1, budget_strategy } })).code,
      ).toBe('bad_request');
  });

  test('without a strategy refuses the packing, and names the tokens, the largest cards and the next step', () => {
    const large = [...cards, cardOf(4, 500, { type: 'tool.result' })];
    const handover = { budget_tokens: PROTECTED + 100 };
    const error = errorOf(() => pack({ boxes: [large], handover }));
    expect(error).toMatchObject({
      code: 'context_budget_exceeded',
      details: {
        tokens: PROTECTED + 530,
        budget_tokens: PROTECTED + 100,
        protected_tokens: PROTECTED,
      },
    });
    expect((error.details.largest as unknown[])[0]).toEqual({
      card_id: cardIdOf(4),
      source: boxIdOf(0),
      argument: 'box-0',
      type: 'tool.result',
      rule: 'inherit',
      tokens: 500,
    });
    expect(error.message).toContain(`tool.result ${cardIdOf(4)} (500)`);
    expect(error.message).toContain('Raise budget_tokens');
  });

  test.each(['error', 'newest', 'deliverables_only', 'summary'])(
    'that packed arguments and the parent pointer alone exceed is refused by %s: they are never cut',
    (budget_strategy) => {
      const handover = { budget_tokens: PROTECTED, budget_strategy };
      const error = errorOf(() => pack({ boxes: [cards], instruction: 'x'.repeat(100), handover }));
      expect(error.code).toBe('context_budget_exceeded');
      expect(error.message).toContain('never cut');
      expect((error.details.largest as { argument: string }[])[0]?.argument).toBe('instruction');
    },
  );

  test('is enforced: a draft over its budget cannot be sealed without its cuts', () => {
    const draft = draftOf({ boxes: [cards], handover: { budget_tokens: PROTECTED + 1 } });
    expect(isOverBudget(draft)).toBe(true);
    expect(errorOf(() => sealPacking(draft)).code).toBe('internal_error');
  });
});

describe('newest', () => {
  test('keeps the newest cards by creation time, in any order of the boxes', () => {
    const packed = under('newest', 25, [
      [cardOf(5, 10), cardOf(1, 10)],
      [cardOf(2, 10), cardOf(4, 10)],
    ]);
    expect(keptOf(packed)).toEqual([5, 4]);
    expect([1, 2].map((n) => reasonOf(packed, n))).toEqual(['older', 'older']);
  });

  test('leaves no gap: everything older than the first card that does not fit is cut', () => {
    const packed = under('newest', 25, [[cardOf(1, 1), cardOf(2, 20), cardOf(3, 20)]]);
    expect(keptOf(packed)).toEqual([3]);
  });

  test('skips a card that is larger than the whole budget', () => {
    const packed = under('newest', 25, [[cardOf(1, 10), cardOf(2, 10), cardOf(3, 26)]]);
    expect(keptOf(packed)).toEqual([1, 2]);
    expect(reasonOf(packed, 3)).toBe('too_large');
  });

  test('keeps or cuts a call and its result together', () => {
    const call = { toolCallId: 'a' };
    const packed = under('newest', 25, [[cardOf(1, 10, call), cardOf(2, 10), cardOf(3, 10, call)]]);
    expect(keptOf(packed)).toEqual([1, 3]);
    expect(keptOf(under('newest', 15, [[cardOf(1, 10, call), cardOf(2, 10), cardOf(3, 10, call)]]))).toEqual([
      2,
    ]);
  });
});

describe('deliverables_only', () => {
  const done = { type: 'task.deliverable' };
  test('keeps deliverables, and only the newest when they exceed the budget', () => {
    const cards = [cardOf(1, 10, done), cardOf(2, 10), cardOf(3, 10, done), cardOf(4, 1)];
    const packed = under('deliverables_only', 20, [cards]);
    expect(keptOf(packed)).toEqual([1, 3]);
    expect([2, 4].map((n) => reasonOf(packed, n))).toEqual(['no_deliverable', 'no_deliverable']);
    expect(keptOf(under('deliverables_only', 19, [cards]))).toEqual([3]);
  });
});

describe('summary', () => {
  const summaryOf = (n: number, tokens: number, ...of: number[]): TestCard =>
    cardOf(n, tokens, { type: 'task.summary', summarizes: of.map(cardIdOf) });

  test('cuts the cards that a kept summary links', () => {
    const packed = under('summary', 30, [
      [cardOf(1, 50), cardOf(2, 50), summaryOf(3, 10, 1, 2), cardOf(4, 20)],
    ]);
    expect(keptOf(packed)).toEqual([3, 4]);
    expect([1, 2].map((n) => reasonOf(packed, n))).toEqual(['summarized', 'summarized']);
    expect(packed.cuts?.digest).toBeUndefined();
  });

  test('follows summaries of summaries, and keeps one of two that link each other', () => {
    const chain = [cardOf(1, 50), summaryOf(2, 10, 1), summaryOf(3, 10, 2)];
    expect(keptOf(under('summary', 15, [chain]))).toEqual([3]);
    const circle = [cardOf(1, 50), summaryOf(2, 5, 1, 3), summaryOf(3, 5, 2)];
    expect(keptOf(under('summary', 15, [circle]))).toEqual([3]);
  });

  test('ignores links to missing cards, to the summary itself, and from cards of another type', () => {
    const cards = [
      cardOf(1, 5),
      summaryOf(2, 5, 2, 9),
      cardOf(3, 5, { summarizes: [cardIdOf(1)] }),
      cardOf(4, 500),
    ];
    expect(keptOf(under('summary', 100, [cards]))).toEqual([1, 2, 3]);
  });

  test('shortens the oldest cards to a digest with type, author, beginning and link', () => {
    const preview = `two\n lines with "quotes"  and ${'x'.repeat(160)}`;
    const packed = under('summary', 230, [
      [cardOf(1, 300, { type: 'my.type', authorId: 'me', preview }), cardOf(2, 60), cardOf(3, 60)],
    ]);
    expect(keptOf(packed)).toEqual([2, 3]);
    const [, digest] = packed.packing.cards;
    expect(digest).toMatchObject({
      type: 'task.summary',
      role: 'user',
      metadata: { summarizes: [cardIdOf(1)] },
      authorId: 'tool',
    });
    const line = JSON.stringify(preview.replace(/\s+/g, ' '));
    expect(digest?.content).toEqual({
      kind: 'text',
      text: `[Digest: the beginnings of 1 earlier cards]\n- my.type by me: ${line} (card ${cardIdOf(1)})`,
    });
    expect(packed.packing.box.segments[1]).toMatchObject({ rule: 'digest', from: 2, to: 2, count: 1 });
    expect(packed.packing.attachedCardIds[1]).toBe(digest?.id);
  });

  test('states in the digest how many cards are left out beyond it, the oldest first', () => {
    const cards = Array.from({ length: 20 }, (_item, n) => cardOf(n + 1, 100, { preview: 'x'.repeat(100) }));
    const packed = under('summary', 150, [cards]);
    expect(keptOf(packed)).toEqual([]);
    expect(reasonOf(packed, 1)).toBe('over_budget');
    expect(reasonOf(packed, 20)).toBe('digested');
    const text = packed.cuts?.digest?.text ?? '';
    const lines = text.split('\n').length - 1;
    expect(text).toContain(
      `[Digest: the beginnings of ${lines} earlier cards; ${20 - lines} more are left out]`,
    );
  });

  test('does not show hidden cards in a digest', () => {
    const packed = under('summary', 100, [
      [
        cardOf(1, 90, { isHidden: true, preview: 'secret' }),
        cardOf(2, 90, { preview: 'open' }),
        cardOf(3, 50),
      ],
    ]);
    expect(JSON.stringify(packed.packing.cards)).not.toContain('secret');
    expect(reasonOf(packed, 1)).toBe('over_budget');
  });
});

describe('the manifest', () => {
  test('lists cuts as ranges by reason, and narrows each segment to the cards that stay', () => {
    const cards = Array.from({ length: 1_000 }, (_item, n) => cardOf(n + 1, 10));
    const { packing } = under('newest', 25, [cards]);
    expect(packing.box.segments[1]).toEqual({
      rule: 'inherit',
      argument: 'box-0',
      source: boxIdOf(0),
      from: 1498,
      to: 1499,
      count: 2,
      tokens: 20,
      cut: {
        strategy: 'newest',
        budget: PROTECTED + 25,
        parts: [{ reason: 'older', count: 998, tokens: 9_980, ranges: [[1, 1496]] }],
      },
    });
    expect(JSON.stringify(packing.box).length).toBeLessThan(1_000);
  });

  test('keeps a segment whose cards were all cut, as an empty segment', () => {
    const { packing } = under('newest', 5, [[cardOf(1, 10), cardOf(2, 10)]]);
    expect(packing.box.segments[1]).toMatchObject({ from: 1, to: 0, count: 0, tokens: 0 });
    expect(packing.box.segments[1]).not.toHaveProperty('skip');
  });
});

describe('custom strategies', () => {
  const keepAll: PackingStrategy = ({ candidates }) => ({ keep: candidates.map(({ cardId }) => cardId) });

  test.each([[''], ['A'], ['1a'], ['a b'], ['a'.repeat(65)], ['ä'], [7], [null]])(
    'cannot have the name %j',
    (name) => {
      expect(errorOf(() => new PackingStrategies().add(name as string, keepAll)).code).toBe('bad_request');
    },
  );

  test('are functions with unique names, and cannot replace built-in strategies', () => {
    const strategies = new PackingStrategies({ mine: keepAll });
    expect(errorOf(() => strategies.add('other', 'x' as never)).code).toBe('bad_request');
    expect(errorOf(() => strategies.add('mine', keepAll)).code).toBe('conflict');
    for (const name of ['error', 'newest', 'deliverables_only', 'summary'])
      expect(errorOf(() => strategies.add(name, keepAll))).toMatchObject({
        code: 'conflict',
        details: { name },
      });
  });

  const call = { toolCallId: 'c' };
  const cards = [cardOf(1, 10), cardOf(2, 10, call), cardOf(3, 10, call), cardOf(4, 10)];
  const choose = (choice: (keep: readonly string[]) => unknown): PackingStrategies =>
    new PackingStrategies({
      mine: ({ candidates }) =>
        choice(candidates.filter((card) => card.isProtected).map((card) => card.cardId)) as PackingChoice,
    });

  test('decide which cards stay, why the others are cut, and which text replaces them', () => {
    const strategies = choose((keep) => ({
      keep: [...keep, cardIdOf(4)].toReversed(),
      reasons: { [cardIdOf(1)]: 'boring' },
      digest: { text: 'two calls', cardIds: [cardIdOf(2), cardIdOf(3)] },
    }));
    const packed = under('mine', 30, [cards], strategies);
    expect(keptOf(packed)).toEqual([4]);
    expect([1, 2].map((n) => reasonOf(packed, n))).toEqual(['boring', 'not_chosen']);
    expect(packed.packing.cards[1]).toMatchObject({
      content: { text: 'two calls' },
      metadata: { summarizes: [cardIdOf(2), cardIdOf(3)] },
    });
  });

  test('can be as short as the example in docs/reference/packing.md', () => {
    const strategies = new PackingStrategies({
      reviews_first: ({ candidates, budgetTokens }) => {
        let left = budgetTokens;
        const keep: string[] = [];
        const rank = (card: PackCandidate): number => (card.isProtected ? 0 : card.type === 'review' ? 1 : 2);
        for (const card of candidates.toSorted((a, b) => rank(a) - rank(b))) {
          if (card.tokens > left || (card.toolCallId !== null && !card.isProtected)) continue;
          left -= card.tokens;
          keep.push(card.cardId);
        }
        return { keep };
      },
    });
    const boxes = [[...cards, cardOf(5, 15, { type: 'review' })]];
    expect(keptOf(under('reviews_first', 29, boxes, strategies))).toEqual([1, 5]);
  });

  test('may keep exactly the budget, and not a single token more', () => {
    const strategies = new PackingStrategies({
      mine: ({ candidates }) => ({
        keep: candidates
          .filter((card) => card.isProtected || card.cardId !== cardIdOf(3))
          .map(({ cardId }) => cardId),
      }),
    });
    const boxes = [[cardOf(1, 10), cardOf(2, 10), cardOf(3, 10)]];
    expect(keptOf(under('mine', 20, boxes, strategies))).toEqual([1, 2]);
    const error = errorOf(() => under('mine', 19, boxes, strategies));
    expect(error.code).toBe('packing_strategy_failed');
    expect(error.message).toContain(`keeps ${PROTECTED + 20} tokens of a budget of ${PROTECTED + 19}`);
  });

  test('may refuse with an error of the catalogue', () => {
    const strategies = new PackingStrategies({
      mine: () => {
        throw new KernelError('context_budget_exceeded');
      },
    });
    expect(errorOf(() => under('mine', 30, [cards], strategies)).code).toBe('context_budget_exceeded');
  });

  const broken: readonly [string, (keep: readonly string[]) => unknown, RegExp][] = [
    [
      'a card that is not known',
      (keep) => ({ keep: [...keep, cardIdOf(9)] }),
      /keeps cacd.*, which is not a candidate/,
    ],
    ['the same card twice', (keep) => ({ keep: [...keep, cardIdOf(1), cardIdOf(1)] }), /keeps cacd.* twice/],
    ['cards without the protected card', () => ({ keep: [] }), /leaves out instruction, which must stay/],
    [
      'cards without the parent pointer',
      (keep) => ({ keep: keep.slice(0, 1) }),
      /leaves out parent, which must stay/,
    ],
    [
      'a call without its result',
      (keep) => ({ keep: [...keep, cardIdOf(2)] }),
      /parts a tool call from its result \(call c\)/,
    ],
    [
      'more cards than the budget allows',
      (keep) => ({ keep: [...keep, ...cards.map(({ id }) => id)] }),
      /keeps \d+ tokens of a budget of \d+/,
    ],
    [
      'a digest that is too long',
      (keep) => ({ keep, digest: { text: 'x'.repeat(200), cardIds: [cardIdOf(1)] } }),
      /keeps \d+ tokens of a budget/,
    ],
    [
      'a digest of a card that stays',
      (keep) => ({ keep: [...keep, cardIdOf(1)], digest: { text: 'x', cardIds: [cardIdOf(1)] } }),
      /gives a digest of/,
    ],
    [
      'a digest of a card that does not exist',
      (keep) => ({ keep, digest: { text: 'x', cardIds: ['y'] } }),
      /gives a digest of y/,
    ],
    [
      'a blank digest',
      (keep) => ({ keep, digest: { text: ' ', cardIds: [cardIdOf(1)] } }),
      /must not be blank/,
    ],
    [
      'a reason for a card that stays',
      (keep) => ({ keep: [...keep, cardIdOf(1)], reasons: { [cardIdOf(1)]: 'x' } }),
      /gives a reason for/,
    ],
    [
      'a reason that is not a text',
      (keep) => ({ keep, reasons: { [cardIdOf(1)]: 7 } }),
      /returned no choice: reasons/,
    ],
    ['unknown keys', (keep) => ({ keep, more: 1 }), /returned no choice/],
    ['no value', () => undefined, /returned no choice/],
    ['ids that are not texts', (keep) => ({ keep: [...keep, 7] }), /returned no choice: keep\.2/],
    ['a promise', (keep) => Promise.resolve({ keep }), /returned a promise/],
    ['a promise that fails', () => Promise.reject(new Error('later')), /returned a promise/],
    [
      'an exception',
      () => {
        throw new Error('boom');
      },
      /threw: boom/,
    ],
    [
      'an exception that is not an error',
      () => {
        throw null;
      },
      /threw: null/,
    ],
  ];
  test.each(broken)('are refused when they return %s', (_name, choice, message) => {
    const error = errorOf(() => under('mine', 30, [cards], choose(choice)));
    expect(error).toMatchObject({ code: 'packing_strategy_failed', details: { budget_strategy: 'mine' } });
    expect(error.message).toMatch(message);
    expect(error.message).toContain("'mine'");
  });

  test('cannot change the data that they get', () => {
    const strategies = new PackingStrategies({
      mine: ({ candidates }) => {
        for (const card of candidates) (card as { tokens: number }).tokens = 0;
        return { keep: candidates.map(({ cardId }) => cardId) };
      },
    });
    expect(errorOf(() => under('mine', 30, [cards], strategies)).code).toBe('packing_strategy_failed');
  });
});

const testCard = fc.record({
  n: fc.nat(30),
  tokens: fc.integer({ min: 1, max: 120 }),
  type: fc.constantFrom('task.context', 'task.deliverable', 'task.summary', 'tool.call'),
  call: fc.option(fc.nat(3), { nil: null, freq: 4 }),
  summarizes: fc.array(fc.nat(30), { maxLength: 4 }),
  isHidden: fc.boolean(),
  preview: fc.string({ unit: 'grapheme', maxLength: 200 }),
});

/** Boxes with cards that repeat in other boxes, a budget, and a strategy. */
const world = fc
  .record({
    cards: fc.uniqueArray(testCard, { selector: ({ n }) => n, minLength: 1, maxLength: 20 }),
    places: fc.array(fc.array(fc.nat(19), { maxLength: 12 }), { minLength: 1, maxLength: 4 }),
    room: fc.nat(400),
    strategy: fc.constantFrom('newest', 'deliverables_only', 'summary'),
  })
  .map(({ cards, places, room, strategy }) => {
    const made = cards.map(({ n, tokens, call, summarizes, ...facts }) =>
      cardOf(n, tokens, {
        ...facts,
        toolCallId: call === null ? null : `call-${call}`,
        summarizes: summarizes.map(cardIdOf),
      }),
    );
    const boxes = places.map((indexes) =>
      [...new Set(indexes.map((index) => made[index % made.length]))].flatMap((card) => card ?? []),
    );
    return { boxes, room, strategy };
  });

describe('the work of packing', () => {
  /** Counts how often packing reads a field of a card or of its facts. */
  function countReads(strategy: string, count: number): number {
    let reads = 0;
    const counted = <T extends object>(target: T): T =>
      new Proxy(target, {
        get: (of, property, receiver) => {
          reads += 1;
          return Reflect.get(of, property, receiver);
        },
      });
    const cards = Array.from({ length: count }, (_item, n) => {
      const call = { toolCallId: n % 3 === 0 ? null : `call-${Math.floor(n / 6)}` };
      const type = n % 5 === 0 ? 'task.deliverable' : 'task.context';
      const card = cardOf(n + 1, 10, { ...call, type, summarizes: [cardIdOf((n + 7) % count)] });
      return counted({ ...card, facts: counted(card.facts) });
    });
    const { packing } = under(strategy, count * 5, [cards, cards.slice(0, count / 2)]);
    expect(packing.box.tokens).toBeLessThan(PROTECTED + count * 10);
    return reads;
  }

  test.each(['newest', 'deliverables_only', 'summary'])(
    'is the same number of reads per card for any number of cards: %s',
    (strategy) => {
      const few = countReads(strategy, 500);
      const many = countReads(strategy, 4_000);
      expect(many / 4_000).toBeLessThan((few / 500) * 1.2);
      expect(many / 4_000).toBeLessThan(100);
    },
  );
});

/**
 * The work is `numRuns` cases of at most 48 cards each, and the tests above limit the reads of a case. There is no time
 * limit: it cannot interrupt a test that never waits, and would only fail the test on a busy machine.
 */
describe('with any boxes, budget and built-in strategy', { timeout: 0 }, () => {
  const forAll = (
    check: (of: Packed & { boxes: World['boxes']; room: number; whole: readonly CardId[] }) => void,
  ): void => {
    fc.assert(
      fc.property(world, ({ boxes, room, strategy }) => {
        const whole = pack({ boxes }).packing.attachedCardIds;
        check({ ...under(strategy, room, boxes), boxes, room, whole });
      }),
      { numRuns },
    );
  };

  test('the budget is kept, by the sums and by the cards', () => {
    forAll(({ packing, room, boxes }) => {
      expect(packing.box.tokens).toBeLessThanOrEqual(PROTECTED + room);
      const tokens = new Map(boxes.flat().map((card) => [card.id, card.tokens]));
      for (const card of packing.cards) tokens.set(card.id, card.tokenEstimate);
      expect(packing.attachedCardIds.reduce((sum, id) => sum + (tokens.get(id) ?? Number.NaN), 0)).toBe(
        packing.box.tokens,
      );
    });
  });

  test('the order is kept, only a digest is added, protected cards stay, and calls keep their results', () => {
    forAll(({ packing, whole, boxes, cuts }) => {
      const [instruction, ...rest] = packing.cards.map(({ id }) => id);
      const digest = cuts?.digest === undefined ? [] : rest.slice(0, 1);
      const kept = packing.attachedCardIds.filter((id) => !digest.includes(id));
      // The ids made for the parent pointer and the digest differ from those of the whole box; inherited ids do not.
      expect(kept.filter((id) => id.startsWith('cacd'))).toEqual(
        whole.filter((id) => id.startsWith('cacd') && kept.includes(id)),
      );
      expect(kept.filter((id) => !id.startsWith('cacd'))).toEqual([instruction, rest.at(-1)]);
      expect(packing.attachedCardIds[0]).toBe(instruction);
      expect(packing.attachedCardIds.at(-1)).toBe(rest.at(-1));
      const keptSet = new Set(kept);
      for (const { id, facts } of boxes.flat()) {
        if (facts.toolCallId === null) continue;
        const others = boxes.flat().filter((card) => card.facts.toolCallId === facts.toolCallId);
        expect(others.every((card) => keptSet.has(card.id))).toBe(keptSet.has(id));
      }
    });
  });

  test('the segments alone restore the box, and their cuts are the missing cards', () => {
    forAll(({ packing, boxes, whole }) => {
      const given: CardId[] = [];
      const missing = new Set<CardId>();
      for (const segment of packing.box.segments) {
        if (segment.source === undefined) {
          given.push(...packing.cards.slice(segment.from - 1, segment.to).map(({ id }) => id));
          continue;
        }
        const cards = expand(segment, boxes);
        expect(cards).toHaveLength(segment.count);
        given.push(...cards);
        for (const part of segment.cut?.parts ?? []) {
          const inRanges = part.ranges.flatMap(([from, to]) =>
            expand({ ...segment, from, to, skip: [] }, boxes),
          );
          const cut = inRanges.filter((id) => !packing.attachedCardIds.includes(id));
          expect(new Set(cut).size).toBeGreaterThanOrEqual(part.count);
          for (const id of cut) missing.add(id);
        }
      }
      expect(given).toEqual(packing.attachedCardIds);
      expect(packing.box.count).toBe(given.length);
      expect([...missing].sort()).toEqual(
        whole.filter((id) => id.startsWith('cacd') && !packing.attachedCardIds.includes(id)).sort(),
      );
    });
  });

  test('the same input gives the same box, and a budget that is large enough keeps everything', () => {
    forAll(({ packing, cuts, boxes, room, draft }) => {
      const strategy = draft.budget?.strategy ?? '';
      const again = under(strategy, room, structuredClone(boxes) as World['boxes']);
      expect(again.packing).toEqual(packing);
      expect(again.cuts).toEqual(cuts);
      expect(under(strategy, draft.tokens, boxes).cuts).toBeUndefined();
    });
  });
});

describe('the history of a clone under a budget', () => {
  test('repeats the cards that a named box keeps of it, and no cards that were cut', () => {
    const [cut, kept, other] = [cardOf(1, 100), cardOf(2, 20), cardOf(3, 20)];
    const world: World = {
      boxes: [
        [cut, kept],
        [cut, kept, other],
      ],
      handover: { budget_tokens: PROTECTED + 50, budget_strategy: 'newest' },
    };
    const plain = draftOf(world);
    const draft = draftPacking({
      ...plain.input,
      inherited: plain.input.inherited.map((box, index) => ({
        ...box,
        rule: index === 1 ? 'snapshot' : 'inherit',
      })),
    });
    const history = ({ box }: Packing): Segment | undefined =>
      box.segments.find(({ rule }) => rule === 'snapshot');
    expect(history(sealPacking({ ...draft, budget: undefined }))).toMatchObject({
      skip: [1, 2],
      repeats: [1, 2],
      count: 1,
    });
    const packing = sealPacking(draft, cutDraft(draft, factsOf(world), new PackingStrategies()));
    expect(packing.attachedCardIds.slice(1, -1)).toEqual([kept.id, other.id]);
    expect(history(packing)).toMatchObject({ repeats: [2], count: 1 });
  });
});
