import { LAST_ANCHOR } from '@boxcar/kernel';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { type Harness, harness } from '../testing/harness.js';

let h: Harness;
let n = 0;
const fresh = (): string => `tape-${++n}`;

beforeAll(async () => {
  h = await harness();
});

afterAll(() => h[Symbol.asyncDispose]());

test('a tape of a new name begins with its bootstrap, and is the same tape the next time', async () => {
  const name = fresh();
  const tape = await h.runtime.tape(name);
  expect(await tape.anchors()).toMatchObject([
    { position: 1, name: 'session/start', state: { owner: 'human' } },
  ]);
  expect((await h.runtime.tape(name)).boxId).toBe(tape.boxId);
  expect(await tape.info()).toMatchObject({
    name,
    entries: 2,
    anchors: 1,
    last_anchor: 'session/start',
    entries_since_last_anchor: 1,
    last_token_usage: null,
  });
  await expect(h.runtime.tape(fresh(), { create: false })).rejects.toMatchObject({ code: 'not_found' });
});

test('a handoff writes its anchor and its event behind each other, at the positions it returns', async () => {
  const tape = await h.runtime.tape(fresh());
  expect(await tape.append([{ kind: 'message', content: 'hello' }])).toEqual({
    first: 3,
    last: 3,
    isRepeated: false,
  });
  expect(await tape.handoff('phase/one', { state: { summary: 'done' } })).toEqual({
    anchor: 4,
    event: 5,
    isRepeated: false,
  });
  expect(await tape.anchors()).toMatchObject([
    { name: 'session/start' },
    { position: 4, name: 'phase/one', state: { summary: 'done' } },
  ]);
  expect(await tape.info()).toMatchObject({
    entries: 5,
    anchors: 2,
    last_anchor: 'phase/one',
    entries_since_last_anchor: 1,
  });
  expect(await tape.fromLastAnchor()).toMatchObject([
    {
      position: 5,
      kind: 'event',
      payload: { name: 'handoff', data: { name: 'phase/one', state: { summary: 'done' } } },
    },
  ]);
  void LAST_ANCHOR;
});

test('an append at a head that has moved changes nothing and says the real head', async () => {
  const tape = await h.runtime.tape(fresh());
  await tape.append([{ kind: 'message', content: 'one' }], { expectedHead: 2 });
  await expect(tape.append([{ kind: 'message', content: 'two' }], { expectedHead: 2 })).rejects.toMatchObject(
    {
      code: 'tape_conflict',
      details: { head: 3 },
    },
  );
  expect((await tape.info()).entries).toBe(3);
});

test('an append under a key is made once, whoever is first', async () => {
  const tape = await h.runtime.tape(fresh());
  const answers = await Promise.all(
    Array.from({ length: 4 }, () =>
      tape.append(
        [
          { kind: 'message', content: 'x' },
          { kind: 'event', name: 'e' },
        ],
        { dedupKey: 'k' },
      ),
    ),
  );
  expect(answers.map(({ first, last }) => [first, last])).toEqual([
    [3, 4],
    [3, 4],
    [3, 4],
    [3, 4],
  ]);
  expect(answers.filter(({ isRepeated }) => !isRepeated)).toHaveLength(1);
});

test('four writers of 25 appends each leave 100 consecutive positions', async () => {
  const tape = await h.runtime.tape(fresh());
  const handles = await Promise.all(Array.from({ length: 4 }, () => h.runtime.tape({ box: tape.boxId })));
  const firsts = await Promise.all(
    handles.map(async (handle, writer) => {
      const mine: number[] = [];
      for (let i = 0; i < 25; i += 1)
        mine.push((await handle.append([{ kind: 'message', content: `${writer}.${i}` }])).first);
      return mine;
    }),
  );
  for (const mine of firsts) expect(mine).toEqual(mine.toSorted((a, b) => a - b));
  expect(firsts.flat().toSorted((a, b) => a - b)).toEqual(Array.from({ length: 100 }, (_, i) => i + 3));
  expect((await tape.info()).entries).toBe(102);
});
