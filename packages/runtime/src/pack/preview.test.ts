import { type BoxId, type CardId, KernelError, type Segment } from '@boxcar/kernel';
import { expandContexts } from '@boxcar/store';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { z } from 'zod';
import { newId } from '../lib/new-id.js';
import { Runtime } from '../runtime.js';
import { statementsOf } from '../testing/count-statements.js';
import { type Harness, harness } from '../testing/harness.js';
import { type RecordingModel, recordingModel } from '../testing/recording-model.js';
import { rowCounts } from '../testing/row-counts.js';
import type { PackRequest } from './make-contexts.js';
import { HandoverPacker } from './packer.js';
import type { PackPreview } from './preview-types.js';

let h: Harness;
let model: RecordingModel;

beforeAll(async () => {
  model = recordingModel();
  h = await harness({ model });
  await h.profile('expert', [{ say: 'x' }], { tools: ['submit_result'] });
  h.runtime.registerPackingStrategy('mine', ({ candidates }) => ({
    keep: candidates.filter((card) => card.isProtected).map((card) => card.cardId),
    reasons: { [candidates.find((card) => !card.isProtected)?.cardId ?? '']: 'first' },
  }));
});

afterAll(() => h[Symbol.asyncDispose]());

type Packing = NonNullable<PackRequest['handover']['context_packing_config']>;

const request = (boxes: readonly string[], packing: Partial<Packing> = {}): PackRequest => ({
  projectId: 'default',
  toolSuffix: 'my_tool',
  sourceAgentId: 'operator',
  arguments: { instruction: 'do it', result_fields: [{ name: 'a' }], boxes },
  handover: {
    target_profile_config: { profile_name: 'expert' },
    context_packing_config: {
      pack_arguments: [
        { arg_key: 'instruction' },
        { arg_key: 'result_fields', as_card_type: 'task.result_fields' },
      ],
      inherit_context: { include_boxes_from_args: ['boxes'], include_parent: true },
      ...packing,
    },
  },
});

const text = (words: string, type = 'task.context') => ({ type, content: { kind: 'text', text: words } });

const boxOf = (...cards: unknown[]): Promise<BoxId> =>
  h.runtime.packer.createBox({ projectId: 'default', sourceAgentId: 'operator', cards });
const cardsOf = async (boxId: BoxId): Promise<CardId[]> =>
  ((await expandContexts(h.database.pool, [boxId])).get(boxId) ?? []).map(({ card }) => card.id);

const countTokens = (words: string): number => words.length;

async function refusal(work: Promise<unknown>): Promise<KernelError> {
  try {
    await work;
  } catch (error) {
    if (error instanceof KernelError) return error;
    throw error;
  }
  throw new Error('nothing was refused');
}

/** Estimated tokens of the packed cards and the parent pointer. */
const ownTokens = async (): Promise<number> => (await h.runtime.preview(request([]))).kept.estimated_tokens;

describe('a preview', () => {
  test('shows nothing of the anchor with which an inherited tape begins', async () => {
    const { agent_id: agent } = (await h.runtime.submit('provision_agent', {
      action: 'create',
      profile_name: 'expert',
    })) as { agent_id: string };
    const tape = await h.runtime.tape({ agent });
    await tape.append([{ kind: 'message', content: 'a note' }]);
    const preview = await h.runtime.preview(request([tape.boxId]));
    // It is a card of the box like any other card.
    expect(preview.cards.filter(({ rule }) => rule === 'inherit')).toMatchObject([
      { type: 'tape.anchor' },
      { type: expect.any(String) },
    ]);
    const shown = preview.prompt.messages.map(({ message }) => message.content);
    expect(shown).toContain('a note');
    expect(shown.filter((words) => /anchor|owner/i.test(words))).toEqual([]);
  });

  test('reports skipped rules and ignored keys, and a packing accepts the same handover', async () => {
    expect((await h.runtime.preview(request([]))).notices).toEqual([]);
    const { handover, ...rest } = request([]);
    const own: PackRequest = {
      ...rest,
      handover: {
        ...handover,
        my_settings: { retries: 3 },
        context_packing_config: {
          ...handover.context_packing_config,
          pack_arguments: [{ as_card_type: 'task.input' }, { arg_key: 'instruction' }] as never,
        },
      },
    };
    const preview = await h.runtime.preview(own);
    expect(preview.notices).toEqual([
      { field: 'handover.my_settings', message: 'is not a key of a handover; it is ignored' },
      {
        field: 'handover.context_packing_config.pack_arguments.0',
        message: 'is a rule without arg_key; it is skipped',
      },
    ]);
    expect(preview.kept.cards).toBe(2);
    expect((await h.runtime.packer.packContext(own)).attachedCardIds).toHaveLength(2);
  });

  test('lists every card in stored order with its rule, its source and its cost', async () => {
    const box = await boxOf(text('one'), text('two', 'my.type'));
    const [one, two] = await cardsOf(box);
    const preview = await h.runtime.preview(request([box, box]), { countTokens });
    const own = { card_id: 'new', author_id: 'my_tool', source: null, position: null, is_kept: true };
    const inherited = { rule: 'inherit', argument: 'boxes', source: box, is_kept: true, reason: null };
    expect(preview.cards).toMatchObject([
      {
        ...own,
        type: 'task.instruction',
        rule: 'pack_arguments',
        argument: 'instruction',
        tokens: 5,
        estimated_tokens: 8,
        size_bytes: 30,
      },
      { ...own, type: 'task.result_fields', argument: 'result_fields' },
      {
        ...inherited,
        card_id: one,
        position: 1,
        type: 'task.context',
        tokens: 3,
        estimated_tokens: 7,
        size_bytes: 28,
      },
      { ...inherited, card_id: two, position: 2, type: 'my.type' },
      { ...own, type: 'meta.parent_pointer', role: 'system', rule: 'parent', argument: null },
    ]);
    expect(preview).toMatchObject({
      profile: { name: 'expert', version: 1, model: 'scripted' },
      budget: null,
      kept: { cards: 5 },
      cut: { cards: 0, tokens: 0, estimated_tokens: 0, size_bytes: 0 },
    });
    const [sums] = await h.rows<{ bytes: number }>(
      'select sum(size_bytes)::int as bytes from boxcar.cards where id = any($1)',
      [[one, two]],
    );
    expect(preview.kept.size_bytes).toBeGreaterThan(sums?.bytes ?? Number.NaN);
  });

  test('without a tokenizer has only the stored estimates', async () => {
    const preview = await h.runtime.preview(request([await boxOf(text('one'))]));
    expect(preview.cards.map((card) => card.tokens)).toEqual([null, null, null, null]);
    expect(preview.kept.tokens).toBeNull();
    expect(preview.cut.tokens).toBe(0);
    expect(preview.prompt.tokens).toBeNull();
    expect(preview.prompt.estimated_tokens).toBeGreaterThan(0);
  });

  test('counts tokens for the model of the profile', async () => {
    const models = new Set<string>();
    await h.runtime.preview(request([]), {
      countTokens: async (_words, name) => {
        models.add(name);
        return 1;
      },
    });
    expect([...models]).toEqual(['scripted']);
  });

  test('shows exactly the prompt that a new agent gets, also with few steps left', async () => {
    await h.profile('hasty', [{ calls: [{ tool: 'submit_result', arguments: { result: { a: 1 } } }] }], {
      tools: ['submit_result'],
      limits: { max_steps: 1 },
    });
    await using _worker = await h.worker();
    const { output_box_id: tape } = (await h.runtime.submit('launch_principal', {
      profile_name: 'expert',
      instruction: 'first',
      wait: true,
    })) as { output_box_id: BoxId };
    const call = { tool_call_id: newId(), provider_call_id: 'p', name: 'look', arguments: { at: 'x' } };
    const box = await boxOf(
      { type: 'tool.call', role: 'assistant', content: { kind: 'tool_call', ...call } },
      {
        type: 'tool.result',
        role: 'tool',
        content: {
          kind: 'tool_result',
          tool_call_id: call.tool_call_id,
          name: 'look',
          status: 'success',
          result: 'seen',
        },
      },
      { ...text('hidden'), metadata: { context: false } },
      { ...text('rule'), role: 'system' },
    );
    for (const profile of ['expert', 'hasty']) {
      const preview = await h.runtime.preview({
        ...request([]),
        arguments: {
          profile_name: profile,
          instruction: 'do it',
          result_fields: [{ name: 'a' }],
          boxes: [tape, box],
        },
      });
      const { turn_id } = (await h.runtime.submit('launch_principal', {
        profile_name: profile,
        instruction: 'do it',
        result_fields: [{ name: 'a' }],
        context_box_id: [tape, box],
        wait: true,
      })) as { turn_id: string };
      expect(preview.prompt.messages.map(({ message }) => message)).toEqual(model.of(turn_id)[0]?.messages);
    }
  });

  test('is byte-equal to the first prompt where result fields are binding, for any tools of the profile', async () => {
    h.runtime.registerTool({ name: 'finish', description: 'Ends.', input: z.object({}), run: () => ({}) });
    const submit = [{ calls: [{ tool: 'submit_result', arguments: { result: { a: 1 } } }] }];
    const finish = [{ calls: [{ tool: 'finish', arguments: {} }] }, ...submit];
    const hasty = { limits: { max_steps: 1 } };
    await h.profile('no_tools', submit);
    await h.profile('no_tools_hasty', submit, hasty);
    await h.profile('finisher', finish, { must_end_with: ['finish'] });
    await h.profile('finisher_hasty', finish, { must_end_with: ['finish'], ...hasty });
    await h.profile('told', submit, { tools: ['tape.handoff'], limits: { context_tokens: 9_000 } });
    await using _worker = await h.worker();
    const box = await boxOf(text('one'), text('x'.repeat(2_000)), text('three', 'task.deliverable'));
    for (const profile_name of ['no_tools', 'no_tools_hasty', 'finisher', 'finisher_hasty', 'told'])
      for (const fields of [{}, { result_fields: [{ name: 'a', type: 'number', description: 'A.' }] }])
        for (const budget of [{}, { budget_tokens: 300, budget_strategy: 'summary' }]) {
          const common = { instruction: 'do it', ...fields };
          const preview = await h.runtime.preview({
            ...request([], budget),
            arguments: { ...common, profile_name, boxes: [box] },
          });
          const { turn_id } = (await h.runtime.submit('launch_principal', {
            ...common,
            ...budget,
            profile_name,
            context_box_id: box,
            wait: true,
          })) as { turn_id: string };
          // Both texts contain the ids of the digested cards.
          expect(JSON.stringify(preview.prompt.messages.map(({ message }) => message)), profile_name).toBe(
            JSON.stringify(model.of(turn_id)[0]?.messages),
          );
        }
  });

  test('writes nothing', async () => {
    const box = await boxOf(text('one'), text('x'.repeat(4_000)));
    const before = await rowCounts(h.database.pool);
    await h.runtime.preview(request([box]));
    const budget_tokens = (await ownTokens()) + 200;
    await h.runtime.preview(request([box], { budget_tokens, budget_strategy: 'summary' }));
    expect(await rowCounts(h.database.pool)).toEqual(before);
  });

  test('refuses whatever packing refuses, with the same error', async () => {
    const [mine, theirs] = [await boxOf(text('a')), await boxOf(text('b'))];
    const { agent_id } = (await h.runtime.submit('launch_principal', {
      profile_name: 'expert',
      instruction: 'x',
    })) as { agent_id: string };
    await h.runtime.packer.grantBox({
      projectId: 'default',
      sourceAgentId: 'operator',
      boxId: mine,
      grantee: agent_id,
    });
    const packer = new HandoverPacker({
      db: h.database.pool,
      limits: { maxContextCards: 3, maxInstructionBytes: 200 },
    });
    const requests: readonly PackRequest[] = [
      { ...request([mine, theirs]), sourceAgentId: agent_id },
      request([newId<'box'>()]),
      request(['x']),
      { ...request([]), handover: {} },
      { ...request([]), arguments: { profile_name: 'nobody' } },
      { ...request([]), projectId: 'nowhere' },
      { ...request([]), sourceAgentId: 'nobody' },
      { ...request([]), arguments: 7 },
      { ...request([]), arguments: { instruction: 'x'.repeat(300) } },
      request([mine]),
      request([], { budget_tokens: 1 }),
      request([], { budget_tokens: 100, budget_strategy: 'nope' }),
      request([], { budget_strategy: 'newest' }),
    ];
    const codes: string[] = [];
    for (const spec of requests) {
      const [one, two] = [await refusal(packer.preview(spec)), await refusal(packer.packContext(spec))];
      expect({ code: one.code, message: one.message }).toEqual({ code: two.code, message: two.message });
      codes.push(one.code);
    }
    expect(new Set(codes)).toEqual(
      new Set([
        'box_not_authorized',
        'not_found',
        'bad_request',
        'payload_too_large',
        'context_budget_exceeded',
      ]),
    );
    // A box that the agent may read is accepted.
    expect((await h.runtime.preview({ ...request([mine]), sourceAgentId: agent_id })).kept.cards).toBe(4);
  });

  test('is part of the transaction of the caller', async () => {
    const client = await h.database.pool.connect();
    try {
      await client.query('begin');
      const box = await h.runtime.packer.createBox({
        projectId: 'default',
        sourceAgentId: 'operator',
        cards: [text('inside')],
        tx: client,
      });
      expect((await h.runtime.preview({ ...request([box]), tx: client })).kept.cards).toBe(4);
      expect((await refusal(h.runtime.preview(request([box])))).code).toBe('not_found');
      await client.query('rollback');
    } finally {
      client.release();
    }
  });

  test('takes a constant number of statements, and one more when a budget has to choose; so does packing', async () => {
    const small = await boxOf(text('a'));
    const boxes: BoxId[] = [];
    for (let i = 0; i < 20; i++)
      boxes.push(await boxOf(...Array.from({ length: 30 }, (_item, n) => text(`card ${i} ${n}`))));
    const cost = async (work: () => Promise<unknown>) => (await statementsOf(h.database, work)).length;
    const tight = { budget_tokens: (await ownTokens()) + 300, budget_strategy: 'newest' };
    const roomy = { budget_tokens: 1_000_000, budget_strategy: 'newest' };
    expect(await cost(() => h.runtime.preview(request([small])))).toBe(6);
    expect(await cost(() => h.runtime.preview(request(boxes)))).toBe(6);
    expect(await cost(() => h.runtime.preview(request(boxes, roomy)))).toBe(6);
    expect(await cost(() => h.runtime.preview(request(boxes, tight)))).toBe(7);
    const { packer } = h.runtime;
    expect(await cost(() => packer.packContext(request(boxes, roomy)))).toBe(4);
    expect(await cost(() => packer.packContext(request(boxes, tight)))).toBe(5);
    expect(
      await cost(() =>
        packer.packMany([request(boxes, tight), request([small], tight), request(boxes, tight)]),
      ),
    ).toBe(5);
  });
});

/** Reads back a box whose segments were stored: its cards and its manifest. */
async function stored(boxId: BoxId): Promise<{ cardIds: CardId[]; segments: Segment[]; tokens: number }> {
  const [box] = await h.rows<{ segments: Segment[]; token_estimate: number }>(
    'select segments, token_estimate from boxcar.boxes where id = $1',
    [boxId],
  );
  return {
    cardIds: await cardsOf(boxId),
    segments: box?.segments ?? [],
    tokens: box?.token_estimate ?? Number.NaN,
  };
}

const keptIds = ({ cards }: PackPreview): (CardId | 'new')[] =>
  cards.filter((card) => card.is_kept).map((card) => card.card_id);

describe('a budget', () => {
  const words = (n: number) => `${n} `.repeat(200);
  const result = (id: string) => ({
    kind: 'tool_result',
    tool_call_id: id,
    name: 'look',
    status: 'success',
    result: words(7),
  });
  const call = (id: string) => ({
    kind: 'tool_call',
    tool_call_id: id,
    provider_call_id: 'p',
    name: 'look',
    arguments: {},
  });

  test.each(['newest', 'deliverables_only', 'summary', 'mine'])(
    'cuts the same cards in a preview and in a packing: %s',
    async (budget_strategy) => {
      const tape = await boxOf(
        text(words(1)),
        { type: 'tool.call', content: call('c-1') },
        text(words(2), 'task.deliverable'),
        { type: 'tool.result', content: result('c-1') },
      );
      const [one] = await cardsOf(tape);
      const more = await boxOf(
        { ...text('in short', 'task.summary'), metadata: { summarizes: [one, 7, 'x'] } },
        text(words(3)),
        text(words(4), 'task.deliverable'),
        text(words(5)),
      );
      const budget_tokens = (await ownTokens()) + 320;
      const spec = request([tape, more], { budget_tokens, budget_strategy });
      const preview = await h.runtime.preview(spec, { countTokens });
      const packed = await h.runtime.packer.packContext(spec);
      const box = await stored(packed.contextBoxId);

      expect(box.cardIds).toEqual(packed.attachedCardIds);
      expect(box.segments).toEqual(preview.segments);
      expect(box.tokens).toBe(preview.kept.estimated_tokens);
      expect(box.tokens).toBeLessThanOrEqual(budget_tokens);
      const inherited = new Set([...(await cardsOf(tape)), ...(await cardsOf(more))]);
      expect(box.cardIds.map((id) => (inherited.has(id) ? id : 'new'))).toEqual(keptIds(preview));
      expect(preview.budget).toMatchObject({ budget_tokens, budget_strategy, is_exceeded: true });
      expect(preview.cut.cards).toBeGreaterThan(0);
      const said = box.segments.flatMap((segment) => segment.cut?.parts ?? []);
      expect(said.reduce((sum, part) => sum + part.count, 0)).toBe(preview.cut.cards);
      expect(said.reduce((sum, part) => sum + part.tokens, 0)).toBe(preview.cut.estimated_tokens);
      const fates = preview.cards.filter((card) => card.type.startsWith('tool.')).map((card) => card.is_kept);
      expect(new Set(fates).size).toBe(1);
      const prompt = preview.prompt.messages.flatMap(({ card_ids }) => card_ids);
      for (const id of prompt) expect(keptIds(preview)).toContain(id);
    },
  );

  test('is passed on: an heir of the box gets the cards that it kept, including the digest', async () => {
    const box = await boxOf(text(words(1)), text(words(2)), text('short'));
    const spec = request([box], { budget_tokens: (await ownTokens()) + 200, budget_strategy: 'summary' });
    const child = await h.runtime.packer.packContext(spec);
    const heir = await h.runtime.packer.packContext({
      ...request([child.contextBoxId]),
      arguments: { boxes: child.contextBoxId },
    });
    expect(heir.attachedCardIds.slice(0, -1)).toEqual(child.attachedCardIds);
    const [digest] = await h.rows<{ content: { text: string }; metadata: unknown }>(
      "select content, metadata from boxcar.cards where type = 'task.summary' and id = any ($1)",
      [child.attachedCardIds],
    );
    expect(digest?.content.text).toContain('by 00000000-0000-7000-8000-000000000002: "1 1 1');
    expect(digest?.metadata).toEqual({ role: 'user', summarizes: (await cardsOf(box)).slice(0, 2) });
  });

  test('that cuts everything of a box leaves nothing to its heirs', async () => {
    const box = await boxOf(text(words(1)), text(words(2)));
    const spec = request([box], { budget_tokens: await ownTokens(), budget_strategy: 'newest' });
    const child = await h.runtime.packer.packContext(spec);
    expect(child.attachedCardIds).toHaveLength(3);
    expect(await cardsOf(child.contextBoxId)).toEqual(child.attachedCardIds);
    const heir = await h.runtime.packer.packContext({
      ...request([]),
      arguments: { boxes: child.contextBoxId },
    });
    expect(heir.attachedCardIds.slice(0, -1)).toEqual(child.attachedCardIds);
  });

  test('of the fixed recipe and of the primitives is kept, or refuses the packing and leaves nothing', async () => {
    const box = await boxOf(text(words(1)), text('short'));
    const packed = await h.runtime.packer.packContextWithInstruction({
      projectId: 'default',
      toolSuffix: 't',
      sourceAgentId: 'operator',
      profileName: 'expert',
      instruction: 'go',
      inputBoxIds: [box],
      budgetTokens: 60,
      budgetStrategy: 'newest',
    });
    expect(packed.attachedCardIds).toHaveLength(3);
    const args = { instruction: 'go', context_box_id: box, budget_tokens: 60 };
    const primitives = [
      ['launch_principal', { profile_name: 'expert', ...args }],
      ['delegate_async', { target_strategy: 'new', target_ref: 'expert', ...args }],
    ] as const;
    for (const [primitive, input] of primitives) {
      const before = await rowCounts(h.database.pool);
      const error = await refusal(h.runtime.submit(primitive, input));
      expect(error).toMatchObject({ code: 'context_budget_exceeded', details: { budget_tokens: 60 } });
      expect(await rowCounts(h.database.pool)).toEqual(before);
      const receipt = (await h.runtime.submit(primitive, { ...input, budget_strategy: 'newest' })) as {
        context_box_id: BoxId;
      };
      expect((await stored(receipt.context_box_id)).cardIds).toHaveLength(3);
      for (const wrong of [
        { budget_tokens: 0 },
        { budget_tokens: '60' },
        { budget_strategy: 'nope' },
        { budget_tokens: undefined, budget_strategy: 'newest' },
      ])
        expect((await refusal(h.runtime.submit(primitive, { ...input, ...wrong }))).code).toBe('bad_request');
    }
  });
});

describe('a custom strategy', () => {
  test('is known to every packer of its runtime, and to no other runtime', async () => {
    h.runtime.registerPackingStrategy('none', ({ candidates }) => ({
      keep: candidates.filter((card) => card.isProtected).map((card) => card.cardId),
    }));
    const box = await boxOf(text('x'.repeat(400)));
    const args = {
      profile_name: 'expert',
      instruction: 'go',
      context_box_id: box,
      budget_tokens: 60,
      budget_strategy: 'none',
    };
    const receipt = (await h.runtime.submit('launch_principal', args)) as { context_box_id: BoxId };
    expect((await stored(receipt.context_box_id)).cardIds).toHaveLength(2);
    const other = new HandoverPacker({ db: h.database.pool });
    const spec = request([box], { budget_tokens: 60, budget_strategy: 'none' });
    expect((await refusal(other.preview(spec))).code).toBe('bad_request');
    const own = new HandoverPacker({ db: h.database.pool, strategies: { none: () => ({ keep: [] }) } });
    expect(await refusal(own.packContext(spec))).toMatchObject({
      code: 'packing_strategy_failed',
      details: { budget_strategy: 'none' },
    });
    expect(() => h.runtime.registerPackingStrategy('none', () => ({ keep: [] }))).toThrow(/is there already/);
    expect(() => h.runtime.registerPackingStrategy('newest', () => ({ keep: [] }))).toThrow(/built in/);
    expect(() => h.runtime.registerPackingStrategy('No', () => ({ keep: [] }))).toThrow(
      /is not a valid name/,
    );
  });
});

describe('the limits of a runtime', () => {
  const launch = (runtime: Runtime, rest: Record<string, unknown>) =>
    runtime.submit('launch_principal', { profile_name: 'expert', instruction: 'go', ...rest });
  const limited = (limits: Runtime['limits']): Runtime =>
    new Runtime({
      pool: h.database.pool,
      directUrl: h.database.url,
      doorbell: h.runtime.doorbell,
      model,
      limits,
    });

  test('are a card of 1 MiB, an instruction of 256 KiB, a context of 10,000 cards', async () => {
    const cards = (n: number) => boxOf(...Array.from({ length: n }, (_item, index) => text(`${index}`)));
    const rules: Packing = { pack_arguments: [{ arg_key: 'data', as_card_type: 'task.input' }] };
    const big = { ...request([], rules), arguments: { data: 'x'.repeat(1024 * 1024) } };
    expect((await refusal(h.runtime.packer.packContext(big))).details).toMatchObject({
      limitBytes: 1024 * 1024,
    });
    const long = await refusal(launch(h.runtime, { instruction: 'x'.repeat(256 * 1024) }));
    expect(long).toMatchObject({ code: 'payload_too_large', details: { limitBytes: 256 * 1024 } });
    await launch(h.runtime, { instruction: 'x'.repeat(256 * 1024 - 50) });
    const box = await cards(9_999);
    const many = await refusal(launch(h.runtime, { context_box_id: box }));
    expect(many).toMatchObject({ code: 'payload_too_large', details: { cards: 10_001, limitCards: 10_000 } });
    await launch(h.runtime, { context_box_id: await cards(9_998) });
    // A budget cuts before the cards are counted.
    await launch(h.runtime, { context_box_id: box, budget_tokens: 1_000, budget_strategy: 'newest' });
  });

  test('can be lower or higher', async () => {
    const low = limited({ maxCardBytes: 500, maxInstructionBytes: 100, maxContextCards: 3 });
    expect((await refusal(launch(low, { instruction: 'x'.repeat(100) }))).details).toMatchObject({
      limitBytes: 100,
    });
    const fields = Array.from({ length: 50 }, (_item, n) => ({ name: `field_${n}` }));
    expect((await refusal(launch(low, { result_fields: fields }))).details).toMatchObject({
      limitBytes: 500,
    });
    const box = await boxOf(text('a'), text('b'));
    expect((await refusal(launch(low, { context_box_id: box }))).details).toMatchObject({ limitCards: 3 });
    const high = limited({ maxInstructionBytes: 300 * 1024 });
    await launch(high, { instruction: 'x'.repeat(256 * 1024) });
  });
});
