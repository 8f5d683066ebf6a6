import type { CardId, WorkerId } from '@boxcar/kernel';
import { afterAll, beforeAll, beforeEach, expect, test } from 'vitest';
import { card, type TestTurn, text, World } from '../testing/world.js';
import { type MidStep, writeMidStep } from './mid-step.js';

const NAME = 'auto_handoff/context_overflow';

let world: World;
let holder: WorkerId;
let turn: TestTurn;

beforeAll(async () => {
  world = await World.open();
  holder = await world.worker({ concurrency: 100 });
});
afterAll(() => world[Symbol.asyncDispose]());
beforeEach(async () => {
  const [known] = await world.rows<{ n: number }>('select count(*)::int as n from boxcar.profiles');
  turn = await world.running({ profile: await world.profile(`writer ${known?.n}`), holder });
});

/** A handoff at position 4, after the bootstrap and the start of the turn. */
function handoff(rest: Partial<MidStep> = {}): MidStep {
  return {
    turnId: turn.turnId,
    epoch: 1,
    holderId: holder,
    headPosition: 3,
    entries: [
      { kind: 'anchor', card: card(text('state'), { type: 'tape.anchor' }), anchorName: NAME },
      { kind: 'event', payload: { name: 'handoff', data: { name: NAME } } },
    ],
    viewFrom: null,
    ...rest,
  };
}

const tapeRow = async () =>
  (
    await world.rows(
      'select head_position, last_anchor_position, view_position, anchor_count from boxcar.boxes where id = $1',
      [turn.tapeId],
    )
  )[0];
const attempts = () =>
  world.rows(
    `select attempt, from_position, to_position, error->>'code' as code from boxcar.steps where turn_id = $1 order by attempt`,
    [turn.turnId],
  );

test('an anchor moves the view of the open step, and the attempt stays the same', async () => {
  expect(await writeMidStep(world.pool, handoff())).toEqual({ outcome: 'written', attempt: 1 });
  expect(await tapeRow()).toEqual({
    head_position: 5,
    last_anchor_position: 4,
    view_position: 4,
    anchor_count: 2,
  });
  expect(await attempts()).toEqual([{ attempt: 1, from_position: 4, to_position: 5, code: null }]);
});

test('a failed attempt is closed with its error, and the next attempt is open on the new view', async () => {
  const { step } = await world.commit(turn);
  if (step === null) throw new Error('no step');
  const error = { code: 'context_overflow', message: 'too long' };
  const item = handoff({ viewFrom: 3, failed: { ...step, thoughtCardId: null, usage: null, error } });
  expect(await writeMidStep(world.pool, item)).toEqual({ outcome: 'written', attempt: 2 });
  expect(await attempts()).toEqual([
    { attempt: 1, from_position: 1, to_position: 3, code: 'context_overflow' },
    { attempt: 2, from_position: 3, to_position: 5, code: null },
  ]);
  // A repetition after a lost answer.
  expect(await writeMidStep(world.pool, item)).toEqual({ outcome: 'written', attempt: 2 });
  expect(await attempts()).toHaveLength(2);
  expect(await tapeRow()).toMatchObject({ head_position: 5, anchor_count: 2 });
});

test('the same write, twice at once, happens once', async () => {
  const item = handoff();
  const outcomes = await Promise.all([writeMidStep(world.pool, item), writeMidStep(world.pool, item)]);
  expect(outcomes).toEqual([
    { outcome: 'written', attempt: 1 },
    { outcome: 'written', attempt: 1 },
  ]);
  expect(await tapeRow()).toMatchObject({ head_position: 5, anchor_count: 2 });
});

test('a notice does not move the anchor', async () => {
  const notice = handoff({ entries: [{ kind: 'message', card: card(text('nearly full')) }] });
  const { viewFrom: _none, ...item } = notice;
  expect(await writeMidStep(world.pool, item)).toEqual({ outcome: 'written', attempt: 1 });
  expect(await tapeRow()).toMatchObject({ head_position: 4, last_anchor_position: 1, view_position: 1 });
});

test('on a tape that has grown, the entries are written as the caller then decides, once', async () => {
  const item = handoff();
  const asked: number[] = [];
  const late = {
    ...item,
    headPosition: 2,
    ifGrown: (lastAnchorPosition: number) => {
      asked.push(lastAnchorPosition);
      return { entries: item.entries, viewFrom: 3 };
    },
  };
  expect(await writeMidStep(world.pool, late)).toEqual({ outcome: 'written', attempt: 1 });
  const written = { head_position: 5, last_anchor_position: 4, view_position: 3, anchor_count: 2 };
  expect(await tapeRow()).toEqual(written);
  expect(await attempts()).toEqual([{ attempt: 1, from_position: 3, to_position: 5, code: null }]);
  // A repetition after a lost answer.
  expect(await writeMidStep(world.pool, late)).toEqual({ outcome: 'written', attempt: 1 });
  expect(await tapeRow()).toEqual(written);
  expect(asked).toEqual([1, 4]);
  const exact = { ...late, headPosition: 5, entries: handoff().entries, ifGrown: () => expect.unreachable() };
  expect(await writeMidStep(world.pool, exact)).toMatchObject({ outcome: 'written' });
});

test.each([
  ['a tape that has grown', 'moved', { headPosition: 2 }],
  ['another epoch', 'fenced', { epoch: 2 }],
  ['another worker', 'fenced', { holderId: '00000000-0000-7000-9000-0000000fffff' as WorkerId }],
] as const)('nothing is written for %s', async (_name, outcome, rest) => {
  const before = await tapeRow();
  const item = handoff(rest);
  expect(await writeMidStep(world.pool, item)).toEqual({ outcome });
  expect(await tapeRow()).toEqual(before);
  const id = item.entries[0]?.card?.id as CardId;
  expect(await world.count('cards', `id = '${id}'`)).toBe(0);
});
