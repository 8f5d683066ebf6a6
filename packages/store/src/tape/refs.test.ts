import type { BoxId, WorkerId } from '@boxcar/kernel';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { forkChain } from '../testing/forks.js';
import { card, DEFAULT_PROJECT, newId, OPERATOR, type TestTurn, text, World } from '../testing/world.js';
import { commitSteps } from '../turn/commits.js';
import { appendEntries, type NewTapeEntry } from './appends.js';
import { findTapePlace, loadTapeSlice, type PlaceRequest } from './refs.js';

let world: World;
let holder: WorkerId;

beforeAll(async () => {
  world = await World.open();
  holder = await world.worker();
});

afterAll(() => world[Symbol.asyncDispose]());

const AS_OPERATOR = { projectId: DEFAULT_PROJECT, actorId: OPERATOR };
const entry = (words: string, anchorName: string | null = null): NewTapeEntry => ({
  kind: anchorName === null ? 'message' : 'anchor',
  card: card(text(words), { type: anchorName === null ? 'task.input' : 'tape.anchor' }),
  payload: null,
  anchorName,
  authorId: OPERATOR,
});
const append = async (boxId: BoxId, ...entries: readonly NewTapeEntry[]): Promise<number> => {
  const result = await appendEntries(world.pool, { ...AS_OPERATOR, boxId, dedupKey: newId(), entries });
  if (result.outcome !== 'appended') throw new Error(result.outcome);
  return result.head;
};
const place = (boxId: BoxId, rest: Omit<PlaceRequest, 'tape'> = {}) =>
  findTapePlace(world.pool, { tape: { id: boxId, name: '' }, ...rest }, AS_OPERATOR);
const slice = async (boxId: BoxId, anchor: number, to: number, from = anchor) =>
  (await loadTapeSlice(world.pool, { anchor, from, to }, { box_id: boxId, readable: '{[1,)}' })).map(
    ({ tape_id: _tape, ...row }) => row,
  );

/** A turn whose calls were open when an anchor was written, and the positions of its entries. */
async function workedOn(): Promise<{ turn: TestTurn; call: number; anchor: number; head: number }> {
  const turn = await world.submit({ profile: await world.profile(`p-${newId()}`) });
  await world.claim(turn, holder);
  const [call] = await world.call(turn, 1);
  const [row] = await world.rows<{ at: number }>(
    "select position as at from boxcar.tape_entries where box_id = $1 and kind = 'tool_call'",
    [turn.tapeId],
  );
  const anchor = await append(turn.tapeId, entry('open', 'phase'));
  if (call === undefined || row === undefined) throw new Error('no call');
  await commitSteps(world.pool, [
    await world.commit(turn, { step: 'none', results: [world.result(turn, call)] }),
  ]);
  const head = await append(turn.tapeId, entry('after'), entry('again', 'phase'), entry('last'));
  return { turn, call: row.at, anchor, head };
}

test('a place on a fork is the place on the flat tape, and reading from it gives the same entries', async () => {
  const { turn, head } = await workedOn();
  const [, , fork] = await forkChain(world.pool, turn.tapeId, [
    { at: 0, upto: 4, noise: 1 },
    { at: 3, upto: 6, noise: 2 },
    { at: 5, upto: head, noise: 0 },
  ]);
  if (fork === undefined) throw new Error('no fork');
  const asked = Array.from({ length: head }, (_, index) => index + 1).flatMap((position) => [
    { position },
    { head: position },
    { anchor: 'phase', head: position },
    { anchor: 'session/start', head: position },
  ]);
  for (const request of asked) {
    const [flat, forked] = await Promise.all([place(turn.tapeId, request), place(fork, request)]);
    const { position, start_position: start = null, from_position: from = null } = flat ?? {};
    expect(forked).toMatchObject({ position, start_position: start, from_position: from });
    if (position == null || start === null || from === null) continue;
    const to = request.head ?? position;
    expect(await slice(fork, start, to, from)).toEqual(await slice(turn.tapeId, start, to, from));
  }
});

test('a call is included with its result or left out, wherever a head or an anchor separates them', async () => {
  const { turn, call, anchor, head } = await workedOn();
  const open = async (from: number, to: number) =>
    (await slice(turn.tapeId, from, to)).filter(({ is_open }) => is_open).map(({ kind }) => kind);
  expect(await open(1, call)).toContain('tool_call');
  expect(await open(anchor, head)).toEqual(['tool_result']);
  expect(await open(1, head)).toEqual([]);
});

test('a head between the results of a step leaves out the calls that have no result before the head', async () => {
  const turn = await world.submit({ profile: await world.profile(`p-${newId()}`) });
  await world.claim(turn, holder);
  const calls = await world.call(turn, 3);
  await commitSteps(world.pool, [
    await world.commit(turn, { step: 'none', results: calls.map((call) => world.result(turn, call)) }),
  ]);
  const { head_position: head = 0 } = (await place(turn.tapeId)) ?? {};
  const last =
    (await slice(turn.tapeId, 1, head)).findLast(({ kind }) => kind === 'tool_call')?.position ?? 0;
  for (const count of [0, 1, 2, 3]) {
    const shown = (await slice(turn.tapeId, 1, last + count)).filter(({ is_open }) => !is_open);
    const kinds = shown.map(({ kind }) => kind);
    expect(kinds.filter((kind) => kind === 'tool_result')).toHaveLength(count);
    expect(kinds.filter((kind) => kind === 'tool_call')).toHaveLength(count);
  }
});

test('a view that still shows entries before its anchor is read from those entries, whether the anchor is the last or not', async () => {
  const { turn, call, anchor, head } = await workedOn();
  // The step whose calls were open when the anchor was written; the next anchor ends this.
  expect(await place(turn.tapeId)).toMatchObject({ start_position: head - 1, from_position: head - 1 });
  const open = await world.submit({ profile: await world.profile(`p-${newId()}`) });
  await world.claim(open, holder);
  const [pending] = await world.call(open, 1);
  const [first] = await world.rows<{ at: number }>(
    'select min(position) as at from boxcar.tape_entries where box_id = $1 and step = 1',
    [open.tapeId],
  );
  const cut = await append(open.tapeId, entry('open', 'phase'));
  if (pending === undefined) throw new Error('no call');
  await commitSteps(world.pool, [
    await world.commit(open, { step: 'none', results: [world.result(open, pending)] }),
  ]);
  expect(await place(open.tapeId)).toMatchObject({ start_position: cut, from_position: first?.at });
  // A compaction names the position itself.
  const compaction = { v: 1, keep_from: call, references: [], summary: null };
  const kept = {
    ...card({ kind: 'json', data: {} }, { type: 'tape.anchor' }),
    authorId: 'kernel',
    metadata: { compaction },
  };
  const compacted = await append(turn.tapeId, { ...entry('', 'auto'), card: kept });
  await append(turn.tapeId, entry('later', 'phase'));
  expect(await place(turn.tapeId, { position: compacted })).toMatchObject({
    start_position: compacted,
    from_position: call,
  });
  const shown = await slice(turn.tapeId, compacted, compacted, call);
  expect(shown.map(({ position }) => position)).toEqual(
    Array.from({ length: compacted - call + 1 }, (_, index) => call + index),
  );
  expect(shown.filter(({ is_open }) => is_open)).toEqual([]);
  expect(anchor).toBeGreaterThan(call);
});

test('the context of a turn that was under way when the anchor was written is reported; the context of a later or foreign turn is not', async () => {
  const { turn, anchor, head } = await workedOn();
  const [first] = await slice(turn.tapeId, anchor, head);
  expect(first?.early_context_box_id).toBe(turn.contextBoxId);
  const [again] = await slice(turn.tapeId, head - 1, head);
  expect(again?.early_context_box_id).toBeNull();
  const [whole] = await slice(turn.tapeId, 1, head);
  expect(whole?.early_context_box_id).toBeNull();
  // An entry that a turn of another tape has appended here.
  const other = await workedOn();
  const here = await world.submit({ profile: await world.profile(`p-${newId()}`) });
  const { tapeId } = here;
  await world.claim(here, holder);
  const at = await append(tapeId, entry('phase', 'phase'));
  await append(tapeId, { ...entry('from elsewhere'), turnId: other.turn.turnId, step: 1 });
  expect((await slice(tapeId, at, at + 1))[0]?.early_context_box_id).toBeNull();
});

test('a forked session is handed over from the beginning of its view, until it writes an anchor of its own', async () => {
  const { turn, head, anchor } = await workedOn();
  await world.rows('update boxcar.boxes set view_anchor_position = $2 where id = $1', [turn.tapeId, anchor]);
  expect(await place(turn.tapeId)).toMatchObject({ position: head, start_position: anchor });
  expect(await place(turn.tapeId, { anchor: 'phase' })).toMatchObject({ start_position: head - 1 });
  const next = await append(turn.tapeId, entry('new', 'phase/2'));
  expect(await place(turn.tapeId)).toMatchObject({ position: next, start_position: next });
});
