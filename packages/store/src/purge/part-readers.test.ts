/**
 * An agent may read the parts of a tape that turns wrote for the agent. These parts are found entry by entry, without reading the whole
 * history of the tape.
 */
import type { AgentId, BoxId, TurnId } from '@boxcar/kernel';
import type pg from 'pg';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { findReachable } from '../box/reach.js';
import { createPool } from '../db/pool.js';
import { loadEntries } from '../tape/entries.js';
import { findTape } from '../tape/tapes.js';
import { countReads } from '../testing/count-reads.js';
import { DEFAULT_PROJECT, type TestTurn, World } from '../testing/world.js';
import { findJoinable } from '../turn/batches.js';

/** Turns of the child, each with four entries. */
const N = 3_000;
const LITTLE = 300;
const IDS = 20;

let world: World;
/** One connection, so that its reads are counted when it reports them. */
let pool: pg.Pool;
let parent: TestTurn;
let child: TestTurn;
let stranger: TestTurn;
let turnIds: readonly TurnId[];
const as = (agentId: AgentId) => ({ projectId: DEFAULT_PROJECT, actorId: agentId });
const id = "('70000000-0000-7000-8000-' || lpad(to_hex(n), 12, '0'))::uuid";

beforeAll(async () => {
  world = await World.open();
  const profile = await world.profile('writer');
  const holder = await world.worker({ concurrency: 100 });
  parent = await world.running({ profile, holder });
  child = await world.running({ profile, holder });
  stranger = await world.running({ profile, holder });
  const [tape] = await world.rows<{ head_position: number }>(
    'select head_position from boxcar.boxes where id = $1',
    [child.tapeId],
  );
  const head = tape?.head_position ?? 0;
  await world.rows(
    `insert into boxcar.turns (id, project_id, run_id, agent_id, profile_id, depth, primitive, epoch, max_steps, context_box_id, output_box_id, status, parent_turn_id, start_position, ended_at, deliverable_card_id)
    select ${id}, $1, $1, $2, $1, 1, 'p', 1, 10, $1, $3, 'success', $4, $5 + 1 + (n - 1) * 4, now(), $1 from generate_series(1, ${N}) n`,
    [DEFAULT_PROJECT, child.agentId, child.tapeId, parent.turnId, head],
  );
  await world.rows(
    `insert into boxcar.tape_entries (box_id, position, kind, payload, author_id, turn_id, tokens)
    select $1, $3 + 1 + (n - 1) * 4 + k, 'event', case k when 0 then '{"name":"turn.started","data":{}}'::json else '{"name":"x","data":{}}'::json end, $2, ${id}, 0
    from generate_series(1, ${N}) n, generate_series(0, 3) k`,
    [child.tapeId, child.agentId, head],
  );
  await world.rows('update boxcar.boxes set head_position = $2 where id = $1', [child.tapeId, head + N * 4]);
  await world.rows('analyze');
  turnIds = (
    await world.rows<{ id: TurnId }>(
      'select id from boxcar.turns where parent_turn_id = $1 order by id desc limit $2',
      [parent.turnId, IDS],
    )
  ).map((row) => row.id);
  pool = createPool({ connectionString: world.database.url, max: 1 });
});
afterAll(async () => {
  await pool.end();
  await world[Symbol.asyncDispose]();
});

/** The number of reads of `work`, and its result. */
async function reading<T>(work: () => Promise<T>): Promise<{ readonly result: T; readonly reads: number }> {
  let result: T | undefined;
  const reads = await countReads(pool, async () => {
    result = await work();
  });
  return { result: result as T, reads };
}

test('a tape is found with the rights of a reader that has asked for thousands of its turns', async () => {
  const address = { kind: 'box', boxId: child.tapeId as BoxId } as const;
  const found = await reading(() => findTape(pool, address, as(parent.agentId)));
  expect(found.result).toMatchObject({ reads: 'part' });
  expect(found.reads).toBeLessThan(LITTLE);
  expect((await findTape(pool, address, as(stranger.agentId)))?.reads).toBe('none');
});

test('a page of a tape with partial rights is read by the entries of the page', async () => {
  const tape = await findTape(pool, { kind: 'box', boxId: child.tapeId }, as(parent.agentId));
  const to = tape?.headPosition ?? 0;
  const range = { from: to - 9, to, within: { agentId: parent.agentId, boxId: child.tapeId } };
  const page = await reading(() => loadEntries(pool, child.tapeId, range));
  expect(page.result).toHaveLength(10);
  expect(page.reads).toBeLessThan(LITTLE);
  const newest = await reading(() =>
    loadEntries(pool, child.tapeId, { ...range, from: 1, limit: 1, edge: 'newest' }),
  );
  expect(newest.result).toHaveLength(1);
  expect(newest.reads).toBeLessThan(LITTLE);
  const hidden = { ...range, within: { agentId: stranger.agentId, boxId: child.tapeId } };
  expect(await loadEntries(pool, child.tapeId, hidden)).toEqual([]);
});

test('a collect reads only the turns that it names, whether they are granted or refused', async () => {
  for (const [reader, isReadable] of [
    [parent, true],
    [stranger, false],
  ] as const) {
    const found = await reading(() => findJoinable(pool, turnIds, as(reader.agentId)));
    expect(found.result).toHaveLength(IDS);
    expect(found.result.every((turn) => turn.is_readable === isReadable)).toBe(true);
    expect(found.reads).toBeLessThan(IDS * 20);
  }
});

test('the first page of many profiles is read without the cards of the other profiles', async () => {
  const cards = (await world.rows('select from boxcar.cards')).length;
  await world.rows(
    `with made as (
      insert into boxcar.cards (id, project_id, type, content, content_hash, size_bytes, token_estimate, metadata, author_id)
      select ${id}, c.project_id, c.type, json_build_object('data', json_build_object('description', 'd' || n)), c.content_hash, 1, 1, c.metadata, c.author_id
      from generate_series(1, ${N}) n, (select * from boxcar.cards where type = 'sys.profile' limit 1) c returning id
    )
    insert into boxcar.profiles (id, project_id, name, version, box_id, card_id, tags, max_steps, is_current)
    select m.id, f.project_id, 'many ' || m.id, 1, f.box_id, m.id, '{many}', f.max_steps, true
    from made m, (select * from boxcar.profiles limit 1) f`,
  );
  await world.rows('analyze');
  const readCards = async (): Promise<number> => {
    await pool.query('select pg_stat_force_next_flush()');
    const { rows } = await pool.query<{ n: number }>(
      `select (seq_tup_read + idx_tup_fetch)::float8 as n from pg_stat_user_tables where schemaname = 'boxcar' and relname = 'cards'`,
    );
    return rows[0]?.n ?? Number.NaN;
  };
  const before = await readCards();
  const policy = { target_profiles: null, target_tags: ['many'] };
  const found = await findReachable(pool, DEFAULT_PROJECT, { policy, limit: 31 });
  expect(found).toHaveLength(31);
  expect(found[0]?.description).toBe('d1');
  expect((await readCards()) - before).toBeLessThan(cards + LITTLE);
  const names = await findReachable(pool, DEFAULT_PROJECT, { policy, limit: 31, areNamesEnough: true });
  expect(names).toEqual(found.map(({ name }) => ({ name, description: null })));
});
