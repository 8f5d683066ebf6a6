/** Questions about a turn with a large context. The tests count the work between two turns of the event loop. */
import type { Select, TurnId } from '@boxcar/kernel';
import pg from 'pg';
import { afterAll, beforeAll, expect, test, vi } from 'vitest';
import { z } from 'zod';
import { SLICE_CHARACTERS } from '../lib/in-slices.js';
import { type Harness, harness } from '../testing/harness.js';

const CARDS = 1_200;
const LOOKS = 3;

let h: Harness;
let turnId: TurnId;
/** Called for each prompt that is built. */
let onBuilt: () => void = () => undefined;

/** A short prompt that needs the whole context to be built. */
const tape: Select = (entries) => {
  onBuilt();
  const own = entries.filter(({ place }) => place === 'tape').flatMap(({ messages }) => messages);
  return [{ role: 'user', content: 'Only what was done.' }, ...own];
};

beforeAll(async () => {
  h = await harness();
  h.runtime.registerSelector('tape', { version: 1, select: tape });
  h.runtime.registerTool({
    name: 'look',
    description: 'Looks.',
    input: z.strictObject({}),
    isReadOnly: true,
    run: () => ({ seen: 'a cat' }),
  });
  const looks = Array.from({ length: LOOKS }, () => ({ calls: [{ tool: 'look', arguments: {} }] }));
  await h.profile('reader', [...looks, { say: 'ok' }], { tools: ['look'], view: { selector: 'tape' } });
  const notes = Array.from({ length: CARDS }, (_none, at) => ({
    type: 'note',
    content: { kind: 'text', text: `note ${at}` },
  }));
  const box = (await h.runtime.submit('create_box', { cards: notes })) as { box_id: string };
  await h.worker();
  const launched = await h.runtime.submit('launch_principal', {
    profile_name: 'reader',
    instruction: 'Read.',
    context_box_id: box.box_id,
  });
  turnId = (launched as { turn_id: TurnId }).turn_id;
  expect(await h.runtime.waitForTurn(turnId, { timeoutMs: 60_000 })).toMatchObject({ status: 'success' });
});
afterAll(() => h[Symbol.asyncDispose]());

/** Counts units of work: all of them, and the most between two turns of the event loop. */
function countUnits() {
  const counted = { all: 0, most: 0, add, stop: () => clearImmediate(next) };
  let sinceTurn = 0;
  const turn = (): void => {
    sinceTurn = 0;
    next = setImmediate(turn);
  };
  let next = setImmediate(turn);
  function add(): void {
    counted.all += 1;
    sinceTurn += 1;
    counted.most = Math.max(counted.most, sinceTurn);
  }
  return counted;
}

/** Calls `onRead` for each row with a card: the row's hash is read once, when the row becomes a card. */
async function withReadCards<T>(onRead: () => void, work: () => Promise<T>): Promise<T> {
  const { query } = pg.Client.prototype;
  const watch = (row: { card_hash?: string }): void => {
    const { card_hash: hash } = row;
    if (hash === undefined) return;
    const get = (): string => {
      onRead();
      return hash;
    };
    Object.defineProperty(row, 'card_hash', { get });
  };
  pg.Client.prototype.query = function (this: pg.Client, ...args: unknown[]): unknown {
    const answer: unknown = Reflect.apply(query, this, args);
    if (!(answer instanceof Promise)) return answer;
    return answer.then((result: pg.QueryResult) => {
      for (const { rows = [] } of [result].flat()) rows.forEach(watch);
      return result;
    });
  } as typeof query;
  try {
    return await work();
  } finally {
    pg.Client.prototype.query = query;
  }
}

test('the process does other work between building two prompts', async () => {
  const counted = countUnits();
  onBuilt = counted.add;
  const answer = await h.runtime.why(turnId, 'a text that is nowhere');
  counted.stop();
  expect(answer).toMatchObject({ outcome: 'not_found', searched_steps: { length: LOOKS + 1 } });
  expect(counted.all).toBeGreaterThanOrEqual(LOOKS + 1);
  expect(counted.most).toBe(1);
});

test('the rows of a context become cards in slices, and the process does other work between slices', async () => {
  const counted = countUnits();
  const answer = await withReadCards(counted.add, () => h.runtime.why(turnId, 'a cat'));
  counted.stop();
  expect(answer).toMatchObject({ outcome: 'found', steps: { length: LOOKS } });
  expect(counted.all).toBeGreaterThanOrEqual(CARDS);
  expect(counted.most).toBeLessThanOrEqual(250);
});

test('the texts of large cards are rendered one card at a time, and once for all prompts', async () => {
  const count = 12;
  const data = (at: number) => ({
    at,
    rows: Array.from({ length: 2_000 }, (_none, row) => ({ row, name: `row ${row}` })),
  });
  const size = JSON.stringify(data(0)).length;
  const cards = Array.from({ length: count }, (_none, at) => ({
    type: 'note',
    content: { kind: 'json', data: data(at) },
  }));
  const box = (await h.runtime.submit('create_box', { cards })) as { box_id: string };
  await h.profile('clerk', [{ calls: [{ tool: 'look', arguments: {} }] }, { say: 'ok' }], {
    tools: ['look'],
  });
  const launched = await h.runtime.submit('launch_principal', {
    profile_name: 'clerk',
    instruction: 'Read.',
    context_box_id: box.box_id,
  });
  const { turn_id: large } = launched as { turn_id: TurnId };
  expect(await h.runtime.waitForTurn(large, { timeoutMs: 60_000 })).toMatchObject({ status: 'success' });

  const counted = countUnits();
  const { stringify } = JSON;
  const spy = vi.spyOn(JSON, 'stringify').mockImplementation((...args: Parameters<typeof stringify>) => {
    const text = stringify(...args);
    if (text?.startsWith('{"at":')) counted.add();
    return text;
  });
  const answer = await h.runtime.why(large, 'a text that is nowhere').finally(() => spy.mockRestore());
  counted.stop();
  expect(size).toBeGreaterThan(SLICE_CHARACTERS);
  expect(answer).toMatchObject({ outcome: 'not_found', searched_steps: [1, 2] });
  expect(counted).toMatchObject({ all: count, most: 1 });
});
