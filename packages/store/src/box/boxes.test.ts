import type { AgentId, BoxId, CardId, NewCard, Segment, WorkerId } from '@boxcar/kernel';
import { beforeEach, describe, expect, test } from 'vitest';
import { writeSubmission } from '../submit/submission.js';
import { emptySubmission, type NewContextBox } from '../submit/submission-rows.js';
import {
  card,
  DEFAULT_PROJECT,
  newId,
  OPERATOR,
  type TestProfile,
  type TestTurn,
  text,
  World,
} from '../testing/world.js';
import { commitSteps } from '../turn/commits.js';
import { recordResults } from '../turn/tool-calls.js';
import {
  expandContexts,
  findCards,
  findContextBoxes,
  findReadableCards,
  type LoadedBox,
  loadBoxes,
} from './boxes.js';
import { loadSnapshots } from './snapshots.js';

let world: World;
let profile: TestProfile;
let holder: WorkerId;

beforeEach(async () => {
  world = await World.open();
  profile = await world.profile('writer');
  holder = await world.worker();
  return () => world[Symbol.asyncDispose]();
});

async function write(cards: readonly NewCard[], ...contextBoxes: NewContextBox[]): Promise<void> {
  await writeSubmission(world.pool, { ...emptySubmission(), cards: [...cards], contextBoxes });
}

const cards = (...words: string[]): NewCard[] => words.map((word) => card(text(word)));
const ids = (of: readonly { id: CardId }[]): CardId[] => of.map(({ id }) => id);

/** A box of these own cards and segments, as packing makes it. */
const boxOf = (own: readonly NewCard[], segments: readonly Segment[], maker = OPERATOR): NewContextBox => ({
  ...world.listedBox(own, { maker }),
  segments,
});
const seg = (part: Partial<Segment> & Pick<Segment, 'from' | 'to'>): Segment => ({
  rule: 'inherit',
  count: 0,
  tokens: 0,
  ...part,
});

const load = async (boxId: BoxId, actorId: AgentId = OPERATOR): Promise<LoadedBox> => {
  const box = (await loadBoxes(world.pool, [boxId], { projectId: DEFAULT_PROJECT, actorId })).get(boxId);
  if (box === undefined) throw new Error(`no box ${boxId}`);
  return box;
};
const idsOf = (box: LoadedBox): CardId[] => box.ranges.flatMap((range) => range.cardIds);
const expanded = async (boxId: BoxId): Promise<CardId[]> =>
  ((await expandContexts(world.pool, [boxId])).get(boxId) ?? []).map((item) => item.card.id);

async function grant(
  agentId: AgentId,
  boxId: BoxId,
  options: { mode?: 'read' | 'append'; upto?: number; expiresAt?: string } = {},
): Promise<void> {
  await world.pool.query(
    'insert into boxcar.grants (project_id, agent_id, box_id, mode, upto_position, expires_at, source) values ($1, $2, $3, $4, $5, $6, $7)',
    [
      DEFAULT_PROJECT,
      agentId,
      boxId,
      options.mode ?? 'read',
      options.upto ?? null,
      options.expiresAt ?? null,
      OPERATOR,
    ],
  );
}

/** A finished turn: start, thought, end. */
async function finished(): Promise<TestTurn> {
  const turn = await world.running({ profile, holder });
  await commitSteps(world.pool, [await world.commit(turn, { says: 'thought' })]);
  await commitSteps(world.pool, [await world.commit(turn, { says: 'done', end: 'success' })]);
  return turn;
}

describe('a box', () => {
  test('has its own cards, parts of other boxes and parts of tapes, in segment order, without the skipped cards', async () => {
    const leafCards = cards('a', 'b', 'c', 'd');
    const leaf = world.listedBox(leafCards);
    const turn = await finished();
    const tapeCards = (await world.entries(turn)).flatMap(({ card_id }) => card_id ?? []);
    const own = cards('first', 'last');
    const box = boxOf(own, [
      seg({ rule: 'pack_arguments', from: 1, to: 1 }),
      seg({ source: leaf.id, from: 2, to: 4, skip: [3] }),
      seg({ source: turn.tapeId, from: 1, to: 4, native: true, rule: 'snapshot' }),
      seg({ source: leaf.id, from: 1, to: 1 }),
      seg({ rule: 'parent', from: 2, to: 2 }),
    ]);
    await write([...leafCards, ...own], leaf, box);
    const [a, b, , d] = ids(leafCards);
    const [first, last] = ids(own);
    // Positions 2 and 3 of the tape are events; position 5 is after the range.
    const expectedIds = [first, b, d, tapeCards[0], tapeCards[1], a, last];
    expect(await expanded(box.id)).toEqual(expectedIds);
    const loaded = await load(box.id);
    expect(idsOf(loaded)).toEqual(expectedIds);
    expect(
      loaded.ranges.map(({ source, from, to, skip, positions, native }) => [
        source,
        from,
        to,
        skip,
        positions,
        native,
      ]),
    ).toEqual([
      [box.id, 1, 1, [], [1], false],
      [leaf.id, 2, 4, [3], [2, 4], false],
      [turn.tapeId, 1, 4, [], [1, 4], true],
      [leaf.id, 1, 1, [], [1], false],
      [box.id, 2, 2, [], [2], false],
    ]);
    expect(loaded.ranges.flatMap(({ tokens }) => tokens)).toHaveLength(expectedIds.length);
    expect(
      (await expandContexts(world.pool, [box.id])).get(box.id)?.map(({ rule, native }) => [rule, native]),
    ).toEqual([
      ['pack_arguments', false],
      ['inherit', false],
      ['inherit', false],
      ['snapshot', true],
      ['snapshot', true],
      ['inherit', false],
      ['parent', false],
    ]);
  });

  test('that is a tape has the cards of all its entries, with their stored token counts', async () => {
    const turn = await finished();
    const loaded = await load(turn.tapeId);
    const entries = (await world.entries(turn)).filter(({ card_id }) => card_id !== null);
    expect(loaded).toMatchObject({
      kind: 'tape',
      ranges: [{ source: turn.tapeId, from: 1, to: 5, skip: [] }],
    });
    expect(idsOf(loaded)).toEqual(entries.map(({ card_id }) => card_id));
    expect(loaded.ranges[0]?.positions).toEqual(entries.map(({ position }) => position));
    expect(loaded.ranges[0]?.tokens.every((tokens) => tokens > 0)).toBe(true);
  });

  test('without a segment is empty, and so is a box that does not exist', async () => {
    const box = boxOf([], []);
    await write([], box);
    expect(await load(box.id)).toMatchObject({ kind: 'context', ranges: [] });
    expect(await expanded(box.id)).toEqual([]);
    expect(
      (await loadBoxes(world.pool, [newId<'box'>()], { projectId: DEFAULT_PROJECT, actorId: OPERATOR })).size,
    ).toBe(0);
    expect((await loadBoxes(world.pool, [], { projectId: DEFAULT_PROJECT, actorId: OPERATOR })).size).toBe(0);
    expect((await expandContexts(world.pool, [])).size).toBe(0);
  });

  test('of a thousand cards is read in order, in one statement with other boxes', async () => {
    const many = cards(...Array.from({ length: 1_000 }, (_none, index) => `card ${index}`));
    const big = world.listedBox(many);
    const small = world.listedBox(many.slice(0, 1));
    await write(many, big, small);
    expect(idsOf(await load(big.id))).toEqual(ids(many));
    const both = await expandContexts(world.pool, [small.id, big.id, small.id]);
    expect(both.get(big.id)?.map((item) => item.card.id)).toEqual(ids(many));
    expect(both.get(small.id)).toHaveLength(1);
  });
});

describe('the right to read a box', () => {
  test('belongs to its owner, its maker and the operator, and to no other agent', async () => {
    const [owner, maker, stranger] = [await finished(), await finished(), await finished()].map(
      ({ agentId }) => agentId,
    ) as [AgentId, AgentId, AgentId];
    const box = { ...boxOf([], [], maker), ownerAgentId: owner };
    await write([], box);
    for (const actor of [owner, maker, OPERATOR])
      expect(await load(box.id, actor)).toMatchObject({ isReadable: true, isOwn: true });
    expect(await load(box.id, stranger)).toMatchObject({ isReadable: false, isOwn: false, readGrant: null });
    expect(await load(box.id, newId<'agent'>())).toMatchObject({ isReadable: false });
  });

  test('includes the profile and the tape of the agent itself, and of no other agent', async () => {
    const turn = await finished();
    const other = await world.profile('other');
    expect(await load(profile.boxId, turn.agentId)).toMatchObject({ isReadable: true });
    expect(await load(turn.tapeId, turn.agentId)).toMatchObject({ isReadable: true });
    expect(await load(other.boxId, turn.agentId)).toMatchObject({ isReadable: false });
    expect(await load((await finished()).tapeId, turn.agentId)).toMatchObject({ isReadable: false });
  });

  test('through a grant lasts until the grant ends, reaches up to its position, and is not included in a right to append', async () => {
    const { tapeId } = await finished();
    const reader = (await finished()).agentId;
    await grant(reader, tapeId, { mode: 'append' });
    expect(await load(tapeId, reader)).toMatchObject({
      isReadable: false,
      appendGrant: { upto: null, until: null },
    });
    await grant(reader, tapeId, { upto: 4, expiresAt: '2999-01-01' });
    const bounded = await load(tapeId, reader);
    expect(bounded).toMatchObject({ isReadable: true, isOwn: false, readGrant: { upto: 4 } });
    expect(bounded.ranges).toMatchObject([{ from: 1, to: 4, positions: [1, 4] }]);
    expect((await load(tapeId)).ranges).toMatchObject([{ to: 5, positions: [1, 4, 5] }]);
    await world.pool.query("update boxcar.grants set expires_at = '2001-01-01' where mode = 'read'");
    expect(await load(tapeId, reader)).toMatchObject({ isReadable: false, readGrant: null });
  });

  test('is checked within the project: a box of another project does not exist', async () => {
    const { projectId, operatorId } = await world.project('other');
    const foreign = { ...world.listedBox([], { projectId }), makerAgentId: operatorId };
    await write([], foreign);
    const find = async (options: Parameters<typeof loadBoxes>[2]) =>
      (await loadBoxes(world.pool, [foreign.id], options)).size;
    expect(await find({ projectId: DEFAULT_PROJECT, actorId: OPERATOR })).toBe(0);
    expect(await find({ projectId, actorId: operatorId })).toBe(1);
    expect(
      (await loadBoxes(world.pool, [foreign.id], { projectId, actorId: OPERATOR })).get(foreign.id),
    ).toMatchObject({
      isReadable: false,
    });
    const { tapeId } = await finished();
    const found = (project: typeof projectId, actorId: typeof OPERATOR) =>
      findContextBoxes(world.pool, [foreign.id, tapeId], { projectId: project, actorId }).then((boxes) => [
        ...boxes,
      ]);
    expect(await found(projectId, operatorId)).toEqual([[foreign.id, { isReadable: true }]]);
    expect(await found(projectId, OPERATOR)).toEqual([[foreign.id, { isReadable: false }]]);
    expect(await found(DEFAULT_PROJECT, OPERATOR)).toEqual([]);
  });
});

describe('cards', () => {
  test('are found within their project, with author and tokens', async () => {
    const { projectId } = await world.project('other');
    const [mine] = cards('mine') as [NewCard];
    const foreign = card(text('foreign'), { projectId });
    await write([mine, foreign]);
    const found = await findCards(world.pool, [mine.id, foreign.id, newId<'card'>()], DEFAULT_PROJECT);
    expect([...found]).toEqual([[mine.id, { id: mine.id, tokens: mine.tokenEstimate, authorId: OPERATOR }]]);
  });

  test('can be read through a readable box that shows them', async () => {
    const reader = await finished();
    const [own, granted, hidden, skipped, deep] = cards('own', 'granted', 'hidden', 'skipped', 'deep') as [
      NewCard,
      NewCard,
      NewCard,
      NewCard,
      NewCard,
    ];
    const ownBox = world.listedBox([own], { maker: reader.agentId });
    const leaf = world.listedBox([skipped, deep]);
    const grantedBox = boxOf(
      [granted],
      [seg({ from: 1, to: 1 }), seg({ source: leaf.id, from: 1, to: 2, skip: [1] })],
    );
    const hiddenBox = world.listedBox([hidden]);
    await write([own, granted, hidden, skipped, deep], ownBox, leaf, grantedBox, hiddenBox);
    await grant(reader.agentId, grantedBox.id);
    const others = await finished();
    await grant(reader.agentId, others.tapeId, { upto: 4 });
    const tape = (await world.entries(others)).flatMap(({ card_id }) => card_id ?? []);
    const asked = [...ids([own, granted, hidden, skipped, deep]), ...tape];
    const readable = await findReadableCards(world.pool, asked, {
      projectId: DEFAULT_PROJECT,
      actorId: reader.agentId,
    });
    expect([...readable].sort()).toEqual([own.id, granted.id, deep.id, tape[0], tape[1]].sort());
    expect(
      (await findReadableCards(world.pool, [], { projectId: DEFAULT_PROJECT, actorId: OPERATOR })).size,
    ).toBe(0);
  });
});

describe('a snapshot of an agent’s view', () => {
  const snapshot = (turn: TestTurn, actorId: AgentId, isFull = false) =>
    loadSnapshots(world.pool, [{ agentId: turn.agentId, isFull }], {
      projectId: DEFAULT_PROJECT,
      actorId,
    }).then(([entries = []]) => entries);

  test('names its entries and the context of each turn, and marks the unanswered calls', async () => {
    const turn = await world.running({ profile, holder });
    const [callId] = await world.call(turn, 1);
    const kinds = async () =>
      (await snapshot(turn, turn.agentId)).map(({ position, kind, is_open, context_box_id }) => [
        position,
        kind,
        is_open,
        context_box_id,
      ]);
    expect(await kinds()).toEqual([
      [1, 'anchor', false, null],
      [2, 'event', false, null],
      [3, 'event', false, turn.contextBoxId],
      [4, 'message', true, null],
      [5, 'tool_call', true, null],
    ]);
    await recordResults(world.pool, [world.result(turn, callId ?? newId<'tool_call'>())]);
    expect((await kinds()).slice(3)).toEqual([
      [4, 'message', false, null],
      [5, 'tool_call', false, null],
      [6, 'tool_result', false, null],
    ]);
  });

  test('is for the agent, for the agent that launched it, for agents with a grant on its tape, and for the operator', async () => {
    const parent = await finished();
    const turn = await world.running({ profile, holder, parent });
    const stranger = (await finished()).agentId;
    for (const actor of [turn.agentId, parent.agentId, OPERATOR]) {
      const entries = await snapshot(turn, actor);
      expect(entries).toHaveLength(3);
      expect(entries[0]).toMatchObject({ is_readable: true, tape_id: turn.tapeId });
    }
    expect(await snapshot(turn, stranger)).toMatchObject([{ is_readable: false, position: null }]);
    await grant(stranger, turn.tapeId, { upto: 2 });
    expect((await snapshot(turn, stranger)).map(({ position }) => position)).toEqual([1, 2]);
  });

  test('of an agent of another project does not exist', async () => {
    const turn = await finished();
    const { projectId, operatorId } = await world.project('other');
    expect(
      await loadSnapshots(world.pool, [{ agentId: turn.agentId, isFull: false }], {
        projectId,
        actorId: operatorId,
      }),
    ).toEqual([[]]);
  });
});
