/** Statements on large tables read only the rows that they concern. */
import type { ToolCallId, TurnId, WorkerId } from '@boxcar/kernel';
import type pg from 'pg';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { createPool } from '../db/pool.js';
import { writeSubmission } from '../submit/submission.js';
import { countReads } from '../testing/count-reads.js';
import { DEFAULT_PROJECT, type TestProfile, type TestTurn, World } from '../testing/world.js';
import { promote } from '../work/promote.js';
import { probe } from '../work/sweep.js';
import { findAnswerableJobs } from '../work/waiting-jobs.js';
import { advanceTurns, recordResults } from './tool-calls.js';

const N = 20_000;
const LITTLE = 500;

let world: World;
/** One connection, so that its reads are counted when it reports them. */
let pool: pg.Pool;
/** A profile of a target without a queue. */
let profile: TestProfile;
let holder: WorkerId;

const id = (kind: number, n = 'n'): string =>
  `('${kind}0000000-0000-7000-8000-' || lpad(to_hex(${n}), 12, '0'))::uuid`;
const insertTurns = (kind: number, columns: Readonly<Record<string, string>>) =>
  world.rows(
    `insert into boxcar.turns (id, project_id, run_id, agent_id, profile_id, depth, primitive, epoch, max_steps, context_box_id, output_box_id, ${Object.keys(columns).join()})
    select ${id(kind)}, $1, ${id(9, 'n / 10')}, ${id(kind)}, $1, 0, 'p', 1, 10, $1, $1, ${Object.values(columns).join()} from generate_series(1, ${N}) n`,
    [DEFAULT_PROJECT],
  );

beforeAll(async () => {
  world = await World.open();
  profile = await world.profile('writer', { workerTarget: 'other' });
  holder = await world.worker({ targets: ['', 'other'] });
  pool = createPool({ connectionString: world.database.url, max: 1 });
  await insertTurns(1, { status: "'queued'" });
  await insertTurns(2, { status: "'suspended'", pending_calls: '1', start_position: '1', notifies: 'true' });
  await insertTurns(3, {
    status: "'success'",
    ended_at: 'now()',
    deliverable_card_id: '$1',
    notifies: 'false',
  });
  await world.rows(
    `insert into boxcar.tool_calls (id, project_id, turn_id, step, ordinal, provider_call_id, name, arguments, route, retry, epoch, status, deadline_at)
    select ${id(2)}, $1, ${id(2)}, 1, 1, 'x', 'look', '{}', 'primitive', 'safe', 1, 'pending', now() + interval '1 hour' from generate_series(1, ${N}) n`,
    [DEFAULT_PROJECT],
  );
  await world.rows(
    `insert into boxcar.operations (project_id, idempotency_key, primitive, request_hash, response, awaited_turn_id, door_job_id)
    select $1, n::text, 'p', '\\x00', '{}', ${id(1)}, n::text from generate_series(1, ${N}) n`,
    [DEFAULT_PROJECT],
  );
  await world.rows('analyze');
});
afterAll(async () => {
  await pool.end();
  await world[Symbol.asyncDispose]();
});

const readsOf = (work: () => Promise<unknown>): Promise<number> => countReads(pool, work);

test('a turn whose last result arrives continues without reading the other turns', async () => {
  const turn = await world.running({ profile, holder });
  const [call] = await world.call(turn, 1);
  if (call === undefined) throw new Error('no call');
  expect(await readsOf(() => recordResults(pool, [world.result(turn, call)]))).toBeLessThan(LITTLE);
  const next = await world.running({ profile, holder });
  const results = (await world.call(next, 2)).map((callId) => world.result(next, callId));
  const advance = { turnId: next.turnId, epoch: 1, holderId: holder, results };
  expect(await readsOf(() => advanceTurns(pool, [advance]))).toBeLessThan(LITTLE);
});

test('each result of thousands of calls takes no longer than a result of a few calls', async () => {
  const n = 3_000;
  // On this connection: the reads of another connection are counted later, perhaps in the middle of a later test.
  const { rows: calls } = await pool.query<{ id: ToolCallId; turn_id: TurnId }>(
    "select id, turn_id from boxcar.tool_calls where name = 'look' order by id limit $1",
    [n],
  );
  const results = calls.map((call) =>
    world.result({ turnId: call.turn_id, projectId: DEFAULT_PROJECT } as TestTurn, call.id),
  );
  let recorded: unknown;
  const reads = await readsOf(async () => {
    recorded = await recordResults(pool, results);
  });
  expect(recorded).toMatchObject({ rings: { length: n }, duplicates: [] });
  // A separate search through all calls for each result would read thousands of rows per search.
  expect(reads).toBeLessThan(n * 20);
});

test('the search for queued turns of a target does not read turns of other targets', async () => {
  expect(await readsOf(() => promote(pool, 'other'))).toBeLessThan(LITTLE);
  const { submission } = world.draft({ profile });
  expect(await readsOf(() => writeSubmission(pool, submission))).toBeLessThan(LITTLE);
});

test('a sweep that finds nothing due reads little, and checks waiting jobs in parts', async () => {
  expect(await readsOf(() => probe(pool, { lostRingMs: 2_000 }))).toBeLessThan(LITTLE);
  await world.rows(
    `update boxcar.turns set status = 'canceled', ended_at = now() - interval '1 minute', deliverable_card_id = $1 where id = ${id(1, String(N))}`,
    [DEFAULT_PROJECT],
  );
  const found: string[] = [];
  let passes = 0;
  for (let after: string | undefined, isFirst = true; isFirst || after !== undefined; isFirst = false) {
    const reads = await readsOf(async () => {
      const { jobs, next } = await findAnswerableJobs(pool, { of: 'turns', after, limit: 5_000 });
      found.push(...jobs.map((job) => job.job_id));
      after = next;
    });
    expect(reads).toBeLessThan(4 * 5_000);
    passes++;
  }
  expect(found).toEqual([String(N)]);
  expect(passes).toBe(5);
});
