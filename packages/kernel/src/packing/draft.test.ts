import assert from 'node:assert/strict';
import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import type { ErrorCode } from '../base/error-catalogue.js';
import { KernelError } from '../base/errors.js';
import type { BoxId, CardId, Id, NewId, ProjectId } from '../base/ids.js';
import type { JsonObject, JsonValue } from '../base/json.js';
import type { ContextBoxDraft, ExpandedBox, LeafRange, Segment } from '../card/box.js';
import { decideListedBox, decidePacking, type InheritedBox, type PackInput, type Packing } from './draft.js';
import {
  decideNamedBoxes,
  decideTargetProfile,
  type HandoverInput,
  handoverNotices,
  instructionHandover,
  parseHandover,
} from './handover.js';

/** Plans for all properties together; each property plays a quarter of them. */
const numRuns = process.env.CI ? 3_000 : 1_000;

const idOf = <K extends string>(kind: string, n: number): Id<K> =>
  `${kind}0000-0000-7000-8000-${n.toString(16).padStart(12, '0')}` as Id<K>;
const boxIdOf = (n: number): BoxId => idOf('b0b0', n);
const cardIdOf = (n: number): CardId => idOf('cacd', n);
const projectId = idOf<'project'>('aaaa', 1) as ProjectId;

function counter(): NewId {
  let n = 0;
  return <K extends string>() => idOf<K>('0e30', ++n);
}

const pack = (
  parts: Partial<Omit<PackInput, 'handover'>> & { readonly handover?: HandoverInput },
): Packing => {
  const { handover = {}, ...rest } = parts;
  return decidePacking({
    projectId,
    toolSuffix: 'tool',
    sourceAgentId: 'agent-1',
    arguments: {},
    inherited: [],
    newId: counter(),
    ...rest,
    handover: parseHandover(handover),
  });
};

const errorOf = (work: () => unknown): KernelError => {
  try {
    work();
  } catch (error) {
    if (error instanceof KernelError) return error;
    throw error;
  }
  throw new Error('nothing was thrown');
};
const codeOf = (work: () => unknown): ErrorCode => errorOf(work).code;

/** A sealed box of these cards as a source. */
const boxOf = (boxId: BoxId, cards: readonly number[]): ExpandedBox => ({
  boxId,
  ranges: [
    {
      source: boxId,
      from: 1,
      to: cards.length,
      skip: [],
      positions: cards.map((_card, index) => index + 1),
      cardIds: cards.map(cardIdOf),
      tokens: cards.map(() => 3),
      native: false,
    },
  ],
});
const inherit = (box: ExpandedBox, rule?: 'snapshot'): InheritedBox => ({
  argument: 'boxes',
  boxId: box.boxId,
  box,
  ...(rule === undefined ? {} : { rule }),
});

describe('the target profile', () => {
  test('is the trimmed argument, else the trimmed configuration', () => {
    const handover = parseHandover({ target_profile_config: { profile_name: ' expert ' } });
    expect(decideTargetProfile({ profile_name: ' boss\n' }, handover)).toBe('boss');
    expect(decideTargetProfile({}, handover)).toBe('expert');
    expect(decideTargetProfile({ profile_name: '  ' }, handover)).toBe('expert');
    expect(decideTargetProfile({ profile_name: null }, handover)).toBe('expert');
  });

  test.each([{}, { profile_name: '' }, { profile_name: ' \t' }, { profile_name: null }])(
    'is required: %j is a bad request',
    (args) => {
      expect(codeOf(() => decideTargetProfile(args, parseHandover({})))).toBe('bad_request');
      const blank = parseHandover({ target_profile_config: { profile_name: ' ' } });
      expect(codeOf(() => decideTargetProfile(args, blank))).toBe('bad_request');
    },
  );

  test.each([[1], [true], [['a']], [{ a: 1 }]])('of a wrong type is a bad request: %j', (name) => {
    const handover = parseHandover({ target_profile_config: { profile_name: 'expert' } });
    expect(codeOf(() => decideTargetProfile({ profile_name: name as JsonValue }, handover))).toBe(
      'bad_request',
    );
  });
});

describe('a handover', () => {
  test.each([
    [null],
    [[]],
    ['x'],
    [{ context_packing_config: { pack_arguments: {} } }],
    [{ context_packing_config: { pack_arguments: [{ arg_key: 7 }] } }],
    [{ context_packing_config: { pack_arguments: [{ arg_key: 'a', as_card_type: ' ' }] } }],
    [{ context_packing_config: { inherit_context: { include_boxes_from_args: 'a' } } }],
    [{ context_packing_config: { inherit_context: { include_parent: 'yes' } } }],
    [{ target_profile_config: { profile_name: 7 } }],
    [{ context_packing_config: { pack_arguments: [{ arg_key: 'a\u0000' }] } }],
  ])('of a wrong shape is a bad request that names the place of the fault: %j', (handover) => {
    const error = errorOf(() => parseHandover(handover));
    expect(error.code).toBe('bad_request');
    expect(error.message).toContain('handover');
  });

  test('of a wrong rule names the rule by its place in the caller’s list', () => {
    const handover = { context_packing_config: { pack_arguments: [{}, 'a', { arg_key: 7 }] } };
    expect(errorOf(() => parseHandover(handover)).message).toContain('pack_arguments.2.arg_key');
  });

  test('skips rules without arg_key, and ignores unknown keys on every level', () => {
    const plain = {
      target_profile_config: { profile_name: 'expert' },
      context_packing_config: {
        pack_arguments: [{ arg_key: 'a', as_card_type: 'x', card_metadata: { mine: 1 } }],
        inherit_context: { include_parent: true },
      },
    };
    const own = {
      ...plain,
      mine: 1,
      target_profile_config: { ...plain.target_profile_config, mine: 2 },
      context_packing_config: {
        pack_arguments: [
          { as_card_type: 7 },
          { arg_key: null },
          { arg_key: '' },
          { arg_key: 'a', as_card_type: 'x', card_metadata: { mine: 1 }, mine: 3 },
        ],
        inherit_context: { include_parent: true, mine: 4 },
        mine: 5,
      },
    };
    expect(parseHandover(own)).toEqual(plain);
    expect(pack({ arguments: { a: 'x', '': 'y', null: 'z' }, handover: own }).cards).toHaveLength(2);
    expect(handoverNotices(plain)).toEqual([]);
    const config = 'handover.context_packing_config';
    expect(handoverNotices(own).map(({ field }) => field)).toEqual([
      'handover.mine',
      'handover.target_profile_config.mine',
      `${config}.mine`,
      `${config}.pack_arguments.0`,
      `${config}.pack_arguments.1`,
      `${config}.pack_arguments.2`,
      `${config}.pack_arguments.3.mine`,
      `${config}.inherit_context.mine`,
    ]);
  });

  test('has at most a hundred notices, and no notice repeats a long key', () => {
    const many = Object.fromEntries(Array.from({ length: 500 }, (_item, n) => [`${n}${'x'.repeat(500)}`, n]));
    const notices = handoverNotices(many);
    expect(notices).toHaveLength(100);
    for (const { field } of notices) expect(field.length).toBeLessThan(250);
  });

  test('ignores items of pack_arguments that are not objects', () => {
    const { cards } = pack({
      arguments: { a: 'x' },
      handover: {
        context_packing_config: {
          pack_arguments: ['a', 1, null, [{ arg_key: 'a' }], { arg_key: 'a' }] as never,
        },
      },
    });
    expect(cards).toHaveLength(1);
  });
});

describe('packed arguments', () => {
  const packOne = (value: JsonValue, rule: Record<string, JsonValue> = {}) =>
    pack({
      arguments: { a: value },
      handover: { context_packing_config: { pack_arguments: [{ arg_key: 'a', ...rule }] } },
    }).cards[0];

  test.each([
    ['text', { kind: 'text', text: 'text' }],
    [null, { kind: 'text', text: 'null' }],
    [1.5, { kind: 'text', text: '1.5' }],
    [false, { kind: 'text', text: 'false' }],
    [{ b: [1] }, { kind: 'json', data: { b: [1] } }],
    [[], { kind: 'json', data: [] }],
  ])('%j becomes %j', (value, content) => {
    expect(packOne(value as JsonValue)?.content).toEqual(content);
  });

  test('are user instructions by the packing tool, unless the rule says otherwise', () => {
    expect(packOne('x')).toMatchObject({
      type: 'task.instruction',
      role: 'user',
      metadata: { role: 'user' },
      authorId: 'tool',
      toolCallId: null,
      projectId,
    });
    expect(
      packOne('x', { as_card_type: 'task.input', card_metadata: { role: 'assistant', label: 1 } }),
    ).toMatchObject({
      type: 'task.input',
      role: 'assistant',
      metadata: { role: 'assistant', label: 1 },
    });
  });

  test('that are absent make no card', () => {
    expect(
      pack({
        arguments: { b: 1 },
        handover: {
          context_packing_config: { pack_arguments: [{ arg_key: 'a' }, { arg_key: 'toString' }] },
        },
      }),
    ).toMatchObject({ cards: [], attachedCardIds: [], box: { count: 0, tokens: 0, segments: [] } });
  });

  test('with one name make a card per rule, in rule order', () => {
    const { cards } = pack({
      arguments: { a: 1, b: 2 },
      handover: {
        context_packing_config: {
          pack_arguments: [
            { arg_key: 'b' },
            { arg_key: 'a', as_card_type: 'task.context' },
            { arg_key: 'b', as_card_type: 'task.input' },
          ],
        },
      },
    });
    expect(cards.map((card) => [card.type, (card.content as { text: string }).text])).toEqual([
      ['task.instruction', '2'],
      ['task.context', '1'],
      ['task.input', '2'],
    ]);
  });

  test.each([['robot'], [null], [1]])('with the role %j are a bad request', (role) => {
    expect(codeOf(() => packOne('x', { card_metadata: { role } }))).toBe('bad_request');
  });

  test('as result fields must be a list of fields', () => {
    const rule = { as_card_type: 'task.result_fields' };
    expect(packOne([{ name: ' a ' }, { name: 'b', type: 'number' }], rule)?.content).toEqual({
      kind: 'fields_schema',
      fields: [{ name: 'a' }, { name: 'b', type: 'number' }],
    });
    for (const wrong of [{ name: 'a' }, 'a', null, 1, ['a'], [{}], [{ name: '' }], [{ name: 'a', x: 1 }]]) {
      expect(codeOf(() => packOne(wrong, rule))).toBe('bad_request');
    }
    expect(codeOf(() => packOne([{ name: 'a' }, { name: ' a' }], rule))).toBe('bad_request');
  });

  test('above their limit are too large: instructions have a limit of their own', () => {
    const big = 'x'.repeat(300);
    const handover: HandoverInput = {
      context_packing_config: {
        pack_arguments: [{ arg_key: 'instruction' }, { arg_key: 'input', as_card_type: 'task.input' }],
      },
    };
    const limits = { maxInstructionBytes: 200, maxCardBytes: 1_000 };
    expect(codeOf(() => pack({ arguments: { instruction: big }, handover, ...limits }))).toBe(
      'payload_too_large',
    );
    expect(pack({ arguments: { input: big }, handover, ...limits }).cards).toHaveLength(1);
    expect(codeOf(() => pack({ arguments: { input: big.repeat(4) }, handover, ...limits }))).toBe(
      'payload_too_large',
    );
    expect(codeOf(() => pack({ arguments: { instruction: 'x'.repeat(256 * 1024) }, handover }))).toBe(
      'payload_too_large',
    );
  });
});

describe('named boxes', () => {
  const named = (args: JsonObject, names = ['a', 'b']) =>
    decideNamedBoxes(
      args,
      parseHandover({
        context_packing_config: { inherit_context: { include_boxes_from_args: names } },
      }),
    );
  const one = boxIdOf(1);
  const two = boxIdOf(2);

  test('are packed in the order of the listed arguments and of their lists; absent boxes are skipped', () => {
    expect(named({ b: one, a: [two, one.replaceAll('-', ''), one.toUpperCase()] })).toEqual([
      { argument: 'a', boxId: two },
      { argument: 'a', boxId: one },
      { argument: 'a', boxId: one },
      { argument: 'b', boxId: one },
    ]);
    expect(named({ b: one })).toEqual([{ argument: 'b', boxId: one }]);
    expect(named({ a: [] })).toEqual([]);
    expect(decideNamedBoxes({ a: one }, parseHandover({}))).toEqual([]);
  });

  test.each([7, 'box', '', '00000000-0000-0000-0000-00000000000', [one, 7], [one, 'x']])(
    'with an id that is not valid are not found: %j',
    (value) => {
      const error = errorOf(() => named({ a: value as JsonValue }));
      expect(error.code).toBe('not_found');
      expect(String(error.details.field)).toMatch(/^arguments\.a/);
    },
  );

  test.each([null, true, {}, { id: one }, [one, null], [one, [two]], [{}], [false]])(
    'of another type are a bad request: %j',
    (value) => {
      const error = errorOf(() => named({ a: value as JsonValue }));
      expect(error.code).toBe('bad_request');
      expect(String(error.details.field)).toMatch(/^arguments\.a/);
    },
  );
});

describe('a packed box', () => {
  test('holds packed arguments, then inherited cards, then the parent pointer', () => {
    const packing = pack({
      arguments: { instruction: 'do it', boxes: [boxIdOf(1), boxIdOf(2)] },
      inherited: [inherit(boxOf(boxIdOf(1), [1, 2])), inherit(boxOf(boxIdOf(2), [2, 3]))],
      handover: {
        context_packing_config: {
          pack_arguments: [{ arg_key: 'instruction' }],
          inherit_context: { include_boxes_from_args: ['boxes'], include_parent: true },
        },
      },
    });
    const [instruction, parent] = packing.cards;
    expect(packing.attachedCardIds).toEqual([
      instruction?.id,
      cardIdOf(1),
      cardIdOf(2),
      cardIdOf(3),
      parent?.id,
    ]);
    expect(parent).toMatchObject({
      type: 'meta.parent_pointer',
      role: 'system',
      metadata: { role: 'system' },
      content: { kind: 'json', data: { parent_agent_id: 'agent-1' } },
      authorId: 'tool',
    });
    expect(packing.box.segments).toEqual([
      {
        rule: 'pack_arguments',
        argument: 'instruction',
        from: 1,
        to: 1,
        count: 1,
        tokens: expect.any(Number),
      },
      { rule: 'inherit', argument: 'boxes', source: boxIdOf(1), from: 1, to: 2, count: 2, tokens: 6 },
      {
        rule: 'inherit',
        argument: 'boxes',
        source: boxIdOf(2),
        from: 1,
        to: 2,
        skip: [1],
        count: 1,
        tokens: 3,
      },
      { rule: 'parent', from: 2, to: 2, count: 1, tokens: expect.any(Number) },
    ]);
  });

  test('without include_parent has no pointer', () => {
    for (const include of [false, undefined]) {
      const inherit_context = include === undefined ? {} : { include_parent: include };
      expect(pack({ handover: { context_packing_config: { inherit_context } } }).cards).toEqual([]);
    }
  });

  test('keeps calls in native form only for an heir that is a clone', () => {
    const native: ExpandedBox = {
      boxId: boxIdOf(1),
      ranges: boxOf(boxIdOf(1), [1]).ranges.map((range) => ({ ...range, native: true })),
    };
    const segment = (box: InheritedBox) => pack({ inherited: [box] }).box.segments[0];
    expect(segment(inherit(native, 'snapshot'))).toMatchObject({ rule: 'snapshot', native: true });
    expect(segment(inherit(native))).not.toHaveProperty('native');
    expect(segment(inherit(boxOf(boxIdOf(1), [1]), 'snapshot'))).not.toHaveProperty('native');
  });

  test('above the limit of cards is too large', () => {
    const inherited = [inherit(boxOf(boxIdOf(1), [1, 2, 3]))];
    expect(pack({ inherited, maxCards: 3 }).attachedCardIds).toHaveLength(3);
    expect(codeOf(() => pack({ inherited, maxCards: 2 }))).toBe('payload_too_large');
  });

  test('by the fixed recipe takes instruction, result fields, boxes and the parent', () => {
    const handover = instructionHandover('expert');
    expect(parseHandover(handover)).toEqual(handover);
    const packing = pack({
      arguments: { result_fields: [{ name: 'a' }], instruction: 'go', other: 1 },
      handover,
    });
    expect(packing.cards.map((card) => card.type)).toEqual([
      'task.instruction',
      'task.result_fields',
      'meta.parent_pointer',
    ]);
  });

  test('with listed cards keeps the first occurrence of each', () => {
    const cards = [1, 2, 1, 3, 2].map((n) => ({ id: cardIdOf(n), tokens: n }));
    expect(decideListedBox(cards)).toMatchObject({
      cardIds: [1, 2, 3].map(cardIdOf),
      count: 3,
      tokens: 6,
      segments: [{ rule: 'create_box', from: 1, to: 3 }],
    });
    expect(decideListedBox([])).toMatchObject({ cardIds: [], segments: [], count: 0 });
  });
});

/**
 * Leaves (tapes and listed boxes) and boxes packed from other boxes, with the expected content of each as a plain list.
 * `read` expands a box as the store does, from its segments alone.
 */
class World {
  readonly #leaves = new Map<BoxId, readonly (CardId | null)[]>();
  readonly #boxes = new Map<BoxId, ContextBoxDraft>();
  readonly #isTape = new Set<BoxId>();
  readonly #tokens = new Map<CardId, number>();
  readonly contents = new Map<BoxId, readonly CardId[]>();

  addTape(boxId: BoxId, entries: readonly (CardId | null)[]): void {
    this.#isTape.add(boxId);
    this.#leaves.set(boxId, entries);
    for (const id of entries) if (id !== null) this.#tokens.set(id, tokensOf(id));
    this.contents.set(boxId, [...new Set(entries.filter((id) => id !== null))]);
  }

  addBox(boxId: BoxId, draft: ContextBoxDraft, attached: readonly CardId[]): void {
    this.#boxes.set(boxId, draft);
    this.#leaves.set(boxId, draft.cardIds);
    draft.cardIds.forEach((id, index) => {
      this.#tokens.set(id, draft.cardTokens[index] ?? Number.NaN);
    });
    this.contents.set(boxId, attached);
  }

  tokens(cardId: CardId): number {
    return this.#tokens.get(cardId) ?? Number.NaN;
  }

  isLeaf(boxId: BoxId): boolean {
    return this.#leaves.has(boxId);
  }

  #range(source: BoxId, segment: Pick<Segment, 'from' | 'to' | 'skip' | 'native'>): LeafRange {
    const skip = segment.skip ?? [];
    const positions: number[] = [];
    for (let at = segment.from; at <= segment.to; at++) {
      const id = this.#leaves.get(source)?.[at - 1];
      if (id === undefined) throw new Error(`position ${at} is outside of ${source}`);
      if (id !== null && !skip.includes(at)) positions.push(at);
    }
    const cardIds = positions.map((at) => this.#leaves.get(source)?.[at - 1] as CardId);
    return {
      source,
      from: segment.from,
      to: segment.to,
      skip,
      positions,
      cardIds,
      tokens: cardIds.map((id) => this.tokens(id)),
      native: segment.native ?? false,
    };
  }

  read(boxId: BoxId): ExpandedBox {
    const length = this.#leaves.get(boxId)?.length ?? 0;
    if (this.#isTape.has(boxId))
      return { boxId, ranges: [this.#range(boxId, { from: 1, to: length, skip: [] })] };
    const segments = this.#boxes.get(boxId)?.segments ?? [];
    return { boxId, ranges: segments.map((segment) => this.#range(segment.source ?? boxId, segment)) };
  }

  expand(boxId: BoxId): readonly CardId[] {
    return this.read(boxId).ranges.flatMap((range) => range.cardIds);
  }
}

/** An arbitrary number derived from the id. */
const tokensOf = (id: CardId): number => (Number.parseInt(id.slice(-4), 16) % 7) + 1;

const KEYS = ['a', 'b', 'c', 'd'] as const;
const argumentValue = fc.oneof(
  fc.string(),
  fc.integer(),
  fc.boolean(),
  fc.constant(null),
  fc.array(fc.integer(), { maxLength: 3 }),
  fc.record({ x: fc.string() }),
);
const plan = fc.record({
  // There are few cards, so that they repeat often; null is an event.
  tapes: fc.array(fc.array(fc.option(fc.nat(11), { freq: 5 }), { maxLength: 8 }), {
    minLength: 1,
    maxLength: 4,
  }),
  packings: fc.array(
    fc.record({
      arguments: fc.dictionary(fc.constantFrom(...KEYS), argumentValue, { noNullPrototype: true }),
      rules: fc.array(
        fc.record(
          {
            arg_key: fc.constantFrom(...KEYS),
            as_card_type: fc.constantFrom('task.instruction', 'task.context', 'my.type'),
            card_metadata: fc.record(
              { role: fc.constantFrom('user', 'assistant', 'system'), mark: fc.integer() },
              { requiredKeys: [] },
            ),
          },
          { requiredKeys: ['arg_key'] },
        ),
        { maxLength: 4 },
      ),
      sources: fc.array(
        fc.record({ index: fc.nat(7), rule: fc.constantFrom('inherit' as const, 'snapshot' as const) }),
        { maxLength: 4 },
      ),
      includeParent: fc.boolean(),
    }),
    { minLength: 1, maxLength: 4 },
  ),
});

function freeze<T>(value: T): T {
  if (typeof value === 'object' && value !== null && !Object.isFrozen(value)) {
    Object.freeze(value);
    Object.values(value).forEach(freeze);
  }
  return value;
}

/** Plays a plan: packs boxes from other boxes and passes each to `check`. */
function play(
  { tapes, packings }: typeof plan extends fc.Arbitrary<infer P> ? P : never,
  check: (packed: { input: PackInput; packing: Packing; boxId: BoxId; world: World }) => void,
): void {
  const world = new World();
  tapes.forEach((cards, index) => {
    // A card is on a tape only once.
    const seen = new Set<number>();
    const entries = cards.map((card) => {
      if (card === null || seen.has(card)) return null;
      seen.add(card);
      return cardIdOf(card);
    });
    world.addTape(boxIdOf(index), entries);
  });
  const newId = counter();
  packings.forEach((item, index) => {
    const known = tapes.length + index;
    const input: PackInput = freeze({
      projectId,
      toolSuffix: 'tool',
      sourceAgentId: 'agent-1',
      arguments: item.arguments as JsonObject,
      handover: parseHandover({
        context_packing_config: {
          pack_arguments: item.rules as never,
          inherit_context: { include_parent: item.includeParent },
        },
      }),
      inherited: item.sources.map(({ index: source, rule }) => ({
        argument: `source-${source}`,
        boxId: boxIdOf(source % known),
        rule,
        box: world.read(boxIdOf(source % known)),
      })),
      newId,
    });
    const packing = decidePacking(input);
    const boxId = boxIdOf(known);
    world.addBox(boxId, packing.box, packing.attachedCardIds);
    check({ input, packing, boxId, world });
  });
}

describe('with any rules, arguments and sources, and any depth of inherited boxes', () => {
  const forAll = (check: Parameters<typeof play>[1]): void => {
    fc.assert(
      fc.property(plan, (drawn) => play(drawn, check)),
      { numRuns: Math.ceil(numRuns / 4) },
    );
  };

  test('the order is packed arguments by rule, inherited cards by first occurrence, parent', () => {
    forAll(({ input, packing, world }) => {
      const rules = input.handover.context_packing_config?.pack_arguments ?? [];
      const packed = rules.filter((rule) => Object.hasOwn(input.arguments, rule.arg_key));
      const hasParent = input.handover.context_packing_config?.inherit_context?.include_parent === true;
      assert.deepEqual(
        packing.cards.map((card) => card.type),
        [...packed.map((rule) => rule.as_card_type), ...(hasParent ? ['meta.parent_pointer'] : [])],
      );
      assert.deepEqual(
        packing.cards.slice(0, packed.length).map((card) => card.metadata),
        packed.map((rule) => ({ role: 'user', ...rule.card_metadata })),
      );
      const own = packing.cards.map((card) => card.id);
      const inherited = new Set(input.inherited.flatMap(({ boxId }) => world.contents.get(boxId) ?? []));
      assert.deepEqual(packing.attachedCardIds, [
        ...own.slice(0, packed.length),
        ...inherited,
        ...own.slice(packed.length),
      ]);
    });
  });

  test('no card is included twice, and no card that no rule named', () => {
    forAll(({ input, packing }) => {
      const named = new Set([
        ...packing.cards.map((card) => card.id),
        ...input.inherited.flatMap(({ box }) => box.ranges.flatMap((range) => range.cardIds)),
      ]);
      assert.equal(new Set(packing.attachedCardIds).size, packing.attachedCardIds.length);
      for (const id of packing.attachedCardIds) assert.equal(named.has(id), true);
    });
  });

  test('the segments alone restore the box, refer only to leaves, and count correctly', () => {
    forAll(({ packing, boxId, world }) => {
      assert.deepEqual(world.expand(boxId), packing.attachedCardIds);
      assert.equal(packing.box.count, packing.attachedCardIds.length);
      const { segments } = packing.box;
      const ranges = world.read(boxId).ranges;
      segments.forEach((segment, index) => {
        const range = ranges[index];
        assert.equal(world.isLeaf(segment.source ?? boxId), true);
        assert.equal(segment.count, range?.cardIds.length);
        assert.equal(
          segment.tokens,
          range?.tokens.reduce((sum, tokens) => sum + tokens, 0),
        );
      });
      assert.equal(
        packing.box.tokens,
        packing.attachedCardIds.reduce((sum, id) => sum + world.tokens(id), 0),
      );
    });
  });

  test('a segment leaves out the cards that its source left out and the cards that are already in the box', () => {
    forAll(({ input, packing }) => {
      const earlier = new Set<CardId>();
      const ranges = input.inherited.flatMap(({ boxId, box }) =>
        box.ranges.map((range) => ({ boxId, range })),
      );
      const segments = packing.box.segments.filter(({ rule }) => rule === 'inherit' || rule === 'snapshot');
      assert.equal(segments.length, ranges.length);
      ranges.forEach(({ boxId, range }, index) => {
        const segment = segments[index];
        const repeated = range.positions.filter((_position, at) =>
          earlier.has(range.cardIds[at] ?? cardIdOf(-1)),
        );
        const skip = [...range.skip, ...repeated].sort((a, b) => a - b);
        assert.deepEqual(segment?.skip ?? [], skip);
        assert.deepEqual([segment?.source, segment?.from, segment?.to], [range.source, range.from, range.to]);
        assert.equal(segment?.via, range.source === boxId ? undefined : boxId);
        for (const id of range.cardIds) earlier.add(id);
      });
    });
  });
});
