import { randomBytes } from 'node:crypto';
import { type BoxReport, inspectBox } from '@boxcar/store';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { type Harness, harness } from '../testing/harness.js';
import type { EntryInput } from './entry-input.js';
import type { Tape } from './tape.js';

const MIB = 1024 * 1024;
let h: Harness;
let tape: Tape;
let line: string;

const noise = (size: number): string => randomBytes(size).toString('base64').slice(0, size);
const message = (content: string): EntryInput => ({ kind: 'message', content });

beforeAll(async () => {
  h = await harness();
  tape = await h.runtime.tape('large');
  const large = Array.from({ length: 12 }, (_, n) => message(`needle ${n} ${noise(0.3 * MIB)}`));
  const events = Array.from(
    { length: 12 },
    (_, n): EntryInput => ({
      kind: 'event',
      name: 'noted',
      data: `needle ${n} ${'x'.repeat(0.3 * MIB)}`,
    }),
  );
  const anchors = Array.from(
    { length: 6 },
    (_, n): EntryInput => ({
      kind: 'anchor',
      name: `phase-${n}`,
      state: { words: noise(0.3 * MIB) },
    }),
  );
  const small = Array.from({ length: 700 }, (_, n) => message(`needle in small ${n}`));
  for (const entries of [large, events, anchors, small]) await tape.append(entries);
  line = JSON.stringify({
    id: 1,
    kind: 'message',
    payload: { role: 'user', content: `needle ${noise(0.6 * MIB)}` },
    meta: {},
  });
  await h.runtime.importTape('large', { main: { lines: () => Array(4).fill(line) } }, { append: true });
});

afterAll(() => h[Symbol.asyncDispose]());

/** The rows that each statement of the work brings: their sizes in bytes, and how many there are. */
async function answersOf(work: () => Promise<unknown>): Promise<{ bytes: number; rows: number }[]> {
  const { pool } = h.runtime;
  const query = pool.query.bind(pool) as (...args: unknown[]) => Promise<{ rows: unknown[] }>;
  const answers: { bytes: number; rows: number }[] = [];
  pool.query = (async (...args: unknown[]) => {
    const answer = await query(...args);
    const sent = JSON.stringify(answer.rows, (_name, value: unknown) => value ?? undefined);
    answers.push({ bytes: Buffer.byteLength(sent), rows: answer.rows.length });
    return answer;
  }) as typeof pool.query;
  try {
    await work();
  } finally {
    pool.query = query as typeof pool.query;
  }
  return answers;
}

const drain = async (pages: AsyncIterable<unknown>): Promise<number> => {
  let count = 0;
  for await (const _ of pages) count += 1;
  return count;
};

test.each<[string, () => Promise<unknown>]>([
  ['a slice', () => tape.query().all()],
  ['kinds of entries', () => tape.query().kinds('event', 'message').all()],
  ['a text', () => tape.query().query('needle').all()],
  ['dates', () => tape.query().betweenDates('2000-01-01', '2100-01-01').all()],
  ['anchors', () => tape.anchors()],
  ['chat messages', () => tape.messages({ anchor: null })],
  ['a search for the first time', () => tape.search('needle', { limit: 500 })],
  ['a search with typos', () => tape.search('needlle', { limit: 500, kinds: [] })],
  ['an export', () => drain(tape.export())],
])('no statement of a reader brings more than 1 MiB, or one entry: %s', async (_what, work) => {
  const answers = await answersOf(work);
  // An imported line comes as the card and as the text that it was.
  for (const { bytes } of answers) expect(bytes).toBeLessThanOrEqual(1.3 * MIB);
});

test('a page of records holds 1 MiB at most, and the next one goes on behind it', async () => {
  const all = await tape.query().all();
  const query = {
    slice: { kind: 'all' },
    kinds: [],
    from: null,
    until: null,
    text: null,
    limit: null,
  } as const;
  const positions: number[] = [];
  for (let after: number | null = 0; after !== null; ) {
    const { records, next } = await tape.selectPage(query, { after });
    if (records.length > 1)
      expect(Buffer.byteLength(JSON.stringify(records))).toBeLessThanOrEqual(MIB + records.length);
    expect(records.length).toBeGreaterThan(0);
    positions.push(...records.map(({ position }) => position));
    after = next;
  }
  expect(positions).toEqual(all.map(({ position }) => position));
  const { records, next } = await tape.selectPage({ ...query, limit: 2 }, { after: 20 });
  expect({ next, positions: records.map(({ position }) => position) }).toEqual({
    next: 22,
    positions: [21, 22],
  });
  for (const after of [-1, 0.5, 2 ** 31])
    await expect(tape.selectPage(query, { after })).rejects.toMatchObject({ code: 'bad_request' });
});

test('other work gets its turn between the pages of a search and of an export', async () => {
  for (const [work, least] of [
    [() => tape.search('neeedle', { limit: 500, kinds: [] }), 5],
    [() => drain(tape.export()), 15],
  ] as const) {
    let turns = 0;
    let isDone = false;
    const count = (): void => {
      turns += 1;
      if (!isDone) setImmediate(count);
    };
    setImmediate(count);
    const answers = await answersOf(work);
    isDone = true;
    expect(turns).toBeGreaterThanOrEqual(answers.length);
    expect(answers.length).toBeGreaterThan(least);
  }
});

test('a page of a context box holds 1 MiB of contents at most, or one card', async () => {
  const cards = Array.from({ length: 8 }, () => ({
    type: 'note',
    content: { kind: 'text', text: noise(0.3 * MIB) },
  }));
  const { box_id: boxId } = (await h.runtime.submit('create_box', { cards })) as { box_id: string };
  const counts = async (withContents: boolean): Promise<number[]> => {
    const found: number[] = [];
    for (let after: number | null = 0; after !== null; ) {
      const report: BoxReport = await inspectBox(h.runtime.pool, boxId, {
        project: 'default',
        after,
        limit: 1_000,
        withContents,
      });
      found.push(report.entries.length);
      after = report.next;
    }
    return found;
  };
  expect(await counts(true)).toEqual([3, 3, 2]);
  expect(await counts(false)).toEqual([8]);
});
