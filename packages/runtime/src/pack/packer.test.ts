import type { AgentId, BoxId, CardId, ErrorCode, JsonValue, ProjectId } from '@boxcar/kernel';
import { KernelError } from '@boxcar/kernel';
import { expandContexts, type Queryable } from '@boxcar/store';
import { beforeEach, describe, expect, test } from 'vitest';
import { newId } from '../lib/new-id.js';
import { statementsOf } from '../testing/count-statements.js';
import { type Harness, harness } from '../testing/harness.js';
import type { PackRequest } from './make-contexts.js';
import { HandoverPacker } from './packer.js';

let h: Harness;
let packer: HandoverPacker;
const OPERATOR = 'operator';

beforeEach(async () => {
  h = await harness();
  packer = new HandoverPacker({ db: h.database.pool });
  await h.profile('expert', [{ say: 'x' }]);
  return () => h[Symbol.asyncDispose]();
});

const base = { projectId: 'default', toolSuffix: 'my_tool', sourceAgentId: OPERATOR };
const NAMES = { include_boxes_from_args: ['boxes', 'more'] };
const handoverOf = (
  packing: NonNullable<PackRequest['handover']['context_packing_config']> = { inherit_context: NAMES },
): PackRequest['handover'] => ({
  target_profile_config: { profile_name: 'expert' },
  context_packing_config: packing,
});
const pack = (args: Record<string, unknown>, rest: Partial<PackRequest> = {}) =>
  packer.packContext({ ...base, arguments: args, handover: handoverOf(), ...rest });

async function refusal(work: Promise<unknown> | (() => Promise<unknown>)): Promise<KernelError> {
  try {
    await (typeof work === 'function' ? work() : work);
  } catch (error) {
    if (error instanceof KernelError) return error;
    throw error;
  }
  throw new Error('nothing was refused');
}
const codeOf = async (work: Promise<unknown>): Promise<ErrorCode> => (await refusal(work)).code;

const count = async (): Promise<Record<string, number>> => {
  const [row] = await h.rows<Record<string, number>>(
    `select (select count(*)::int from boxcar.cards) as cards, (select count(*)::int from boxcar.boxes) as boxes,
       (select count(*)::int from boxcar.grants) as grants`,
  );
  return row ?? {};
};

let words = 0;
/** Makes a box of `n` new cards with different texts, in the name of the operator or of an agent. */
async function boxOf(n: number, sourceAgentId = OPERATOR): Promise<{ boxId: BoxId; cardIds: CardId[] }> {
  const cards = Array.from({ length: n }, () => ({
    type: 'task.context',
    content: { kind: 'text', text: `card ${++words}` },
  }));
  const boxId = await packer.createBox({ projectId: 'default', sourceAgentId, cards });
  return { boxId, cardIds: await cardsOf(boxId) };
}

/** The cards of a sealed box as the view reads them. */
const cardsOf = async (boxId: BoxId, db: Queryable = h.database.pool): Promise<CardId[]> =>
  ((await expandContexts(db, [boxId])).get(boxId) ?? []).map(({ card }) => card.id);

/** A new agent with a queued turn. */
async function agent(profile = 'expert'): Promise<{ agentId: AgentId; tapeId: BoxId; contextId: BoxId }> {
  const receipt = (await h.runtime.submit('launch_principal', {
    profile_name: profile,
    instruction: 'go',
  })) as { agent_id: AgentId; output_box_id: BoxId; context_box_id: BoxId };
  return { agentId: receipt.agent_id, tapeId: receipt.output_box_id, contextId: receipt.context_box_id };
}

const stored = (cardId: CardId | undefined) =>
  h.rows('select type, role, content, metadata, author_id from boxcar.cards where id = $1', [cardId]);

describe('the target profile', () => {
  test('is the trimmed argument, else the trimmed configuration, in its current version', async () => {
    await h.profile('boss', [{ say: 'x' }]);
    const boxes = async () =>
      new Map(
        (
          await h.rows<{ name: string; box_id: BoxId }>(
            'select name, box_id from boxcar.profiles where is_current',
          )
        ).map((row) => [row.name, row.box_id]),
      );
    const target = async (args: Record<string, unknown>) => (await pack(args)).targetProfileBoxId;
    expect(await target({ profile_name: ' boss ' })).toBe((await boxes()).get('boss'));
    expect(await target({})).toBe((await boxes()).get('expert'));
    expect(await target({ profile_name: ' ' })).toBe((await boxes()).get('expert'));
    const before = await boxes();
    await h.profile('expert', [{ say: 'y' }]);
    const after = await boxes();
    expect(after.get('expert')).not.toBe(before.get('expert'));
    expect(await target({})).toBe(after.get('expert'));
  });

  test('is required, and must exist: otherwise nothing is written', async () => {
    const before = await count();
    expect(await codeOf(pack({}, { handover: {} }))).toBe('bad_request');
    expect(await codeOf(pack({ profile_name: 7 }))).toBe('bad_request');
    expect(await refusal(pack({ profile_name: 'Expert' }))).toMatchObject({
      code: 'not_found',
      details: { profile_name: 'Expert' },
    });
    expect(await count()).toEqual(before);
  });
});

describe('packed arguments', () => {
  const packOne = async (value: unknown, rule: Record<string, JsonValue> = {}) => {
    const { attachedCardIds } = await pack(
      { a: value },
      { handover: handoverOf({ pack_arguments: [{ arg_key: 'a', ...rule }] }) },
    );
    return (await stored(attachedCardIds[0]))[0];
  };

  test('become cards by the tool, for the user, as instructions, unless the rule says otherwise', async () => {
    expect(await packOne('do it')).toEqual({
      type: 'task.instruction',
      role: 'user',
      content: { kind: 'text', text: 'do it' },
      metadata: { role: 'user' },
      author_id: 'my_tool',
    });
    expect(
      await packOne('x', { as_card_type: 'my.type', card_metadata: { role: 'system', n: { deep: [1] } } }),
    ).toMatchObject({ type: 'my.type', role: 'system', metadata: { role: 'system', n: { deep: [1] } } });
  });

  test('keep lists and objects as JSON in their key order, and everything else as text', async () => {
    expect(await packOne(null)).toMatchObject({ content: { kind: 'text', text: 'null' } });
    expect(await packOne(12)).toMatchObject({ content: { kind: 'text', text: '12' } });
    expect(await packOne([{ b: 1, a: 2 }])).toMatchObject({
      content: { kind: 'json', data: [{ b: 1, a: 2 }] },
    });
    const { attachedCardIds } = await pack(
      { a: { z: 1, a: 2 } },
      { handover: handoverOf({ pack_arguments: [{ arg_key: 'a' }] }) },
    );
    const [row] = await h.rows('select content::text as text from boxcar.cards where id = $1', [
      attachedCardIds[0],
    ]);
    expect(row).toEqual({ text: '{"kind":"json","data":{"z":1,"a":2}}' });
  });

  test('as result fields must be a list', async () => {
    const rule = { as_card_type: 'task.result_fields' };
    expect(await packOne([{ name: 'a' }], rule)).toMatchObject({
      type: 'task.result_fields',
      content: { kind: 'fields_schema', fields: [{ name: 'a' }] },
    });
    expect(await codeOf(packOne({ name: 'a' }, rule))).toBe('bad_request');
    expect(await codeOf(packOne('a', rule))).toBe('bad_request');
  });

  test('ignore rules that are not objects', async () => {
    const { attachedCardIds } = await pack(
      { a: 1 },
      { handover: handoverOf({ pack_arguments: ['a', null, { arg_key: 'a' }] as never }) },
    );
    expect(attachedCardIds).toHaveLength(1);
  });

  test('must be an object of plain JSON', async () => {
    for (const args of [null, [], 'x', { a: 'NUL \u0000' }, { a: '\ud800' }, { a: 1n }, { a: new Date() }])
      expect(await codeOf(pack(args as never))).toBe('bad_request');
  });

  test('above the limits of the packer are too large', async () => {
    packer = new HandoverPacker({
      db: h.database.pool,
      limits: { maxInstructionBytes: 100, maxCardBytes: 200, maxContextCards: 2 },
    });
    const rules = (...names: string[]) => ({
      handover: handoverOf({
        pack_arguments: names.map((arg_key) => ({ arg_key, as_card_type: 'task.input' })),
      }),
    });
    const before = await count();
    expect(await codeOf(pack({ a: 'x'.repeat(200) }, rules('a')))).toBe('payload_too_large');
    expect(await codeOf(pack({ a: 1 }, rules('a', 'a', 'a')))).toBe('payload_too_large');
    expect(
      await codeOf(
        pack({ a: 'x'.repeat(100) }, { handover: handoverOf({ pack_arguments: [{ arg_key: 'a' }] }) }),
      ),
    ).toBe('payload_too_large');
    expect(await count()).toEqual(before);
  });
});

describe('inherited boxes', () => {
  test('keep their order, and the first occurrence of a card stays, across all boxes', async () => {
    const one = await boxOf(3);
    const mixed = await packer.createBox({
      projectId: 'default',
      sourceAgentId: OPERATOR,
      cards: [{ type: 't', content: { kind: 'text', text: 'new' } }],
      cardIds: [one.cardIds[1] as string, one.cardIds[1] as string],
    });
    const packed = await pack({ more: one.boxId, boxes: [mixed, one.boxId] });
    const [fresh] = await cardsOf(mixed);
    expect(packed.attachedCardIds).toEqual([fresh, one.cardIds[1], one.cardIds[0], one.cardIds[2]]);
    expect(await cardsOf(packed.contextBoxId)).toEqual(packed.attachedCardIds);
  });

  test('are named by text or number, alone or in a list, with dashes or as 32 digits', async () => {
    const { boxId, cardIds } = await boxOf(1);
    for (const name of [boxId, [boxId], boxId.replaceAll('-', ''), [boxId.toUpperCase()]])
      expect((await pack({ boxes: name })).attachedCardIds).toEqual(cardIds);
    expect((await pack({})).attachedCardIds).toEqual([]);
    expect((await pack({ boxes: [] })).attachedCardIds).toEqual([]);
  });

  test('that do not exist are not found, and neither is an id that is not valid', async () => {
    const { boxId } = await boxOf(1);
    const before = await count();
    for (const value of [newId<'box'>(), 'no-id', '', 42, [boxId, 42], [boxId, newId<'box'>()]])
      expect(await refusal(pack({ boxes: value }))).toMatchObject({
        code: 'not_found',
        details: { field: expect.stringContaining('arguments.boxes') },
      });
    expect(await count()).toEqual(before);
  });

  test('of a wrong type are a bad request, also in a list', async () => {
    const { boxId } = await boxOf(1);
    for (const value of [null, true, { id: boxId }, [boxId, null], [[boxId]], [boxId, false]])
      expect(await codeOf(pack({ boxes: value }))).toBe('bad_request');
  });

  test('can be a tape: the cards of all its entries, in order, as they are now', async () => {
    const { tapeId } = await agent();
    await h.worker();
    const { turn_id } = (await h.runtime.submit('delegate_async', {
      target_strategy: 'reuse',
      target_ref: (
        await h.rows<{ id: string }>("select id from boxcar.agents where name like 'expert-%'")
      )[0]?.id,
      instruction: 'again',
    })) as { turn_id: string };
    await h.runtime.waitForTurn(turn_id, { timeoutMs: 60_000 });
    const entries = await h.rows<{ card_id: CardId }>(
      'select card_id from boxcar.tape_entries where box_id = $1 and card_id is not null order by position',
      [tapeId],
    );
    expect(entries.length).toBeGreaterThan(2);
    const packed = await pack({ boxes: tapeId });
    expect(packed.attachedCardIds).toEqual(entries.map(({ card_id }) => card_id));
    // A view also shows the instructions of the turns.
    const shown = await cardsOf(packed.contextBoxId);
    expect(shown.filter((id) => packed.attachedCardIds.includes(id))).toEqual(packed.attachedCardIds);
    const asked = shown.filter((id) => !packed.attachedCardIds.includes(id));
    const types = await h.rows('select type from boxcar.cards where id = any ($1)', [asked]);
    expect(types).toEqual([{ type: 'task.instruction' }, { type: 'task.instruction' }]);
  });

  test('that inherit themselves are flattened: the same cards in the same order, with segments that refer to leaves', async () => {
    const [one, two] = [await boxOf(3), await boxOf(2)];
    const withParent = handoverOf({
      pack_arguments: [{ arg_key: 'instruction' }],
      inherit_context: { ...NAMES, include_parent: true },
    });
    const first = await pack(
      { instruction: 'first', boxes: [one.boxId, two.boxId] },
      { handover: withParent },
    );
    const second = await pack(
      { instruction: 'second', boxes: [two.boxId, first.contextBoxId] },
      { handover: withParent },
    );
    const third = await pack(
      { instruction: 'third', boxes: second.contextBoxId, more: one.boxId },
      { handover: withParent },
    );
    const own = (packed: typeof first) => packed.attachedCardIds[0] as CardId;
    const parent = (packed: typeof first) => packed.attachedCardIds.at(-1) as CardId;
    expect(third.attachedCardIds).toEqual([
      own(third),
      own(second),
      ...two.cardIds,
      own(first),
      ...one.cardIds,
      parent(first),
      parent(second),
      parent(third),
    ]);
    for (const { contextBoxId, attachedCardIds } of [first, second, third])
      expect(await cardsOf(contextBoxId)).toEqual(attachedCardIds);
    const [box] = await h.rows<{
      segments: { source?: string; count: number }[];
      card_ids: string[];
      card_count: number;
    }>('select segments, card_ids, card_count from boxcar.boxes where id = $1', [third.contextBoxId]);
    // The box has rows only for its own cards; the other cards are referenced and not copied.
    expect(box?.card_ids).toEqual([own(third), parent(third)]);
    expect(box?.card_count).toBe(third.attachedCardIds.length);
    expect(box?.segments.reduce((sum, segment) => sum + segment.count, 0)).toBe(box?.card_count);
    const leaves = new Set<string | undefined>([
      undefined,
      one.boxId,
      two.boxId,
      first.contextBoxId,
      second.contextBoxId,
    ]);
    for (const segment of box?.segments ?? []) expect(leaves.has(segment.source)).toBe(true);
  });

  test('of a thousand cards are complete, and consist only of references', async () => {
    const big = await boxOf(1_000);
    const before = await count();
    const packed = await pack({ boxes: big.boxId });
    expect(packed.attachedCardIds).toEqual(big.cardIds);
    expect(await cardsOf(packed.contextBoxId)).toEqual(big.cardIds);
    expect(await count()).toEqual({ ...before, boxes: (before.boxes ?? 0) + 1 });
    const [row] = await h.rows(
      'select cardinality(card_ids) as own, card_count from boxcar.boxes where id = $1',
      [packed.contextBoxId],
    );
    expect(row).toEqual({ own: 0, card_count: 1_000 });
  });
});

describe('the right to read', () => {
  test('is checked for the source agent: its own boxes, boxes it made, granted boxes, its profile; the operator reads all', async () => {
    const me = await agent();
    const other = await agent();
    const mine = await boxOf(1, me.agentId);
    const theirs = await boxOf(1, other.agentId);
    const profileBox = (await pack({})).targetProfileBoxId;
    const as = (sourceAgentId: string, boxId: string, access?: 'actor' | 'trusted') =>
      pack({ boxes: boxId }, { sourceAgentId, ...(access === undefined ? {} : { access }) });
    for (const boxId of [mine.boxId, me.tapeId, me.contextId, profileBox])
      expect((await as(me.agentId, boxId)).attachedCardIds.length).toBeGreaterThan(0);
    const before = await count();
    for (const boxId of [theirs.boxId, other.tapeId, other.contextId])
      expect(await refusal(as(me.agentId, boxId))).toMatchObject({
        code: 'box_not_authorized',
        details: { box_id: boxId, source_agent_id: me.agentId, field: 'arguments.boxes' },
      });
    expect(await codeOf(as(me.agentId, theirs.boxId, 'actor'))).toBe('box_not_authorized');
    expect(await codeOf(as(me.agentId, theirs.boxId, 'anything' as never))).toBe('box_not_authorized');
    expect(await count()).toEqual(before);
    for (const boxId of [theirs.boxId, other.tapeId, other.contextId])
      expect((await as(OPERATOR, boxId)).attachedCardIds.length).toBeGreaterThan(0);
    expect((await as(me.agentId, theirs.boxId, 'trusted')).attachedCardIds).toEqual(theirs.cardIds);
    await packer.grantBox({
      projectId: 'default',
      sourceAgentId: OPERATOR,
      boxId: theirs.boxId,
      grantee: me.agentId,
    });
    expect((await as(me.agentId, theirs.boxId)).attachedCardIds).toEqual(theirs.cardIds);
  });

  test('refuses the whole request because of one unreadable box among many', async () => {
    const me = await agent();
    const mine = await boxOf(2, me.agentId);
    const theirs = await boxOf(1);
    const before = await count();
    expect(await codeOf(pack({ boxes: [mine.boxId, theirs.boxId] }, { sourceAgentId: me.agentId }))).toBe(
      'box_not_authorized',
    );
    expect(await count()).toEqual(before);
  });

  test('never reaches into another project, with or without trust', async () => {
    const { boxId } = await boxOf(1);
    const other = newId<'project'>() as ProjectId;
    const operator = newId<'agent'>();
    await h.database.pool.query(
      'insert into boxcar.projects (id, name, operator_agent_id, bootstrap_card_id) select $1, $2, $3, bootstrap_card_id from boxcar.projects limit 1',
      [other, 'other', operator],
    );
    await h.database.pool.query(
      "insert into boxcar.agents (id, project_id, name) values ($1, $2, 'operator')",
      [operator, other],
    );
    await h.runtime.applyProfile(
      { name: 'expert', instructions: '', model: 'scripted', script: [{ say: 'x' }] },
      { projectId: 'other' },
    );
    for (const access of ['actor', 'trusted'] as const)
      expect(await codeOf(pack({ boxes: boxId }, { projectId: 'other', access }))).toBe('not_found');
    expect(await codeOf(pack({}, { projectId: 'nowhere' }))).toBe('not_found');
    expect(await codeOf(pack({}, { projectId: newId<'project'>() }))).toBe('not_found');
    expect(await codeOf(pack({}, { sourceAgentId: 'nobody' }))).toBe('not_found');
    // An agent of one project does not exist in another.
    const { agentId } = await agent();
    expect(await codeOf(pack({}, { projectId: 'other', sourceAgentId: agentId }))).toBe('not_found');
    expect((await pack({}, { projectId: other.replaceAll('-', '') })).attachedCardIds).toEqual([]);
  });
});

describe('grants', () => {
  const grant = (
    request: Partial<Parameters<HandoverPacker['grantBox']>[0]> & { boxId: string; grantee: string },
  ) => packer.grantBox({ projectId: 'default', sourceAgentId: OPERATOR, ...request });
  const reads = async (agentId: string, boxId: string): Promise<number | ErrorCode> => {
    try {
      return (await pack({ boxes: boxId }, { sourceAgentId: agentId })).attachedCardIds.length;
    } catch (error) {
      return (error as KernelError).code;
    }
  };
  const past = '2001-01-01T00:00:00Z';
  const future = '2999-01-01T00:00:00Z';

  test('hold until they end', async () => {
    const me = await agent();
    const { boxId } = await boxOf(1);
    await grant({ boxId, grantee: me.agentId, until: future });
    expect(await reads(me.agentId, boxId)).toBe(1);
    await grant({ boxId, grantee: me.agentId, until: new Date(past) });
    expect(await reads(me.agentId, boxId)).toBe('box_not_authorized');
  });

  test('to append do not allow reading', async () => {
    const me = await agent();
    const other = await agent();
    await grant({ boxId: other.tapeId, grantee: me.agentId, mode: 'append' });
    expect(await reads(me.agentId, other.tapeId)).toBe('box_not_authorized');
  });

  test('are given by agents that have the right themselves, and pass on no more than they have', async () => {
    const [me, you, she] = [await agent(), await agent(), await agent()];
    const pass = (rest: Partial<Parameters<HandoverPacker['grantBox']>[0]> = {}) =>
      grant({ boxId: she.tapeId, grantee: you.agentId, sourceAgentId: me.agentId, ...rest });
    expect(await codeOf(pass())).toBe('box_not_authorized');
    await h.database.pool.query(
      `insert into boxcar.grants (project_id, agent_id, box_id, mode, upto_position, expires_at, source)
       select project_id, $1, $2, 'read', 1, $3, 'test' from boxcar.agents where id = $1`,
      [me.agentId, she.tapeId, future],
    );
    expect(await codeOf(pass({ mode: 'append' }))).toBe('box_not_authorized');
    await pass();
    await pass({ until: '3000-01-01T00:00:00Z' });
    const [held] = await h.rows(
      'select mode, upto_position, expires_at from boxcar.grants where agent_id = $1',
      [you.agentId],
    );
    expect(held).toEqual({ mode: 'read', upto_position: 1, expires_at: new Date(future) });
    expect(await reads(you.agentId, she.tapeId)).toBe(1);
  });

  test('report an unknown target with its id, and a sealed box cannot get a right to append', async () => {
    const me = await agent();
    const { boxId } = await boxOf(1);
    const before = await count();
    expect(await codeOf(grant({ boxId: newId<'box'>(), grantee: me.agentId }))).toBe('not_found');
    expect(await codeOf(grant({ boxId, grantee: 'nobody' }))).toBe('not_found');
    expect(await codeOf(grant({ boxId: 'x', grantee: me.agentId }))).toBe('bad_request');
    expect(await codeOf(grant({ boxId, grantee: me.agentId, until: 'soon' }))).toBe('bad_request');
    expect(await codeOf(grant({ boxId, grantee: me.agentId, mode: 'append' }))).toBe('bad_request');
    expect(await count()).toEqual(before);
  });
});

describe('the parent pointer', () => {
  test('names the source agent by its id, whatever name the caller used', async () => {
    const me = await agent();
    const [{ name } = { name: '' }] = await h.rows<{ name: string }>(
      'select name from boxcar.agents where id = $1',
      [me.agentId],
    );
    const { attachedCardIds } = await pack(
      {},
      { sourceAgentId: name, handover: handoverOf({ inherit_context: { include_parent: true } }) },
    );
    expect(await stored(attachedCardIds[0])).toEqual([
      {
        type: 'meta.parent_pointer',
        role: 'system',
        content: { kind: 'json', data: { parent_agent_id: me.agentId } },
        metadata: { role: 'system' },
        author_id: 'my_tool',
      },
    ]);
  });
});

describe('the fixed recipe', () => {
  test('packs instruction, result fields, boxes and parent, in stored order', async () => {
    const one = await boxOf(2);
    const packed = await packer.packContextWithInstruction({
      ...base,
      profileName: 'expert',
      instruction: 'do it',
      inputBoxIds: [one.boxId],
      resultFields: [{ name: 'a' }],
    });
    const types = await Promise.all(packed.attachedCardIds.map(async (id) => (await stored(id))[0]?.type));
    expect(types).toEqual([
      'task.instruction',
      'task.result_fields',
      'task.context',
      'task.context',
      'meta.parent_pointer',
    ]);
    const bare = await packer.packContextWithInstruction({
      ...base,
      profileName: 'expert',
      instruction: { a: 1 },
    });
    expect(bare.attachedCardIds).toHaveLength(2);
    expect(await stored(bare.attachedCardIds[0])).toMatchObject([
      { content: { kind: 'json', data: { a: 1 } } },
    ]);
  });
});

describe('many packings at once', () => {
  test('succeed all or not at all', async () => {
    const one = await boxOf(1);
    const request = (boxes: unknown): PackRequest => ({
      ...base,
      arguments: { boxes },
      handover: handoverOf(),
    });
    const packed = await packer.packMany([request(one.boxId), request([]), request([one.boxId])]);
    expect(packed.map(({ attachedCardIds }) => attachedCardIds.length)).toEqual([1, 0, 1]);
    expect(new Set(packed.map(({ contextBoxId }) => contextBoxId)).size).toBe(3);
    const before = await count();
    expect(await codeOf(packer.packMany([request(one.boxId), request('x')]))).toBe('not_found');
    expect(await codeOf(packer.packMany([request(one.boxId), { ...request([]), projectId: 'other' }]))).toBe(
      'bad_request',
    );
    expect(await packer.packMany([])).toEqual([]);
    expect(await count()).toEqual(before);
  });
});

describe('a packing with a transaction of the caller', () => {
  test('is part of the transaction: visible inside, and gone after a rollback', async () => {
    const before = await count();
    const client = await h.database.pool.connect();
    try {
      await client.query('begin');
      const boxId = await packer.createBox({
        projectId: 'default',
        sourceAgentId: OPERATOR,
        cards: [{ type: 't', content: { kind: 'text', text: 'x' } }],
        tx: client,
      });
      const [cardId] = await packer.createCards({
        projectId: 'default',
        authorId: OPERATOR,
        cards: [{ type: 't', content: { kind: 'text', text: 'y' } }],
        tx: client,
      });
      const packed = await pack(
        { instruction: 'x', boxes: boxId },
        {
          tx: client,
          handover: handoverOf({ pack_arguments: [{ arg_key: 'instruction' }], inherit_context: NAMES }),
        },
      );
      expect(await cardsOf(packed.contextBoxId, client)).toEqual(packed.attachedCardIds);
      expect(packed.attachedCardIds).toHaveLength(2);
      expect(cardId).toBeDefined();
      expect(await codeOf(pack({ boxes: boxId }))).toBe('not_found');
      expect(await count()).toEqual(before);
      await client.query('rollback');
    } finally {
      client.release();
    }
    expect(await count()).toEqual(before);
  });

  test('stays after a commit', async () => {
    const client = await h.database.pool.connect();
    try {
      await client.query('begin');
      const packed = await pack(
        { a: 1 },
        { tx: client, handover: handoverOf({ pack_arguments: [{ arg_key: 'a' }] }) },
      );
      await client.query('commit');
      expect(await cardsOf(packed.contextBoxId)).toEqual(packed.attachedCardIds);
    } finally {
      client.release();
    }
  });
});

describe('the number of statements', () => {
  test('is the same for one box and for fifty, for one card and for a thousand, for one context and for many', async () => {
    const small = await boxOf(1);
    const big = await boxOf(1_000);
    const boxes: BoxId[] = [];
    for (let i = 0; i < 50; i++) boxes.push((await boxOf(2)).boxId);
    const cost = async (work: () => Promise<unknown>) => (await statementsOf(h.database, work)).length;
    const one = await cost(() => pack({ boxes: small.boxId }));
    expect(one).toBe(4);
    expect(await cost(() => pack({ boxes }))).toBe(one);
    expect(await cost(() => pack({ boxes: big.boxId }))).toBe(one);
    const many = Array.from({ length: 20 }, () => ({
      ...base,
      arguments: { boxes },
      handover: handoverOf(),
    }));
    expect(await cost(() => packer.packMany(many))).toBe(one);
  });
});

describe('a box made by hand', () => {
  test('lists new cards, then existing cards, each once', async () => {
    const [a, b] = await packer.createCards({
      projectId: 'default',
      authorId: OPERATOR,
      cards: [
        { type: 't', role: 'assistant', content: { kind: 'text', text: 'a' }, metadata: { n: 1 } },
        { type: 't', content: { kind: 'text', text: 'b' }, metadata: { role: 'system' } },
      ],
    });
    expect(await stored(a)).toMatchObject([{ role: 'assistant', metadata: { n: 1, role: 'assistant' } }]);
    expect(await stored(b)).toMatchObject([{ role: 'system', metadata: { role: 'system' } }]);
    const boxId = await packer.createBox({
      projectId: 'default',
      sourceAgentId: OPERATOR,
      cards: [{ type: 't', content: { kind: 'text', text: 'c' } }],
      cardIds: [b as string, a as string, (b as string).replaceAll('-', '')],
    });
    expect((await cardsOf(boxId)).slice(1)).toEqual([b, a]);
    const refused = packer.createCards({
      projectId: 'default',
      authorId: OPERATOR,
      cards: [{ type: 't', content: { kind: 'text', text: 'x' }, metadata: { role: 'robot' } }],
    });
    expect(await codeOf(refused)).toBe('bad_request');
  });

  test('takes only cards that its maker wrote or may read', async () => {
    const me = await agent();
    const [{ cardIds }, mine] = [await boxOf(2), await boxOf(1, me.agentId)];
    const make = (ids: readonly string[]) =>
      packer.createBox({ projectId: 'default', sourceAgentId: me.agentId, cardIds: ids });
    const before = await count();
    expect(await refusal(make([mine.cardIds[0] as string, cardIds[0] as string]))).toMatchObject({
      code: 'box_not_authorized',
      details: { card_id: cardIds[0], field: 'card_ids.1' },
    });
    expect(await codeOf(make([newId<'card'>()]))).toBe('not_found');
    expect(await codeOf(make(['x']))).toBe('bad_request');
    expect(await count()).toEqual(before);
    const shared = await packer.createBox({
      projectId: 'default',
      sourceAgentId: OPERATOR,
      cardIds: [cardIds[1] as string],
    });
    await packer.grantBox({
      projectId: 'default',
      sourceAgentId: OPERATOR,
      boxId: shared,
      grantee: me.agentId,
    });
    expect(await cardsOf(await make([cardIds[1] as string, mine.cardIds[0] as string]))).toEqual([
      cardIds[1],
      mine.cardIds[0],
    ]);
  });
});
