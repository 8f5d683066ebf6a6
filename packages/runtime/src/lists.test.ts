import { KernelError, type ProjectId } from '@boxcar/kernel';
import { eraseCards, purgeRuns } from '@boxcar/store';
import { waitFor } from '@boxcar/testkit';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { z } from 'zod';
import { newId } from './lib/new-id.js';
import { statementsOf } from './testing/count-statements.js';
import { type Harness, harness } from './testing/harness.js';
import { checkInvariants } from './testing/invariants.js';

const PROJECT = '00000000-0000-7000-8000-000000000001' as ProjectId;

let h: Harness;

interface Receipt {
  readonly turn_id: string;
  readonly agent_id: string;
}
const ask = (profile_name: string, instruction: string, options: object = {}): Promise<Receipt> =>
  h.runtime.submit('launch_principal', { profile_name, instruction }, options) as unknown as Promise<Receipt>;
const task = (target_ref: string, instruction: string) => ({
  target_strategy: 'new',
  target_ref,
  instruction,
});
const untilEnded = (n: number): Promise<unknown> =>
  waitFor(async () => (await h.rows('select from boxcar.turns where ended_at is not null')).length === n, {
    message: `${n} turns have ended`,
  });
const refusalOf = (work: Promise<unknown>): Promise<unknown> =>
  work.then(
    () => 'done',
    (error: unknown) => (error instanceof KernelError ? `${error.code}: ${error.message}` : error),
  );
const wordRows = () =>
  h.rows<{ box_id: string; words: string | null }>(
    'select box_id, words from boxcar.tape_words where position = 0 order by box_id',
  );

let first: Receipt;
let second: Receipt;
let broken: Receipt;
let many: { readonly turn_ids: readonly string[] };

beforeAll(async () => {
  h = await harness();
  await h.profile('quick', [{ say: 'old' }]);
  await h.profile('quick', [{ say: 'done' }]);
  await h.profile('broken', [{ fail: { status: 400, message: 'no' } }]);
  await h.profile('parked', [{ say: 'never' }], { worker_target: 'nowhere' });
  first = await ask('quick', 'Größe der Datei: 100%_sure');
  second = await ask('quick', 'Read src/Index.ts', { channelId: 'ops' });
  broken = await ask('broken', 'Fail at once');
  many = (await h.runtime.submit('fork_join', {
    tasks: [task('quick', 'part one'), task('parked', 'part two')],
    wait: false,
  })) as unknown as typeof many;
});
afterAll(() => h[Symbol.asyncDispose]());

test('no tool is listed while no worker lives', async () => {
  expect(await h.runtime.listTools()).toEqual({
    tools: [],
    next_cursor: null,
    live_workers: 0,
    silent_workers: 0,
  });
  expect(await h.runtime.listPrimitives({ text: 'fork' })).toMatchObject({ primitives: [], live_workers: 0 });
});

describe('runs and turns in lists', () => {
  beforeAll(async () => {
    const worker = await h.worker();
    await untilEnded(4);
    // Otherwise the worker's statements would be counted with the statements of the lists.
    await worker.close();
  });

  const turnsOf = async (options: object = {}) =>
    (await h.runtime.listTurns(options)).turns.map((turn) => turn.turn_id);
  const runsOf = async (options: object = {}) =>
    (await h.runtime.listRuns(options)).runs.map((run) => run.root_turn_id);

  test('are ordered newest first with their details, page by page', async () => {
    const [one, two] = many.turn_ids;
    expect(await turnsOf()).toEqual([two, one, broken.turn_id, second.turn_id, first.turn_id]);
    expect(await runsOf()).toEqual([one, broken.turn_id, second.turn_id, first.turn_id]);
    const { runs } = await h.runtime.listRuns();
    expect(runs[0]).toMatchObject({
      roots: { success: 1, queued: 1 },
      turns: 2,
      primitive: 'fork_join',
      profile: 'quick',
      instruction: 'part one',
    });
    expect(
      runs.slice(1).map(({ roots, channel_id, instruction }) => [roots, channel_id, instruction]),
    ).toEqual([
      [{ failed: 1 }, 'public', 'Fail at once'],
      [{ success: 1 }, 'ops', 'Read src/Index.ts'],
      [{ success: 1 }, 'public', 'Größe der Datei: 100%_sure'],
    ]);
    const pages: string[] = [];
    let cursor: string | undefined;
    for (let n = 0; n < 3; n++) {
      const page = await h.runtime.listTurns({ limit: 2, ...(cursor === undefined ? {} : { cursor }) });
      pages.push(...page.turns.map((turn) => turn.turn_id));
      cursor = page.next_cursor ?? undefined;
    }
    expect([pages, cursor]).toEqual([await turnsOf(), undefined]);
  });

  test('are filtered by status, profile, agent, channel and time', async () => {
    const [one, two] = many.turn_ids;
    expect(await turnsOf({ status: 'failed' })).toEqual([broken.turn_id]);
    expect(await turnsOf({ status: ['failed', 'queued'] })).toEqual([two, broken.turn_id]);
    expect(await runsOf({ status: ['success', 'queued'] })).toEqual([one, second.turn_id, first.turn_id]);
    expect(await turnsOf({ profile: 'quick' })).toEqual([one, second.turn_id, first.turn_id]);
    expect(await runsOf({ profile: 'parked' })).toEqual([one]);
    expect(await turnsOf({ agent: first.agent_id })).toEqual([first.turn_id]);
    expect(await turnsOf({ channelId: 'ops' })).toEqual([second.turn_id]);
    expect(await runsOf({ channelId: 'public', status: 'success' })).toEqual([one, first.turn_id]);
    const { turns } = await h.runtime.listTurns({ profile: 'broken' });
    const since = turns[0]?.created_at;
    expect(await turnsOf({ since })).toEqual([two, one, broken.turn_id]);
    expect(await runsOf({ since, status: 'failed' })).toEqual([broken.turn_id]);
    expect(await turnsOf({ profile: 'quick', status: 'failed' })).toEqual([]);
  });

  test('are found by their instruction; the searched words are written by a search and not by a turn', async () => {
    expect(await wordRows()).toEqual([]);
    expect(await h.runtime.listTurns({ text: ' GRÖSSE der' })).toMatchObject({
      turns: [{ turn_id: first.turn_id }],
      next_cursor: null,
      search: { by: 'index' },
    });
    expect(await wordRows()).toHaveLength(5);
    for (const [text, found] of [
      ['100%_SURE', [first.turn_id]],
      ['100__sure', []],
      ['src/index', [second.turn_id]],
      ['part', [many.turn_ids[1], many.turn_ids[0]]],
      ['text', []],
    ] as const)
      expect([text, await turnsOf({ text })]).toEqual([text, found]);
    expect(await runsOf({ text: 'part' })).toEqual([many.turn_ids[0]]);
    expect(await runsOf({ text: 'part two', status: 'queued' })).toEqual([many.turn_ids[0]]);
    expect(await runsOf({ text: 'part', status: 'failed' })).toEqual([]);
    // Both roots of the run match; the run is listed once.
    for (const filters of [{ text: 'part' }, { status: ['success', 'queued'] as const }, { text: 'a' }]) {
      const pages: string[] = [];
      let cursor: string | undefined;
      do {
        const page = await h.runtime.listRuns({
          ...filters,
          limit: 1,
          ...(cursor === undefined ? {} : { cursor }),
        });
        pages.push(...page.runs.map((run) => run.root_turn_id));
        cursor = page.next_cursor ?? undefined;
      } while (cursor !== undefined);
      expect(pages).toEqual(await runsOf(filters));
      expect(new Set(pages).size).toBe(pages.length);
    }
    await checkInvariants(h.database.pool, { isSettled: false });
  });

  test('that were written by a transaction open during a search are found by the next search', async () => {
    const client = await h.database.pool.connect();
    try {
      await client.query('begin');
      const [id, run] = [newId(), newId()];
      // As a submission does: the times of its rows are the time at which its transaction began.
      await client.query('select now()');
      const late = await ask('quick', 'after the open one');
      expect(await turnsOf({ text: 'open one' })).toEqual([late.turn_id]);
      await client.query(`insert into boxcar.runs (id, project_id, root_turn_id) values ($2, $3, $1)`, [
        id,
        run,
        PROJECT,
      ]);
      await client.query(
        `insert into boxcar.turns (id, project_id, run_id, agent_id, profile_id, depth, primitive, status, epoch, max_steps, context_box_id, output_box_id, ended_at, deliverable_card_id)
         select $1, project_id, $2, agent_id, profile_id, 0, primitive, status, epoch, max_steps, context_box_id, output_box_id, ended_at, deliverable_card_id from boxcar.turns where id = $3`,
        [id, run, first.turn_id],
      );
      await client.query('commit');
      expect(await turnsOf({ text: 'größe' })).toEqual([id, first.turn_id]);
      await h.runtime.submit('cancel', { turn_id: late.turn_id });
      await h.rows('delete from boxcar.tape_words where box_id = $1', [id]);
      await h.rows('delete from boxcar.turns where id = $1', [id]);
      await h.rows('delete from boxcar.runs where id = $1', [run]);
    } finally {
      client.release();
    }
  });

  test('are searched among the newest without pg_trgm and for short texts, and the answer says so', async () => {
    expect(await h.runtime.listTurns({ text: 'da' })).toMatchObject({
      turns: [{ turn_id: first.turn_id }],
      search: { by: 'scan' },
    });
    const [index] = await h.rows<{ text: string }>(
      "select pg_get_indexdef('boxcar.tape_words_trigrams'::regclass) as text",
    );
    await h.rows('drop index boxcar.tape_words_trigrams');
    expect(await h.runtime.listRuns({ text: 'part' })).toMatchObject({
      runs: [{ root_turn_id: many.turn_ids[0] }],
      next_cursor: null,
      search: { by: 'scan' },
    });
    await h.rows(index?.text ?? '');
  });

  test('are not found by erased words, and not after a purge has removed them', async () => {
    const [card] = await h.rows<{ id: never }>(
      `select c.id from boxcar.turns t join boxcar.boxes b on b.id = t.context_box_id join boxcar.cards c on c.id = any (b.card_ids)
       where t.id = $1 and c.type = 'task.instruction'`,
      [second.turn_id],
    );
    await eraseCards(h.database.pool, card === undefined ? [] : [card.id], {
      projectId: PROJECT,
      reason: 'asked for',
    });
    expect((await wordRows()).filter(({ box_id }) => box_id === second.turn_id)).toEqual([]);
    expect(await turnsOf({ text: 'src/index' })).toEqual([]);
    const erased = (await h.runtime.listTurns({ channelId: 'ops' })).turns[0];
    expect(erased).toMatchObject({ turn_id: second.turn_id, instruction: '(erased)' });
    // The search has read the erased turn again.
    expect((await wordRows()).filter(({ box_id }) => box_id === second.turn_id)).toEqual([
      { box_id: second.turn_id, words: null },
    ]);
    await checkInvariants(h.database.pool, { isSettled: false });
    const before = new Date(Date.now() + 60_000);
    expect((await purgeRuns(h.database.pool, { before })).removed.runs).toBeGreaterThan(2);
    expect(await turnsOf({ text: 'fail at once' })).toEqual([]);
    expect((await wordRows()).map(({ box_id }) => box_id)).toEqual([...many.turn_ids].sort());
    await checkInvariants(h.database.pool, { isSettled: false });
  });

  test('are refused with all findings at once; an unknown project, profile or agent is refused as in other calls', async () => {
    const list = (options: object) => refusalOf(h.runtime.listTurns(options as never));
    expect(await list({ limit: 0, status: 'done', sinse: 'x', text: ' ' })).toMatch(
      /^bad_request: (?=.*limit: )(?=.*status: )(?=.*sinse)(?=.*text: )/s,
    );
    const encode = (text: string): string => Buffer.from(text).toString('base64url');
    const placeAt = (at: string, noun = 'turns'): string => encode(`${noun} ${at} ${newId()}`);
    const good = placeAt('2026-01-31T00:00:00.000000Z');
    expect(await list({ cursor: good })).toBe('done');
    const damaged = [
      ...['', 'x', 'a\0', `${good}!`, `${good} `, encode('turns 2026-01-01 x')],
      ...['2026-02-30T00:00:00.000000Z', '0000-01-01T00:00:00.000000Z'].map((at) => placeAt(at)),
      ...['2026-01-31T24:00:00.000000Z', '2026-01-31T23:59:60.000000Z'].map((at) => placeAt(at)),
      // A cursor of another list, which has other rows.
      ...['runs', 'agents', 'turn'].map((noun) => placeAt('2026-01-31T00:00:00.000000Z', noun)),
    ];
    for (const cursor of damaged)
      expect(await list({ cursor })).toMatch(/^bad_request: cursor: must be the next_cursor/);
    for (const cursor of [
      '',
      '!',
      encode('tools a\0b'),
      encode('tools '),
      encode('primitives x'),
      `${encode('tools x')}!`,
    ])
      expect(await refusalOf(h.runtime.listTools({ cursor }))).toMatch(/^bad_request: cursor: must be the/);
    expect(await refusalOf(h.runtime.listBoxes({ profile: 'x' } as never))).toMatch(
      /^bad_request: .*profile/,
    );
    expect(await list({ projectId: 'nowhere' })).toMatch(/^not_found: No project 'nowhere'\./);
    expect(await list({ profile: 'nobody' })).toMatch(
      /^not_found: No profile 'nobody' in project 'default'\./,
    );
    expect(await list({ agent: 'nobody' })).toMatch(/^not_found: No agent 'nobody' in project 'default'\./);
  });

  const LISTS = ['listRuns', 'listTurns', 'listAgents', 'listBoxes', 'listProjects', 'listTools'] as const;
  const TEXTS = ['text', 'profile', 'agent', 'channelId', 'projectId'] as const;
  const TAKEN: Readonly<Record<(typeof LISTS)[number], readonly string[]>> = {
    listRuns: TEXTS,
    listTurns: TEXTS,
    listAgents: ['text', 'profile', 'projectId'],
    listBoxes: ['text', 'agent', 'projectId'],
    listProjects: ['text'],
    listTools: ['text'],
  };

  test.each(LISTS.flatMap((list) => TAKEN[list].map((field) => [list, field] as const)))(
    'are refused for a value that no row can have: %s, %s',
    async (list, field) => {
      for (const value of ['a\0b', '\0', 'a\ud800b'])
        expect(await refusalOf(h.runtime[list]({ [field]: value }))).toMatch(
          new RegExp(`^bad_request: ${field}: contains a NUL character or a lone surrogate`),
        );
    },
  );

  test.each(LISTS.filter((list) => list !== 'listTools'))(
    'are refused for a time that Postgres does not know: %s',
    async (list) => {
      for (const since of [
        '0000-01-01T00:00Z',
        '-000005-01-01T00:00Z',
        '+010000-01-01T00:00Z',
        '+275760-01-01T00:00Z',
      ])
        expect(await refusalOf(h.runtime[list]({ since: new Date(since) }))).toMatch(
          /^bad_request: since: must be in the years 1 to 9999/,
        );
      for (const since of ['0001-01-01T00:00Z', '9999-12-31T23:59Z'])
        expect(await refusalOf(h.runtime[list]({ since: new Date(since) }))).toBe('done');
      expect(await refusalOf(h.runtime[list]({ since: new Date('2026-02-30T') }))).toMatch(
        /^bad_request: since: must be a date/,
      );
    },
  );

  test('take a constant number of statements', async () => {
    const cost = async (work: () => Promise<unknown>) => (await statementsOf(h.database, work)).length;
    const all = { profile: 'quick', agent: 'operator' };
    // Five statements: the project; begin, a setting, the page, commit.
    expect(await cost(() => h.runtime.listTurns())).toBe(5);
    expect(await cost(() => h.runtime.listTurns(all))).toBe(6);
    expect(await cost(() => h.runtime.listRuns({ status: ['failed', 'success'] }))).toBe(5);
    expect(await cost(() => h.runtime.listAgents({ text: 'x' }))).toBe(5);
    // Two more: where the written words end, and the turns that have no words yet.
    expect(await cost(() => h.runtime.listTurns({ text: 'nothing' }))).toBe(7);
  });
});

test('agents and boxes are listed with their owners', async () => {
  const { agents } = await h.runtime.listAgents({ profile: 'parked' });
  expect(agents).toMatchObject([{ profile: 'parked', profile_version: 1, owner: 'operator' }]);
  const agent = agents[0]?.name ?? '';
  const { boxes } = await h.runtime.listBoxes({ agent });
  expect(boxes.map(({ kind, owner, count }) => [kind, owner, count]).sort()).toEqual([
    ['context', agent, 2],
    ['tape', agent, 2],
  ]);
  await h.runtime.tape('Notes-1');
  expect((await h.runtime.listBoxes({ text: 'notes', limit: 1 })).boxes).toMatchObject([{ name: 'Notes-1' }]);
});

test('the lists contain the tools and primitives that live workers have registered', async () => {
  h.runtime.registerTool({ name: 'look.up', description: 'x', input: z.object({}), run: () => 1 });
  await h.worker({ targets: ['', 'gpu'] });
  await h.rows(
    `insert into boxcar.workers (id, lock_key, lease_until, targets, concurrency, info) values
       ($1, 1, now() + interval '1 hour', '{old}', 1, '{"primitives": ["cancel"]}'), ($2, 2, now() - interval '1 hour', '{dead}', 1, '{"tools": {"dead": ""}}'),
       ($3, 3, now() + interval '1 hour', '{}', 1, '{"primitives": {"cancel": "other", "own": "x"}}')`,
    [newId(), newId(), newId()],
  );
  expect(await h.runtime.listTools({ text: 'LOOK' })).toEqual({
    tools: [{ name: 'look.up', workers: 1, doors: 0, targets: ['', 'gpu'], versions: 1 }],
    next_cursor: null,
    live_workers: 2,
    silent_workers: 1,
  });
  const { primitives } = await h.runtime.listPrimitives({ text: 'c' });
  expect(primitives.find(({ name }) => name === 'cancel')).toEqual({
    name: 'cancel',
    workers: 1,
    doors: 1,
    targets: ['', 'gpu', 'old'],
    versions: 2,
  });
  const names: string[] = [];
  let cursor: string | undefined;
  do {
    const page = await h.runtime.listPrimitives({ limit: 5, ...(cursor === undefined ? {} : { cursor }) });
    names.push(...page.primitives.map(({ name }) => name));
    cursor = page.next_cursor ?? undefined;
  } while (cursor !== undefined);
  expect(names).toEqual([...h.runtime.handlers.keys(), 'own'].sort());
});
