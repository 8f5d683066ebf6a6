import { randomBytes } from 'node:crypto';
import type { AgentId, BoxId } from '@boxcar/kernel';
import type pg from 'pg';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { type BoxReport, inspectBox } from '../report/box-report.js';
import { card, DEFAULT_PROJECT, newId, OPERATOR, text, World } from '../testing/world.js';
import { appendEntries, type NewTapeEntry } from './appends.js';
import {
  type EntryRange,
  loadEntries,
  PAGE_BYTES,
  readEntries,
  readEntriesAt,
  type TapeEntryRow,
} from './entries.js';
import { makeFork } from './forks.js';
import { createTape } from './tapes.js';

let world: World;
const operator = { projectId: DEFAULT_PROJECT, actorId: OPERATOR };
const KIB = 1024;
/** Text that Postgres cannot compress. */
const noise = (size: number): string => randomBytes(size).toString('base64').slice(0, size);

beforeAll(async () => {
  world = await World.open();
});

afterAll(() => world[Symbol.asyncDispose]());

const entry = (rest: Partial<NewTapeEntry>): NewTapeEntry => ({
  kind: 'message',
  card: null,
  payload: null,
  anchorName: null,
  authorId: OPERATOR,
  ...rest,
});
const message = (words: string, rest: Partial<NewTapeEntry> = {}): NewTapeEntry =>
  entry({ card: card(text(words)), ...rest });
const event = (data: string): NewTapeEntry => entry({ kind: 'event', payload: { name: 'noted', data } });
const imported = (words: string): NewTapeEntry =>
  message(words, { meta: { imported: { line: JSON.stringify({ content: words }), parts: 1 } } });

/** Entries of every size, in every part that can have content. */
const ENTRIES: readonly NewTapeEntry[] = [
  ...Array.from({ length: 30 }, (_, n) => message(`${n}`)),
  ...Array.from({ length: 3 }, () => message(noise(100 * KIB))),
  message(noise(1_000 * KIB)),
  message('x'),
  ...Array.from({ length: 40 }, () => event('e'.repeat(200 * KIB))),
  ...Array.from({ length: 3 }, () => event(noise(200 * KIB))),
  ...Array.from({ length: 5 }, () => imported('l'.repeat(60 * KIB))),
  ...Array.from({ length: 3 }, () => message('x', { meta: { note: 'm'.repeat(200 * KIB) } })),
  entry({
    kind: 'anchor',
    anchorName: 'far',
    card: card({ kind: 'json', data: { state: noise(200 * KIB) } }, { type: 'tape.anchor' }),
  }),
  entry({ kind: 'event', payload: { name: 'handoff', data: { name: 'far' } } }),
  ...Array.from({ length: 600 }, (_, n) => message(`last ${n}`)),
];
const HEAD = ENTRIES.length + 2;

const sizeOf = ({ card: of, payload, meta }: TapeEntryRow): number =>
  Buffer.byteLength(JSON.stringify([of?.content ?? '', payload ?? '', meta ?? '']));

async function pagesOf(
  pages: AsyncIterable<readonly TapeEntryRow[]>,
): Promise<readonly (readonly TapeEntryRow[])[]> {
  const found: (readonly TapeEntryRow[])[] = [];
  for await (const page of pages) found.push(page);
  return found;
}

let flat: BoxId;
let fork: BoxId;

beforeAll(async () => {
  flat = newId<'box'>();
  await createTape(world.pool, { ...operator, boxId: flat, name: 'pages' });
  const result = await appendEntries(world.pool, {
    ...operator,
    boxId: flat,
    entries: ENTRIES,
    dedupKey: newId(),
  });
  expect(result).toMatchObject({ outcome: 'appended', head: HEAD });
  fork = newId<'box'>();
  await makeFork(world.pool, {
    boxId: fork,
    projectId: DEFAULT_PROJECT,
    parentBoxId: flat,
    openedBy: OPERATOR,
    turnId: null,
    key: 'fork',
    mergeBack: true,
    onError: 'merge',
    upto: null,
  });
});

/** A new agent that may read the tape up to a position. */
async function readerOf(boxId: BoxId, upto: number): Promise<AgentId> {
  const agentId = newId<'agent'>();
  await world.pool.query(
    `with reader as (insert into boxcar.agents (id, project_id, name) select $1::uuid, project_id, $1::text from boxcar.boxes where id = $2)
     insert into boxcar.grants (project_id, agent_id, box_id, mode, source, upto_position) select project_id, $1::uuid, id, 'read', $1::text, $3 from boxcar.boxes where id = $2`,
    [agentId, boxId, upto],
  );
  return agentId;
}

describe('a page of a tape', () => {
  interface Range extends Partial<Omit<EntryRange, 'within'>> {
    /** The position up to which the reader may read. */
    readonly upto?: number;
  }

  const RANGES: [string, Range, ((position: number) => boolean)?][] = [
    ['all of it', {}],
    ['the newest first', { edge: 'newest', limit: 200 }, (position) => position > HEAD - 200],
    ['kinds', { kinds: ['event', 'anchor'] }],
    ['some kinds, the newest first', { kinds: ['event'], edge: 'newest', limit: 40 }],
    ['dates', { since: '2000-01-01T00:00:00Z' }],
    ['readable entries only', { upto: 60 }, (position) => position <= 60],
  ];

  test.each(RANGES)(
    'has a limited number of bytes, or one entry: %s',
    async (_what, { upto, ...range }, isWanted) => {
      for (const boxId of [flat, fork]) {
        const within = upto === undefined ? null : { agentId: await readerOf(boxId, upto), boxId };
        const pages = await pagesOf(readEntries(world.pool, boxId, { from: 1, to: HEAD, ...range, within }));
        const positions = pages.flat().map(({ position }) => position);
        const isKind = (position: number): boolean =>
          range.kinds === undefined ||
          range.kinds.includes(position === 1 ? 'anchor' : (ENTRIES[position - 3]?.kind ?? 'event'));
        const all = Array.from({ length: HEAD }, (_, index) => index + 1).filter(
          (position) => isKind(position) && (isWanted === undefined || isWanted(position)),
        );
        const ordered = range.edge === 'newest' ? all.toReversed().slice(0, range.limit ?? undefined) : all;
        expect(positions).toEqual(ordered);
        for (const page of pages) {
          const bytes = page.reduce((sum, row) => sum + sizeOf(row), 0);
          // Brackets and quotes are counted here, but not by the reader.
          if (page.length > 1) expect(bytes).toBeLessThanOrEqual(PAGE_BYTES + 20 * page.length);
          expect(page.length).toBeGreaterThan(0);
        }
        // Two adjacent pages would not fit into one page, or the limit of a list of 500 is between them.
        expect(pages.length).toBeLessThanOrEqual(
          (2 * pages.flat().reduce((sum, row) => sum + sizeOf(row), 0)) / PAGE_BYTES + 4,
        );
      }
    },
  );

  test('gives the same entries as a reader that reads them one by one', async () => {
    const pages = await pagesOf(readEntries(world.pool, flat, { from: 1, to: HEAD }));
    const some = [1, 2, 35, 36, 40, 80, 85, HEAD - 601, HEAD - 600, HEAD];
    const rows = pages.flat().filter(({ position }) => some.includes(position));
    for (const row of rows) {
      const { position } = row;
      expect(await loadEntries(world.pool, flat, { from: position, to: position })).toEqual([row]);
    }
    const at = (await pagesOf(readEntriesAt(world.pool, flat, some.toReversed()))).flat();
    expect(at).toEqual(rows.toReversed());
    expect(rows.find(({ position }) => position === HEAD - 600)?.payload).toMatchObject({
      data: { name: 'far', state: { state: expect.any(String) } },
    });
  });

  test('is read without the entries that it leaves out', async () => {
    const boxId = newId<'box'>();
    await createTape(world.pool, { ...operator, boxId, name: 'large' });
    const large = Array.from({ length: 60 }, (_, n) =>
      n % 2 === 0 ? message(noise(300 * KIB)) : event(noise(300 * KIB)),
    );
    await appendEntries(world.pool, { ...operator, boxId, entries: large, dedupKey: newId() });
    const client = await world.pool.connect();
    try {
      let blocks = 0;
      let largest = 0;
      const counting = {
        query: async ({ text: sql, values = [] }: pg.QueryConfig) => {
          const { rows: plans } = await client.query(
            `explain (analyze, buffers, format json) ${sql}`,
            values,
          );
          const plan = plans[0]['QUERY PLAN'][0].Plan;
          blocks = Math.max(blocks, plan['Shared Hit Blocks'] + plan['Shared Read Blocks']);
          const answer = await client.query(sql, values);
          largest = Math.max(largest, Buffer.byteLength(JSON.stringify(answer.rows)));
          return answer;
        },
      };
      const pages = await pagesOf(readEntries(counting as never, boxId, { from: 3, to: 62 }));
      expect(pages.map((page) => page.length)).toEqual(Array(60).fill(1));
      // One entry has some 40 blocks of 8 KiB, which are read a few times for its size and its content; all entries have 2,400.
      expect(blocks).toBeLessThan(600);
      expect(largest).toBeLessThan(400 * KIB);
    } finally {
      client.release();
    }
  });
});

describe('a page of a box report', () => {
  const report = (boxId: BoxId, after: number, withContents: boolean) =>
    inspectBox(world.pool, boxId, { project: 'default', after, limit: 1_000, withContents });
  async function reportsOf(boxId: BoxId, withContents: boolean): Promise<readonly BoxReport[]> {
    const reports: BoxReport[] = [];
    for (let after: number | null = 0; after !== null; after = reports.at(-1)?.next ?? null)
      reports.push(await report(boxId, after, withContents));
    return reports;
  }

  test.each([true, false])(
    'has 1 MiB of contents or one entry, also when contents are requested: %s',
    async (withContents) => {
      for (const boxId of [flat, fork]) {
        const reports = await reportsOf(boxId, withContents);
        expect(reports.flatMap(({ entries }) => entries.map(({ position }) => position))).toEqual(
          Array.from({ length: HEAD }, (_, index) => index + 1),
        );
        for (const { entries } of reports) {
          const contents = entries.map((one) =>
            one.kind === 'card' ? one.card.content : [one.payload, one.card?.content],
          );
          expect(Buffer.byteLength(JSON.stringify(contents))).toBeLessThanOrEqual(
            1_024 * KIB + 20 * entries.length,
          );
        }
        expect(reports.length).toBeGreaterThan(8);
      }
    },
  );
});
