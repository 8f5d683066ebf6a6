import { randomBytes } from 'node:crypto';
import { type BoxReport, inspectBox } from '@boxcar/store/report';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { type Harness, harness } from '../testing/harness.js';
import { runTapeCommand } from '../tool/run-command.js';
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

/** For each statement of the work, the number of rows that it returns and their size in bytes. */
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
])('no statement of a reader returns more than 1 MiB, or one entry: %s', async (_what, work) => {
  const answers = await answersOf(work);
  // An imported line is returned both as its card and as its original text.
  for (const { bytes } of answers) expect(bytes).toBeLessThanOrEqual(1.3 * MIB);
});

test('no statement of a search writes more than 1 MiB of words, also for texts that grow by folding', async () => {
  const growing = await h.runtime.tape('growing');
  // 12 KB each; eighteen times as long after folding.
  await growing.append(Array.from({ length: 40 }, (_, n) => message(`${n} ${'\ufdfa'.repeat(4_000)}`)));
  const { pool } = h.runtime;
  const query = pool.query.bind(pool) as (...args: unknown[]) => Promise<unknown>;
  const sent: number[] = [];
  pool.query = (async (...args: unknown[]) => {
    sent.push(Buffer.byteLength(JSON.stringify(args[0])));
    return query(...args);
  }) as typeof pool.query;
  try {
    expect(await growing.search('39')).toHaveLength(1);
  } finally {
    pool.query = query as typeof pool.query;
  }
  expect(sent.length).toBeGreaterThan(3);
  expect(Math.max(...sent)).toBeLessThanOrEqual(MIB);
});

test('a page of records has at most 1 MiB, and the next page continues after it', async () => {
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

test('a page of anchors has at most 1 MiB, and the next page has the anchors before it', async () => {
  const many = await h.runtime.tape('many anchors');
  const names = Array.from({ length: 12 }, (_, n) => `a${n}`);
  const sizes = [0.3, 0.3, 0.3, 0.3, 0.95, 0.95, 0.1, 0.1, 0.4, 0.4, 0.4, 0.1];
  for (const [n, name] of names.entries())
    await many.append([{ kind: 'anchor', name, state: { words: 'x'.repeat((sizes[n] ?? 0) * MIB) } }]);
  const listed: string[] = [];
  let pages = 0;
  for (let before: number | null = 2 ** 31 - 2; before !== null; pages += 1) {
    const { anchors, next } = await many.anchorsPage({ limit: 500, before });
    expect(anchors.length).toBeGreaterThan(0);
    expect(Buffer.byteLength(JSON.stringify(anchors))).toBeLessThanOrEqual(MIB + anchors.length + 1);
    expect(await many.anchors({ limit: 500, before })).toEqual(anchors);
    listed.unshift(...anchors.map(({ name }) => name));
    before = next;
  }
  expect(listed).toEqual(['session/start', ...names]);
  expect(pages).toBe(6);
  // The same with a limit.
  const { anchors, next } = await many.anchorsPage({ limit: 2 });
  expect({ names: anchors.map(({ name }) => name), next }).toEqual({
    names: ['a10', 'a11'],
    next: anchors[0]?.position,
  });
  expect(await many.anchorsPage({ limit: 1, before: 2 })).toMatchObject({
    anchors: [{ position: 1 }],
    next: null,
  });
  expect(await many.anchorsPage({ before: 1 })).toEqual({ anchors: [], next: null });
  await expect(many.anchors({ before: -1 })).rejects.toMatchObject({ code: 'bad_request' });
  // A command shows how to get the next page, and that command works.
  const first = await runTapeCommand(many, ',anchors limit=500');
  const more = /^… earlier anchors: (,anchors before=\d+)\n/.exec(first.output)?.[1] ?? '';
  expect(Buffer.byteLength(JSON.stringify(first.result))).toBeLessThanOrEqual(1.1 * MIB);
  expect((await runTapeCommand(many, more)).output).not.toContain('→ a11');
});

test('other work runs between the pages of a search and of an export', async () => {
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

test('a page of a context box has at most 1 MiB of contents, or one card', async () => {
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
