import type { AgentId, BoxId, CardId, WorkerId } from '@boxcar/kernel';
import pg from 'pg';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { transaction } from '../db/db.js';
import { forkChain } from '../testing/forks.js';
import { begin, holdCommits, waitUntilBlocked } from '../testing/interleave.js';
import {
  card,
  DEFAULT_PROJECT,
  newId,
  OPERATOR,
  type TestProfile,
  type TestTurn,
  text,
  World,
} from '../testing/world.js';
import { commitSteps } from '../turn/commits.js';
import { recordResults } from '../turn/tool-calls.js';
import { loadViews } from '../turn/views.js';
import { appendEntries, appendWithin, type NewTapeEntry } from './appends.js';
import { entriesStatement, findAnchor, loadEntries } from './entries.js';
import { mergeFork } from './fork-ends.js';
import { findFork, makeFork } from './forks.js';
import { loadTapeFacts } from './info.js';
import { findTapePlace, handOverTape, loadTapeSlice } from './refs.js';
import { resetTape } from './reset.js';
import { createTape, findTape } from './tapes.js';

let world: World;
let profile: TestProfile;
let holder: WorkerId;
const operator = { projectId: DEFAULT_PROJECT, actorId: OPERATOR };

beforeAll(async () => {
  world = await World.open();
  profile = await world.profile('writer');
  holder = await world.worker();
});

afterAll(() => world[Symbol.asyncDispose]());

const message = (words = 'x'): NewTapeEntry => ({
  kind: 'message',
  card: card(text(words)),
  payload: null,
  anchorName: null,
  authorId: OPERATOR,
});
const anchor = (name = 'phase'): NewTapeEntry => ({
  kind: 'anchor',
  card: card({ kind: 'json', data: { name } }, { type: 'tape.anchor' }),
  payload: null,
  anchorName: name,
  authorId: OPERATOR,
});

const append = async (
  boxId: BoxId,
  entries: readonly NewTapeEntry[],
  pool: pg.Pool = world.pool,
): Promise<number> => {
  const result = await appendEntries(pool, { ...operator, boxId, entries, dedupKey: newId() });
  if (result.outcome !== 'appended') throw new Error(result.outcome);
  return result.first;
};

const tapeOf = async (turn: TestTurn): Promise<{ view: number; anchor: number; head: number }> => {
  const [row] = await world.rows<{ view: number; anchor: number; head: number }>(
    'select view_position as view, last_anchor_position as anchor, head_position as head from boxcar.boxes where id = $1',
    [turn.tapeId],
  );
  if (row === undefined) throw new Error('no tape');
  return row;
};

describe('an anchor', () => {
  test('that is written while calls are open leaves their step in the view; an anchor after their results does not', async () => {
    const turn = await world.running({ profile, holder });
    const start = (await tapeOf(turn)).head;
    const [call] = await world.call(turn, 1);
    if (call === undefined) throw new Error('no call');
    const first = await append(turn.tapeId, [message(), anchor()]);
    expect(await tapeOf(turn)).toMatchObject({ view: start + 1, anchor: first + 1 });
    await append(turn.tapeId, [anchor('second')]);
    expect(await tapeOf(turn)).toMatchObject({ view: start + 1, anchor: first + 2 });
    await recordResults(world.pool, [world.result(turn, call)]);
    const last = await append(turn.tapeId, [anchor('third')]);
    expect(await tapeOf(turn)).toMatchObject({ view: last, anchor: last });
    const view = (await loadViews(world.pool, [turn])).get(turn.turnId);
    expect(view).toMatchObject({ lastAnchorPosition: last, entries: { length: 1 } });
  });

  test('that waited for the commit of a step sees the calls that the step has opened', async () => {
    const turn = await world.running({ profile, holder });
    const before = await tapeOf(turn);
    const held = holdCommits(world.pool);
    // A batch of this size is one transaction of several statements.
    const others = await Promise.all(Array.from({ length: 100 }, () => world.running({ profile, holder })));
    const commits = await Promise.all(
      [turn, ...others].map((each) => world.commit(each, { calls: [newId<'tool_call'>()] })),
    );
    const committed = commitSteps(held.pool, commits);
    const pid = await held.atCommit;
    const anchored = append(turn.tapeId, [anchor()]);
    await waitUntilBlocked(world.pool, { by: pid });
    held.release();
    await committed;
    const position = await anchored;
    expect(await tapeOf(turn)).toEqual({ view: before.head + 1, anchor: position, head: position });
    expect(position).toBe(before.head + 3);
  });

  test('on a fork ends the time in which the views of the fork begin with an earlier anchor', async () => {
    const turn = await world.running({ profile, holder });
    await world.rows('update boxcar.boxes set view_anchor_position = 1 where id = $1', [turn.tapeId]);
    await append(turn.tapeId, [message()]);
    expect(
      (
        await world.rows('select view_anchor_position as at from boxcar.boxes where id = $1', [turn.tapeId])
      )[0],
    ).toEqual({ at: 1 });
    await append(turn.tapeId, [anchor()]);
    expect(
      (
        await world.rows(
          'select view_anchor_position as at, anchor_count as n from boxcar.boxes where id = $1',
          [turn.tapeId],
        )
      )[0],
    ).toEqual({ at: null, n: 2 });
  });

  test('in a view that begins with an earlier anchor is shown at its own place', async () => {
    const turn = await world.running({ profile, holder });
    const first = await append(turn.tapeId, [anchor('from'), message('since'), anchor('intention')]);
    await world.rows('update boxcar.boxes set view_anchor_position = $2, view_position = $2 where id = $1', [
      turn.tapeId,
      first,
    ]);
    const view = (await loadViews(world.pool, [turn])).get(turn.turnId);
    expect(view?.lastAnchorPosition).toBe(first);
    expect(view?.entries.map(({ anchorName }) => anchorName)).toEqual(['from', null, 'intention']);
  });
});

describe('an append', () => {
  test('locks only the row of its tape', async () => {
    const turn = await world.running({ profile, holder });
    await using elsewhere = await begin(world.pool);
    await elsewhere.query('select from boxcar.turns for update');
    await elsewhere.query('select from boxcar.agents for no key update');
    await append(turn.tapeId, [message(), anchor()]);
  });

  test('to a closed fork, an archived tape or a tape of another project leaves no change', async () => {
    const turn = await world.running({ profile, holder });
    const [, open] = await forkChain(world.pool, turn.tapeId, [
      { at: 0, upto: 2, noise: 1 },
      { at: 2, upto: 3, noise: 0 },
    ]);
    const attempt = async (boxId: BoxId, projectId = DEFAULT_PROJECT) =>
      (
        await appendEntries(world.pool, {
          projectId,
          actorId: OPERATOR,
          boxId,
          entries: [message()],
          dedupKey: newId(),
        })
      ).outcome;
    if (open === undefined) throw new Error('no fork');
    expect(await attempt(open)).toBe('appended');
    await world.rows("update boxcar.boxes set fork_status = 'merged' where id = $1", [open]);
    const cards = await world.count('cards');
    expect(await attempt(open)).toBe('closed');
    await world.rows('update boxcar.boxes set archived_at = now() where id = $1', [open]);
    expect(await attempt(open)).toBe('archived');
    expect(await attempt(turn.tapeId, (await world.project(newId())).projectId)).toBe('not_found');
    expect(await world.count('cards')).toBe(cards + 1); // the bootstrap card of the other project
    await expect(
      world.rows('update boxcar.boxes set head_position = head_position + 1 where id = $1', [open]),
    ).rejects.toMatchObject({ code: 'BX001' });
    await expect(
      world.rows("update boxcar.boxes set line_ends = '{1}' where id = $1", [open]),
    ).rejects.toMatchObject({ code: 'BX001' });
  });
});

describe('the right to append', () => {
  interface Case {
    readonly entries: () => readonly NewTapeEntry[];
    readonly within?: boolean;
  }
  const CASES: [string, Case][] = [
    ['a message', { entries: () => [message()] }],
    ['an anchor', { entries: () => [anchor()] }],
    ['a message of a primitive', { entries: () => [message()], within: true }],
    ['an anchor of a primitive', { entries: () => [message(), anchor()], within: true }],
  ];
  const write = (boxId: BoxId, { entries, within }: Case, actorId: AgentId) => {
    const request = { projectId: DEFAULT_PROJECT, actorId, boxId, entries: entries(), dedupKey: newId() };
    return within === true
      ? transaction(world.pool, (tx) => appendWithin(tx, request))
      : appendEntries(world.pool, request);
  };
  /** A tape of one agent to which another agent may append. */
  const shared = async (): Promise<{ turn: TestTurn; guest: AgentId }> => {
    const turn = await world.running({ profile, holder });
    const guest = (await world.running({ profile, holder })).agentId;
    await world.rows(
      "insert into boxcar.grants (project_id, agent_id, box_id, mode, source) values ($1, $2, $3, 'append', 'test')",
      [DEFAULT_PROJECT, guest, turn.tapeId],
    );
    return { turn, guest };
  };

  test.each(CASES)(
    'is no longer valid when it was taken back while %s waited for the tape',
    async (_what, each) => {
      const { turn, guest } = await shared();
      expect((await write(turn.tapeId, each, guest)).outcome).toBe('appended');
      const { head } = await tapeOf(turn);
      await using elsewhere = await begin(world.pool);
      await elsewhere.query('select from boxcar.boxes where id = $1 for no key update', [turn.tapeId]);
      const late = write(turn.tapeId, each, guest);
      await waitUntilBlocked(world.pool, { by: elsewhere.pid });
      await world.rows('delete from boxcar.grants where box_id = $1 and agent_id = $2', [turn.tapeId, guest]);
      await elsewhere.query('commit');
      expect(await late).toEqual({ outcome: 'forbidden' });
      expect(await tapeOf(turn)).toMatchObject({ head });
    },
  );

  test('is no longer valid when it was taken back while a merge waited for the tape', async () => {
    const { turn, guest } = await shared();
    const boxId = newId<'box'>();
    const fork = { boxId, projectId: DEFAULT_PROJECT, parentBoxId: turn.tapeId, openedBy: guest, upto: null };
    await makeFork(world.pool, { ...fork, turnId: null, key: 'fork', mergeBack: true, onError: 'merge' });
    const row = await findFork(world.pool, DEFAULT_PROJECT, boxId);
    if (row === undefined) throw new Error('no fork');
    await using elsewhere = await begin(world.pool);
    await elsewhere.query('select from boxcar.boxes where id = $1 for no key update', [turn.tapeId]);
    const late = mergeFork(world.pool, row, { parentBoxId: turn.tapeId, authorId: guest });
    await waitUntilBlocked(world.pool, { by: elsewhere.pid });
    await world.rows('delete from boxcar.grants where box_id = $1 and agent_id = $2', [turn.tapeId, guest]);
    await elsewhere.query('commit');
    expect(await late).toMatchObject({ outcome: 'forbidden' });
  });

  test.each(CASES)('is valid when it was given while %s waited for the tape', async (_what, each) => {
    const { turn, guest } = await shared();
    await world.rows('delete from boxcar.grants where box_id = $1', [turn.tapeId]);
    await using elsewhere = await begin(world.pool);
    await elsewhere.query('select from boxcar.boxes where id = $1 for no key update', [turn.tapeId]);
    const late = write(turn.tapeId, each, guest);
    await waitUntilBlocked(world.pool, { by: elsewhere.pid });
    await world.rows(
      "insert into boxcar.grants (project_id, agent_id, box_id, mode, source) values ($1, $2, $3, 'append', 'test')",
      [DEFAULT_PROJECT, guest, turn.tapeId],
    );
    await elsewhere.query('commit');
    expect(await late).toMatchObject({ outcome: 'appended' });
  });

  test.each(CASES)(
    'of an owner is no longer valid when the tape was handed over while %s waited for the tape',
    async (_what, each) => {
      const { turn, guest } = await shared();
      await using elsewhere = await begin(world.pool);
      await elsewhere.query('select from boxcar.boxes where id = $1 for no key update', [turn.tapeId]);
      const late = write(turn.tapeId, each, turn.agentId);
      await waitUntilBlocked(world.pool, { by: elsewhere.pid });
      await handOverTape(elsewhere, {
        projectId: DEFAULT_PROJECT,
        boxId: turn.tapeId,
        fromAgentIds: [turn.agentId],
        newOwnerId: guest,
      });
      await elsewhere.query('commit');
      expect(await late).toEqual({ outcome: 'forbidden' });
    },
  );
});

describe('an append of an existing card', () => {
  test('keeps that card, and is refused when the card was removed', async () => {
    const turn = await world.submit({ profile });
    const [row] = await world.rows<{ id: CardId }>(
      'select card_ids[1] as id from boxcar.boxes where id = $1',
      [turn.contextBoxId],
    );
    const entry = (id: CardId): NewTapeEntry => ({ ...message(), card: { id, tokenEstimate: 1 } });
    const held = holdCommits(world.pool);
    const appended = append(turn.tapeId, [entry(row?.id ?? newId<'card'>())], held.pool);
    const pid = await held.atCommit;
    const locked = world.rows('select from boxcar.cards where id = $1 for update', [row?.id]);
    await waitUntilBlocked(world.pool, { by: pid });
    held.release();
    await Promise.all([appended, locked]);
    await expect(append(turn.tapeId, [entry(newId<'card'>())])).rejects.toThrow('not_found');
  });
});

describe('a reset', () => {
  test('that is requested again with the same new box is the same reset', async () => {
    const boxId = newId<'box'>();
    await createTape(world.pool, { ...operator, boxId, name: 'again' });
    const request = {
      projectId: DEFAULT_PROJECT,
      boxId,
      newBoxId: newId<'box'>(),
      authorId: OPERATOR,
      archive: null,
    };
    expect(await resetTape(world.pool, request)).toEqual({ outcome: 'reset', incarnation: 2 });
    expect(await resetTape(world.pool, request)).toEqual({ outcome: 'reset', incarnation: 2 });
    expect(await resetTape(world.pool, { ...request, newBoxId: newId<'box'>() })).toEqual({
      outcome: 'archived',
    });
    expect(await findTape(world.pool, { kind: 'name', name: 'again' }, operator)).toMatchObject({
      boxId: request.newBoxId,
      incarnation: 2,
    });
  });
});

describe('on a long tape', () => {
  const N = 100_000;
  /** Anchors are frequent, and half of them have the same name: look-ups must not read all of them. */
  const EACH = 500;
  const RARE = 25_000;
  let flat: BoxId;
  let fork: BoxId;

  beforeAll(async () => {
    flat = newId<'box'>();
    await createTape(world.pool, { ...operator, boxId: flat, name: 'long' });
    const filler = card(text('filler'));
    await append(flat, [{ ...message(), card: filler }]);
    // A few anchors and even fewer results; the entries are a second apart.
    await world.rows(
      `insert into boxcar.tape_entries (box_id, position, kind, card_id, tokens, anchor_name, author_id, created_at)
       select $1, n, case when n % ${EACH} = 0 then 'anchor' when n % ${RARE} = 1 then 'tool_result' else 'message' end, $2, 1,
         case when n % ${EACH} = 0 then case n / ${EACH} % 2 when 0 then 'phase' || n / ${EACH} else 'again' end end, 'x', timestamptz '2026-01-01' + n * interval '1 second' from generate_series(4, ${N}) n`,
      [flat, filler.id],
    );
    await world.rows(
      `update boxcar.boxes set head_position = ${N}, last_anchor_position = ${N}, view_position = ${N}, anchor_count = ${N / EACH + 1} where id = $1`,
      [flat],
    );
    fork = newId<'box'>();
    await world.rows(
      `insert into boxcar.boxes (id, project_id, kind, maker_agent_id, incarnation, head_position, last_anchor_position, view_position, anchor_count, parent_box_id, fork_position, line_boxes, line_ends)
       select $2, project_id, 'tape', maker_agent_id, 1, ${N}, ${N}, ${N}, anchor_count, id, ${N}, array[id], array[${N}] from boxcar.boxes where id = $1`,
      [flat, fork],
    );
    await world.rows('analyze boxcar.tape_entries, boxcar.boxes');
  });

  interface Node {
    readonly 'Relation Name'?: string;
    readonly 'Node Type': string;
    readonly 'Actual Rows': number;
    readonly 'Actual Loops': number;
    readonly 'Rows Removed by Filter'?: number;
    readonly 'Rows Removed by Index Recheck'?: number;
    readonly Plans?: readonly Node[];
  }

  /** Rows of tables that a plan read, including discarded rows. */
  const readsOf = (node: Node): number =>
    (node['Relation Name'] === undefined
      ? 0
      : (node['Actual Rows'] +
          (node['Rows Removed by Filter'] ?? 0) +
          (node['Rows Removed by Index Recheck'] ?? 0)) *
        node['Actual Loops']) + (node.Plans ?? []).reduce((sum, plan) => sum + readsOf(plan), 0);

  const literal = (value: unknown): string =>
    value === null ? 'null' : pg.escapeLiteral(Array.isArray(value) ? `{${value.join()}}` : String(value));

  /** The plan of a statement as on a pool of the kernel: a generic plan, made once. */
  async function planOf({ text: sql, values = [] }: pg.QueryConfig): Promise<Node> {
    const client = await world.pool.connect();
    try {
      await client.query(`prepare explained as ${sql}`);
      const { rows } = await client.query<{ 'QUERY PLAN': { Plan: Node }[] }>(
        `explain (analyze, format json) execute explained(${(values as unknown[]).map(literal).join()})`,
      );
      await client.query('deallocate explained');
      return rows[0]?.['QUERY PLAN'][0]?.Plan as Node;
    } finally {
      client.release();
    }
  }

  /** The number of rows that `work` returns, and the number that the plans of its statements read. */
  async function readBy(work: (pool: pg.Pool) => Promise<unknown>): Promise<{ rows: number; read: number }> {
    let rows = 0;
    let read = 0;
    const explaining = {
      query: async (asked: pg.QueryConfig) => {
        read += readsOf(await planOf(asked));
        const answer = await world.pool.query(asked);
        rows += answer.rows.length;
        return answer;
      },
    };
    await work(explaining as unknown as pg.Pool);
    return { rows, read };
  }

  const since = '2026-01-01T00:00:00Z';
  const CASES: [string, number, (pool: pg.Pool, boxId: BoxId) => Promise<unknown>, number?][] = [
    ['after an anchor near the head', 100, (pool, id) => loadEntries(pool, id, { from: N - 99, to: N })],
    [
      'the oldest part of a long slice',
      10,
      (pool, id) => loadEntries(pool, id, { from: 4, to: N, limit: 10 }),
    ],
    [
      'of a rare kind',
      3,
      (pool, id) => loadEntries(pool, id, { from: 4, to: N, kinds: ['tool_result', 'error'] }),
    ],
    [
      'the last anchors',
      2,
      (pool, id) => loadEntries(pool, id, { from: 1, to: N, kinds: ['anchor'], limit: 2, edge: 'newest' }),
    ],
    [
      'of some dates',
      61,
      (pool, id) =>
        loadEntries(pool, id, {
          from: 1,
          to: N,
          since: '2026-01-01T10:00:00Z',
          until: '2026-01-01T10:01:00Z',
        }),
    ],
    [
      'of all dates in a short slice',
      100,
      (pool, id) => loadEntries(pool, id, { from: N - 99, to: N, since }),
    ],
    [
      'of a rare kind and all dates in a short slice',
      1,
      (pool, id) => loadEntries(pool, id, { from: N - 99, to: N, since, kinds: ['anchor'], limit: 5 }),
    ],
    [
      'of a rare kind and all dates',
      3,
      (pool, id) => loadEntries(pool, id, { from: 4, to: N, since, kinds: ['tool_result', 'error'] }),
    ],
    [
      'the latest anchor of a name',
      1,
      (pool, id) => findAnchor(pool, id, 'phase2', { from: 1, to: N, edge: 'latest' }),
    ],
    [
      'the first anchor of a name',
      1,
      (pool, id) => findAnchor(pool, id, 'phase4', { from: 10, to: N, edge: 'first' }),
    ],
    [
      'the latest of many anchors of a name',
      1,
      (pool, id) => findAnchor(pool, id, 'again', { from: 1, to: N, edge: 'latest' }),
    ],
    [
      'the first of many anchors of a name',
      1,
      (pool, id) => findAnchor(pool, id, 'again', { from: 10, to: N, edge: 'first' }),
    ],
    // Searches the entries near the head for a turn.
    [
      'the name of the tape',
      1,
      (pool, id) => loadTapeFacts(pool, id, { anchor: N, head: N, within: null }),
      200,
    ],
    [
      'a place by its entry',
      1,
      (pool, id) => findTapePlace(pool, { tape: { id, name: '' }, position: N - 5 }, operator),
      10,
    ],
    [
      'a place by an anchor and a head',
      1,
      (pool, id) => findTapePlace(pool, { tape: { id, name: '' }, anchor: 'phase2', head: N - 5 }, operator),
      30,
    ],
    [
      'a handed-over part',
      100,
      (pool, id) =>
        loadTapeSlice(pool, { anchor: 1, from: N - 99, to: N }, { box_id: id, readable: '{[1,)}' }),
    ],
    ['the tape itself', 1, (pool, id) => findTape(pool, { kind: 'box', boxId: id }, operator)],
  ];

  test.each(CASES)('%s is read without the other entries', async (_what, expected, ask, more = 0) => {
    for (const boxId of [flat, fork]) {
      const { rows, read } = await readBy((pool) => ask(pool, boxId));
      expect(rows).toBe(expected);
      // Each entry with its card, and a few rows for the tape.
      expect(read).toBeLessThanOrEqual(2 * rows + 10 + more);
    }
  });

  test('a fork costs the same as a fork of ten entries', async () => {
    const short = newId<'box'>();
    await createTape(world.pool, { ...operator, boxId: short, name: 'short' });
    await append(
      short,
      Array.from({ length: 8 }, () => message()),
    );
    const cost = (parentBoxId: BoxId) =>
      readBy((pool) =>
        makeFork(pool, {
          boxId: newId<'box'>(),
          projectId: DEFAULT_PROJECT,
          parentBoxId,
          openedBy: OPERATOR,
          turnId: null,
          key: 'fork',
          mergeBack: true,
          onError: 'merge',
          upto: null,
        }),
      );
    const little = await cost(short);
    expect(await cost(flat)).toEqual(little);
    expect(await cost(fork)).toEqual(little);
    expect(little.read).toBeLessThan(10);
  });

  const nodesOf = (node: Node): readonly Node[] => [node, ...(node.Plans ?? []).flatMap(nodesOf)];

  test('a range of a tape without ancestors is one search by the primary key', async () => {
    const { prepared, values } = entriesStatement({ from: N - 9, to: N });
    const run = nodesOf(await planOf({ text: prepared.text, values: [flat, ...values] })).filter(
      (node) => node['Relation Name'] === 'tape_entries' && node['Actual Loops'] > 0,
    );
    expect(run).toMatchObject([{ 'Index Name': 'tape_entries_pkey', 'Actual Rows': 10, 'Actual Loops': 1 }]);
  });
});
