import type { AgentId, BoxId, EntryKind, WorkerId } from '@boxcar/kernel';
import fc from 'fast-check';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { expandContexts, findReadableCards, loadBoxes } from '../box/boxes.js';
import { loadSnapshots } from '../box/snapshots.js';
import { inspectBox } from '../report/box-report.js';
import { loadTurnRows } from '../report/explain.js';
import { inspectTurn } from '../report/inspect.js';
import { inspectInvariants } from '../report/invariants.js';
import { writeSubmission } from '../submit/submission.js';
import { emptySubmission } from '../submit/submission-rows.js';
import { appendEntries, type NewTapeEntry } from '../tape/appends.js';
import { findAnchor, loadEntries } from '../tape/entries.js';
import { type ForkStep, forkChain } from '../testing/forks.js';
import { card, DEFAULT_PROJECT, newId, OPERATOR, type TestTurn, text, World } from '../testing/world.js';
import { commitSteps } from '../turn/commits.js';
import { loadViews } from '../turn/views.js';

let world: World;
let holder: WorkerId;

beforeAll(async () => {
  world = await World.open();
  holder = await world.worker();
});

afterAll(() => world[Symbol.asyncDispose]());

const KINDS: readonly EntryKind[] = ['message', 'anchor', 'event'];
const ANCHORS = ['one', 'two'];

const said = (n: number): NewTapeEntry => {
  const kind = KINDS[n % KINDS.length] as EntryKind;
  return {
    kind,
    card:
      kind === 'event'
        ? null
        : card(text(`entry ${n}`), { type: kind === 'anchor' ? 'tape.anchor' : 'task.input' }),
    payload: kind === 'event' ? { name: n % 2 === 0 ? 'handoff' : 'other', data: { name: 'x' } } : null,
    anchorName: kind === 'anchor' ? (ANCHORS[n % ANCHORS.length] as string) : null,
    authorId: OPERATOR,
  };
};

interface History {
  readonly before: readonly number[];
  readonly after: readonly number[];
  /** Fractions at which each tape of the chain is forked and ends. */
  readonly chain: readonly { readonly at: number; readonly upto: number; readonly noise: number }[];
}

const histories: fc.Arbitrary<History> = fc.record({
  before: fc.array(fc.nat(11), { maxLength: 8 }),
  after: fc.array(fc.nat(11), { maxLength: 8 }),
  chain: fc.array(
    fc.record({
      at: fc.double({ min: 0, max: 1, noNaN: true }),
      upto: fc.double({ min: 0, max: 1, noNaN: true }),
      noise: fc.nat(2),
    }),
    {
      minLength: 1,
      maxLength: 5,
    },
  ),
});

async function append(boxId: BoxId, entries: readonly number[]): Promise<void> {
  if (entries.length === 0) return;
  const result = await appendEntries(world.pool, {
    boxId,
    projectId: DEFAULT_PROJECT,
    actorId: OPERATOR,
    dedupKey: newId(),
    entries: entries.map(said),
  });
  expect(result.outcome).toBe('appended');
}

/** A turn with steps and calls on a tape that has other writers too, and a chain of forks with the same content. */
async function make({
  before,
  after,
  chain,
}: History): Promise<{ turn: TestTurn; head: number; fork: BoxId }> {
  const profile = await world.profile(`p-${newId()}`);
  const turn = await world.submit({ profile });
  await append(turn.tapeId, before);
  await world.claim(turn, holder);
  const [call] = await world.call(turn, 1);
  await append(turn.tapeId, after);
  if (after.length % 2 === 0 && call !== undefined)
    await commitSteps(world.pool, [
      await world.commit(turn, { step: 'none', results: [world.result(turn, call)] }),
    ]);
  const [row] = await world.rows<{ head: number }>(
    'select head_position as head from boxcar.boxes where id = $1',
    [turn.tapeId],
  );
  const head = row?.head ?? 0;
  const steps: ForkStep[] = [];
  for (const [index, { at, upto, noise }] of [
    { at: 0, upto: chain[0]?.at ?? 0, noise: 1 },
    ...chain,
  ].entries()) {
    const most = steps.at(-1)?.upto ?? 0;
    const from = index === 0 ? 0 : Math.max(1, Math.round(at * most));
    const isLast = index === chain.length;
    steps.push({
      at: from,
      upto: isLast ? head : Math.max(1, from + Math.round(upto * (head - from))),
      noise,
    });
  }
  const boxes = await forkChain(world.pool, turn.tapeId, steps);
  return { turn, head, fork: boxes.at(-1) as BoxId };
}

/** Gives agent and turn another tape during the work, and then the old tape again. */
async function on<T>(turn: TestTurn, boxId: BoxId, contextBoxId: BoxId, work: () => Promise<T>): Promise<T> {
  const move = async (tape: BoxId, context: BoxId): Promise<void> => {
    await world.rows('update boxcar.turns set output_box_id = $2, context_box_id = $3 where id = $1', [
      turn.turnId,
      tape,
      context,
    ]);
    await world.rows('update boxcar.agents set tape_box_id = $2 where id = $1', [turn.agentId, tape]);
  };
  await move(boxId, contextBoxId);
  try {
    return await work();
  } finally {
    await move(turn.tapeId, turn.contextBoxId);
  }
}

/** Replaces box ids by names for the comparison, because results name the tape from which they were read. */
const blank = (value: unknown, boxId: BoxId, contextBoxId: BoxId): unknown =>
  JSON.parse(JSON.stringify(value).replaceAll(boxId, 'tape').replaceAll(contextBoxId, 'context'));

async function read(turn: TestTurn, boxId: BoxId, head: number): Promise<unknown> {
  const as = (actorId: AgentId) => ({ projectId: DEFAULT_PROJECT, actorId });
  const range = { from: 1 + (head % 3), to: head - (head % 2) };
  const context = newId<'box'>();
  await writeSubmission(world.pool, {
    ...emptySubmission(),
    contextBoxes: [
      {
        ...world.listedBox([], { id: context }),
        segments: [
          {
            rule: 'inherit',
            via: boxId,
            source: boxId,
            ...range,
            skip: [range.from + 1],
            count: 0,
            tokens: 0,
          },
        ],
      },
    ],
  });
  const limit = { ...range, limit: 3 };
  const entries = await Promise.all([
    loadEntries(world.pool, boxId, range),
    loadEntries(world.pool, boxId, limit),
    loadEntries(world.pool, boxId, { ...limit, edge: 'newest' }),
    loadEntries(world.pool, boxId, { ...limit, kinds: ['message', 'anchor'] }),
    loadEntries(world.pool, boxId, { ...limit, kinds: ['event'], edge: 'newest' }),
    loadEntries(world.pool, boxId, { ...range, kinds: ['anchor'], since: '2000-01-01T00:00:00Z' }),
  ]);
  const cards = entries.flat().flatMap((entry) => (entry.card === null ? [] : [entry.card.id]));
  return on(turn, boxId, context, async () => {
    const views = await loadViews(world.pool, [turn]);
    const box = (await loadBoxes(world.pool, [boxId], as(OPERATOR))).get(boxId);
    const { context: listed } = await inspectTurn(world.pool, turn.turnId, { project: 'default' });
    const rows = await loadTurnRows(world.pool, turn.turnId, {
      project: 'default',
      choose: (_turn, steps) => steps,
    });
    return blank(
      {
        entries: entries.map((found) => found.map(({ boxId: _boxId, ...entry }) => entry)),
        anchors: await Promise.all(
          ANCHORS.flatMap((name) => [
            findAnchor(world.pool, boxId, name, { from: 1, to: head, edge: 'latest' }),
            findAnchor(world.pool, boxId, name, { from: 3, to: head, edge: 'first' }),
          ]),
        ),
        view: { ...views.get(turn.turnId), contexts: [...(views.get(turn.turnId)?.contexts ?? [])] },
        packed: { ...box, createdAt: null },
        expanded: (await expandContexts(world.pool, [context])).get(context),
        snapshots: await loadSnapshots(
          world.pool,
          [true, false].map((isFull) => ({ agentId: turn.agentId, isFull })),
          as(turn.agentId),
        ),
        readable: [...(await findReadableCards(world.pool, cards, as(turn.agentId)))].sort(),
        report: (await inspectBox(world.pool, boxId, { project: 'default', after: 1, limit: 5 })).entries,
        listed,
        explained: { ...rows, contexts: [...rows.contexts], cuts: [...rows.cuts], boxes: null, rights: null },
      },
      boxId,
      context,
    );
  });
}

describe('a fork', () => {
  test('of any depth is read like the flat tape, by every reader', async () => {
    await fc.assert(
      fc.asyncProperty(histories, async (history) => {
        const { turn, head, fork } = await make(history);
        expect(await read(turn, fork, head)).toEqual(await read(turn, turn.tapeId, head));
      }),
      { numRuns: 8 },
    );
    const broken = (await inspectInvariants(world.pool)).filter(({ name }) =>
      ['tape-gapless', 'fork-line'].includes(name),
    );
    expect(broken.map(({ name, state, broken: what }) => ({ name, state, what }))).toEqual([
      { name: 'tape-gapless', state: 'holds', what: [] },
      { name: 'fork-line', state: 'holds', what: [] },
    ]);
  });
});
