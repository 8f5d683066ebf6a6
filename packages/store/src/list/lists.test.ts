/** Lists on large tables: a page reads only the rows that it shows. */
import type { AgentId, BoxId, ProfileId, TurnId } from '@boxcar/kernel';
import pg from 'pg';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { createPool } from '../db/pool.js';
import type { ListPage, ListScope } from '../rows/list-page.js';
import { countReads } from '../testing/count-reads.js';
import { DEFAULT_PROJECT, type TestProfile, World } from '../testing/world.js';
import { listAgents, listBoxes } from './things.js';
import { writeTurnWords } from './turn-words.js';
import { listRuns, listTurns, type TurnFilters } from './turns.js';

/** Turns, each with a separate run and agent. */
const N = 12_000;
const PAGE = 20;
/** More than a page reads, and far less than the tables contain. */
const LITTLE = 1_200;
/** How many of the newest turns are searched for a text. */
const WALK = 8_000;

let world: World;
let pool: pg.Pool;
let writer: TestProfile;
let rare: TestProfile;
const id = (kind: number, n = 'n'): string =>
  `('${kind}0000000-0000-7000-8000-' || lpad(to_hex(${n}), 12, '0'))::uuid`;
const idOf = (kind: number, n: number): string =>
  `${kind}0000000-0000-7000-8000-${n.toString(16).padStart(12, '0')}`;

/**
 * Of 12,000 turns, every 1,000th failed, every 2,000th has another profile, and every 3,000th has a separate channel. Agent 7 has the
 * first half.
 */
const ROWS = (writerId: string, rareId: string): readonly string[] => [
  `insert into boxcar.cards (id, project_id, type, role, content, content_hash, size_bytes, token_estimate, author_id, created_at)
    select ${id(3)}, $1, 'task.instruction', 'user', json_build_object('kind', 'text', 'text', 'Read file ' || n || case when n = 77 then ' for ÖSTERREICH 100%' else '' end),
      sha256(n::text::bytea), 20, 5, 'x', at from made`,
  `insert into boxcar.boxes (id, project_id, kind, card_ids, card_tokens, segments, card_count, token_estimate, created_at)
    select ${id(4)}, $1, 'context', array[${id(3)}], '{5}', '[{"rule": "pack_arguments", "from": 1, "to": 1, "count": 1, "tokens": 5}]', 1, 5, at from made`,
  `insert into boxcar.boxes (id, project_id, kind, owner_agent_id, incarnation, head_position, last_anchor_position, view_position, tape_name, created_at)
    select ${id(5)}, $1, 'tape', ${id(2)}, 1, 2, 1, 1, case when n % 1000 = 0 then 'notes-' || n end, at from made`,
  `insert into boxcar.agents (id, project_id, name, profile_id, tape_box_id, created_at)
    select ${id(2)}, $1, 'agent-' || n, case when n % 2000 = 0 then '${rareId}'::uuid else '${writerId}'::uuid end, ${id(5)}, at from made`,
  `insert into boxcar.runs (id, project_id, root_turn_id, created_at) select ${id(6)}, $1, ${id(1)}, at from made`,
  `insert into boxcar.turns (id, project_id, run_id, agent_id, profile_id, depth, primitive, channel_id, status, epoch, max_steps, context_box_id, output_box_id, ended_at, deliverable_card_id, created_at)
    select ${id(1)}, $1, ${id(6)}, case when n <= ${N / 2} then ${id(2, '7')} else ${id(2)} end, case when n % 2000 = 0 then '${rareId}'::uuid else '${writerId}'::uuid end, 0, 'delegate_async',
      case when n % 3000 = 0 then 'ops' else 'public' end, case when n % 1000 = 0 then 'failed' else 'success' end, 1, 10, ${id(4)}, ${id(5)}, at, ${id(3)}, at from made`,
];

/** The profile, and 200 versions of it that no turn uses. */
const versionsOf = ({ id: last }: TestProfile): readonly ProfileId[] => [
  ...Array.from({ length: 200 }, (_none, n) => idOf(9, n) as ProfileId),
  last,
];

const all: ListScope = { projectId: DEFAULT_PROJECT, limit: PAGE, after: undefined, since: undefined };

beforeAll(async () => {
  world = await World.open();
  writer = await world.profile('writer');
  rare = await world.profile('rare');
  const client = await world.pool.connect();
  try {
    await client.query('set session_replication_role = replica');
    // Two turns have the same time, like submissions that were written together.
    const made = `with made as (select n, '2026-01-01'::timestamptz + (n / 2) * interval '1 second' as at from generate_series(1, ${N}) n)`;
    for (const insert of ROWS(writer.id, rare.id)) await client.query(`${made} ${insert}`, [DEFAULT_PROJECT]);
  } finally {
    client.release(true);
  }
  pool = createPool({ connectionString: world.database.url, max: 1 });
  await writeTurnWords(pool, DEFAULT_PROJECT, 'file');
  await world.rows('vacuum analyze');
}, 60_000);
afterAll(async () => {
  await pool.end();
  await world[Symbol.asyncDispose]();
});

/** The numbers of the rows in a list, the newest first. */
const numbersOf = (rows: readonly object[], key: string): number[] =>
  rows.map((row) => Number.parseInt(String(Reflect.get(row, key)).slice(-12), 16));

/** All pages of a list, and the number of reads of the most expensive page. */
async function readAll<T extends object>(
  list: (scope: ListScope) => Promise<ListPage<T>>,
  scope: ListScope = all,
  pages = 3,
): Promise<{ readonly rows: readonly T[]; readonly reads: number; readonly last: ListPage<T> }> {
  const rows: T[] = [];
  let reads = 0;
  let page: ListPage<T> = { rows: [], next: undefined, scannedTo: undefined };
  for (let n = 0; n < pages; n++) {
    const cost = await countReads(pool, async () => {
      page = await list({ ...scope, after: page.next });
    });
    rows.push(...page.rows);
    reads = Math.max(reads, cost);
    if (page.next === undefined) break;
  }
  return { rows, reads, last: page };
}

const down = (from: number, count: number, by = 1): number[] =>
  Array.from({ length: count }, (_, index) => from - index * by);

const FILTERS: Readonly<
  Record<string, readonly [filters: () => Omit<TurnFilters, keyof ListScope>, found: number[]]>
> = {
  'without a filter': [() => ({}), down(N, 3 * PAGE)],
  'of a common status': [
    () => ({ statuses: ['success'] }),
    down(N, 4 * PAGE)
      .filter((n) => n % 1_000 !== 0)
      .slice(0, 3 * PAGE),
  ],
  'of a rare status': [() => ({ statuses: ['failed', 'canceled'] }), down(N, 12, 1_000)],
  'of a status without turns': [() => ({ statuses: ['running'] }), []],
  'of a rare profile': [() => ({ profileIds: [rare.id] }), down(N, 6, 2_000)],
  'of a common profile': [
    () => ({ profileIds: [writer.id, idOf(9, 1) as ProfileId] }),
    down(N - 1, 3 * PAGE),
  ],
  'of a profile and a rare status': [
    () => ({ profileIds: [writer.id], statuses: ['failed'] }),
    down(N - 1_000, 6, 2_000),
  ],
  'of a profile with many versions and a rare status': [
    () => ({ profileIds: versionsOf(rare), statuses: ['failed', 'timeout'] }),
    down(N, 6, 2_000),
  ],
  'of a profile with many versions and an agent': [
    () => ({ profileIds: versionsOf(writer), agentId: idOf(2, 7) as AgentId }),
    down(N / 2 - 1, 3 * PAGE),
  ],
  'of an agent with many': [() => ({ agentId: idOf(2, 7) as AgentId }), down(N / 2, 3 * PAGE)],
  'of an agent with one': [() => ({ agentId: idOf(2, N) as AgentId }), [N]],
  'of a channel of its own': [() => ({ channelId: 'ops' }), down(N, 4, 3_000)],
  'of a profile and a channel of its own': [
    () => ({ profileIds: [writer.id, rare.id], channelId: 'ops' }),
    down(N, 4, 3_000),
  ],
  'of a channel without rows': [() => ({ channelId: 'none' }), []],
  'of the public channel': [() => ({ channelId: 'public' }), down(N - 1, 3 * PAGE)],
};

describe.each([
  ['turns', 'turn_id', (scope: TurnFilters) => listTurns(pool, scope)],
  ['runs', 'run_id', (scope: TurnFilters) => listRuns(pool, scope)],
] as const)('a list of %s', (_noun, key, list) => {
  test.each(Object.entries(FILTERS))(
    'is read page by page, and a page reads only its own rows: %s',
    async (_name, [filters, found]) => {
      const { rows, reads } = await readAll<object>((scope) => list({ ...scope, ...filters() }));
      expect(numbersOf(rows, key)).toEqual(found);
      expect(reads).toBeGreaterThan(found.length > 0 ? 0 : -1);
      expect(reads).toBeLessThan(LITTLE);
    },
  );

  test('finds a rare text by the index, and a frequent text among the newest rows', async () => {
    const search = (folded: string) =>
      readAll<object>((scope) => list({ ...scope, text: { folded, isIndexed: true } }));
    const few = await search('österreich');
    expect(numbersOf(few.rows, key)).toEqual([77]);
    expect(few.reads).toBeLessThan(WALK);
    expect(numbersOf((await search('100%')).rows, key)).toEqual([77]);
    const none = await search('österreicher');
    expect(none.rows).toEqual([]);
    expect(none.reads).toBeLessThan(WALK);
    const many = await search('read file');
    expect(numbersOf(many.rows, key)).toEqual(down(N, 3 * PAGE));
    expect(many.reads).toBeLessThan(WALK);
  });

  test('applies a text and a filter together', async () => {
    const text = { folded: 'file', isIndexed: true };
    const { rows } = await readAll<object>((scope) =>
      list({ ...scope, text, statuses: ['failed'], profileIds: [rare.id] }),
    );
    expect(numbersOf(rows, key)).toEqual(down(N, 6, 2_000));
  });

  test('without the index searches the newest rows, and the answer says how far it searched', async () => {
    const since = new Date(Date.parse('2026-01-01T00:00:00Z') + 1_000 * (N / 2 - 50));
    const text = { folded: 'österreich', isIndexed: false };
    const { rows, last } = await readAll<object>((scope) => list({ ...scope, text }), { ...all, since });
    expect([rows, last.next, last.scannedTo]).toEqual([[], undefined, undefined]);
    expect(numbersOf((await readAll<object>((scope) => list({ ...scope, text }))).rows, key)).toEqual([77]);
  });
});

/** The plan of the statement with which `work` reads a page. */
async function planOf(work: (pool: pg.Pool) => Promise<unknown>): Promise<string> {
  const { query } = pg.Client.prototype;
  let page: pg.QueryConfig | undefined;
  pg.Client.prototype.query = function (this: pg.Client, ...args: unknown[]): unknown {
    const config = args[0] as pg.QueryConfig;
    if (config.text?.includes('list_id') === true) page = config;
    return Reflect.apply(query, this, args);
  } as typeof query;
  try {
    await work(pool);
  } finally {
    pg.Client.prototype.query = query;
  }
  const { rows } = await pool.query<{ 'QUERY PLAN': string }>(
    `explain (costs off) ${page?.text}`,
    page?.values,
  );
  return rows.map((row) => row['QUERY PLAN']).join('\n');
}

test.each([
  ['turns', listTurns],
  ['runs', listRuns],
] as const)(
  'the plan of a search for %s walks the newest rows by the index of the list, and uses the index of words',
  async (_noun, list) => {
    const plan = await planOf(() => list(pool, { ...all, text: { folded: 'österreich', isIndexed: true } }));
    expect(plan).toMatch(/Index (Only )?Scan Backward using turns_newest on turns t/);
    expect(plan).toContain('Bitmap Index Scan on tape_words_trigrams');
    expect(plan).not.toContain('Seq Scan');
  },
);

test('a run with a thousand roots is listed once, without a comparison of each root with all others', async () => {
  const at = '2027-01-01';
  await world.rows(
    `insert into boxcar.runs (id, project_id, root_turn_id, created_at) values ('${idOf(8, 1)}', $1, '${idOf(8, 1)}', '${at}')`,
    [DEFAULT_PROJECT],
  );
  await world.rows(
    `insert into boxcar.turns (id, project_id, run_id, agent_id, profile_id, depth, primitive, status, epoch, max_steps, context_box_id, output_box_id, created_at, ended_at, deliverable_card_id)
     select ${id(8)}, $1, '${idOf(8, 1)}', ${id(2, '8')}, $2, 0, 'fork_join', 'success', 1, 10, ${id(4, '8')}, ${id(5, '8')}, '${at}', '${at}', ${id(3, '8')} from generate_series(1, 1000) n`,
    [DEFAULT_PROJECT, writer.id],
  );
  await world.rows('analyze boxcar.turns');
  for (const filters of [{ statuses: ['success'] as const }, { profileIds: [writer.id] }]) {
    const { rows, reads } = await readAll((scope) => listRuns(pool, { ...scope, ...filters }), all, 1);
    expect(rows.filter(({ run_id }) => run_id === idOf(8, 1))).toMatchObject([{ roots: { success: 1_000 } }]);
    expect(reads).toBeLessThan(6 * 1_000);
  }
  await world.rows(`delete from boxcar.turns where run_id = '${idOf(8, 1)}'`);
  await world.rows(`delete from boxcar.runs where id = '${idOf(8, 1)}'`);
});

test('agents are listed by project or profile, and by name with the newest first', async () => {
  const list = (filters: object) => readAll((scope) => listAgents(pool, { ...scope, ...filters }));
  const newest = await list({});
  expect(newest.rows[0]).toMatchObject({ name: 'operator', profile: null });
  expect(numbersOf(newest.rows.slice(1), 'agent_id')).toEqual(down(N, 3 * PAGE - 1));
  const few = await list({ profileIds: [rare.id] });
  expect(few.rows.map(({ name, profile }) => [name, profile])).toEqual(
    down(N, 6, 2_000).map((n) => [`agent-${n}`, 'rare']),
  );
  expect([newest.reads, few.reads].filter((reads) => reads >= LITTLE)).toEqual([]);
  expect(numbersOf((await list({ text: 'AGENT-120' })).rows, 'agent_id')).toEqual([
    12_000, 1_209, 1_208, 1_207, 1_206, 1_205, 1_204, 1_203, 1_202, 1_201, 1_200, 120,
  ]);
});

test('boxes are read by project or owner, and tapes by name', async () => {
  const list = (filters: object) => readAll((scope) => listBoxes(pool, { ...scope, ...filters }));
  const newest = await list({});
  expect(newest.rows).toHaveLength(3 * PAGE);
  const owned = await list({ agentId: idOf(2, 7) as AgentId });
  expect(owned.rows).toEqual([
    expect.objectContaining({
      box_id: idOf(5, 7) as BoxId,
      kind: 'tape',
      owner: 'agent-7',
      count: 2,
      tokens: null,
    }),
  ]);
  const named = await list({ text: 'Notes-1' });
  expect(named.rows.map(({ name }) => name)).toEqual([
    'notes-12000',
    'notes-11000',
    'notes-10000',
    'notes-1000',
  ]);
  expect([newest.reads, owned.reads, named.reads].filter((reads) => reads >= LITTLE)).toEqual([]);
});

test('a row has the facts of a turn and of a run that a list shows', async () => {
  const since = new Date(Date.parse('2026-01-01T00:00:00Z') + (1_000 * N) / 2);
  const { rows: turns } = await listTurns(pool, { ...all, since });
  expect(turns).toEqual([
    {
      turn_id: idOf(1, N) as TurnId,
      run_id: idOf(6, N),
      parent_turn_id: null,
      status: 'failed',
      agent_id: idOf(2, N),
      agent: `agent-${N}`,
      profile: 'rare',
      profile_version: 1,
      primitive: 'delegate_async',
      channel_id: 'ops',
      steps: 0,
      error_code: null,
      instruction: `Read file ${N}`,
      created_at: since,
      ended_at: since,
    },
  ]);
  const { rows: runs } = await listRuns(pool, { ...all, since });
  expect(runs).toEqual([
    {
      run_id: idOf(6, N),
      root_turn_id: idOf(1, N),
      roots: { failed: 1 },
      turns: 1,
      agent_id: idOf(2, N),
      agent: `agent-${N}`,
      profile: 'rare',
      profile_version: 1,
      primitive: 'delegate_async',
      channel_id: 'ops',
      instruction: `Read file ${N}`,
      created_at: since,
      canceled_at: null,
    },
  ]);
});
