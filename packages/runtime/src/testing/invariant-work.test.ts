/** Each check of the invariants reads whole tables, but its work grows only in proportion to the database. */
import { INVARIANTS, inspectInvariants, invariantStatement } from '@boxcar/store/report';
import { waitFor } from '@boxcar/testkit';
import pg from 'pg';
import { afterAll, beforeAll, expect, test } from 'vitest';
import type { TurnResult } from '../queue/turn-result.js';
import { copyRuns, readRuns } from './copy-runs.js';
import { type Harness, harness } from './harness.js';

/** The number of copies of the pattern at first, and the factor by which this number then grows. */
const COPIES = 50;
const FACTOR = 4;
/** Sorts grow a little faster than their rows, and Postgres reads small tables in other ways than large ones. */
const TOLERANCE = 1.5;

let h: Harness;
let db: pg.Client;
const work = new Map<string, readonly [few: number, many: number]>();
let turns = 0;

beforeAll(async () => {
  h = await harness();
  db = new pg.Client({ connectionString: h.database.url });
  await db.connect();
  await runPattern();
  const runs = await readRuns(db);
  await copyRuns(db, runs, { first: 1, last: COPIES });
  const few = await readWork();
  await copyRuns(db, runs, { first: COPIES + 1, last: FACTOR * COPIES });
  const many = await readWork();
  const { rows } = await db.query<{ n: number }>('select count(*)::int as n from boxcar.turns');
  turns = rows[0]?.n ?? 0;
  for (const { name } of INVARIANTS)
    work.set(name, [few.get(name) ?? Number.NaN, many.get(name) ?? Number.NaN]);
});
afterAll(async () => {
  await db.end();
  await h[Symbol.asyncDispose]();
});

/** Turns of many kinds: ended and waiting, with boxes, children, batches and accounts, and several turns on one tape. */
async function runPattern(): Promise<void> {
  const policy = { delegation_policy: { target_profiles: null } };
  const cards = [{ type: 'note', role: 'user', content: { kind: 'text', text: 'A fact.' } }];
  const box = { tool: 'create_box', arguments: { cards } };
  const ask = (target_ref: string) => ({
    tool: 'delegate_async',
    arguments: {
      target_strategy: 'new',
      target_ref,
      instruction: 'go',
      context_box_id: '{{results/create_box/box_id}}',
      wait: true,
    },
  });
  const task = { target_strategy: 'new', target_ref: 'writer', instruction: 'go' };
  const join = { tool: 'fork_join', arguments: { tasks: [task, task, task] } };
  const tools = ['create_box', 'delegate_async', 'fork_join'];
  await h.profile('writer', [{ say: 'written' }]);
  await h.profile('absent', [{ say: 'never' }], { worker_target: 'nowhere' });
  for (const [name, calls] of [
    ['boss', [box, ask('writer')]],
    ['lead', [join]],
    ['waiter', [box, ask('absent')]],
  ] as const)
    await h.profile(name, [...calls.map((call) => ({ calls: [call] })), { say: 'done' }], {
      tools,
      ...policy,
    });
  await using _worker = await h.worker();
  const submit = async (primitive: string, args: object): Promise<TurnResult> =>
    (await h.runtime.submit(primitive, args)) as unknown as TurnResult;
  const launch = (profile_name: string) =>
    submit('launch_principal', { profile_name, instruction: 'go', budget: { tokens: 100_000 } });
  for (const name of ['boss', 'lead']) await h.runtime.waitForTurn((await launch(name)).turn_id);
  const first = await h.runtime.waitForTurn((await launch('writer')).turn_id);
  const { box_id } = (await h.runtime.submit('create_box', { cards })) as { box_id: string };
  for (let n = 0; n < 4; n++) {
    const { turn_id } = await submit('delegate_async', {
      target_strategy: 'reuse',
      target_ref: first.agent_id,
      instruction: 'go on',
      context_box_id: box_id,
      wait: false,
    });
    await h.runtime.waitForTurn(turn_id);
  }
  const waiting = "select from boxcar.turns where id = $1 and status = 'suspended'";
  const { turn_id } = await launch('waiter');
  await waitFor(async () => (await h.rows(waiting, [turn_id])).length > 0, { message: 'the waiter waits' });
}

interface PlanNode {
  readonly 'Actual Rows': number;
  readonly 'Actual Loops': number;
  readonly 'Rows Removed by Filter'?: number;
  readonly 'Rows Removed by Join Filter'?: number;
  readonly 'Rows Removed by Index Recheck'?: number;
  readonly Plans?: readonly PlanNode[];
}

/** Rows that all nodes of a plan returned or discarded. */
const rowsOf = (node: PlanNode): number =>
  node['Actual Loops'] *
    (node['Actual Rows'] +
      (node['Rows Removed by Filter'] ?? 0) +
      (node['Rows Removed by Join Filter'] ?? 0) +
      (node['Rows Removed by Index Recheck'] ?? 0)) +
  (node.Plans ?? []).reduce((sum, plan) => sum + rowsOf(plan), 0);

async function readWork(): Promise<ReadonlyMap<string, number>> {
  const found = new Map<string, number>();
  // Autovacuum would do this soon. With the statistics of a small table, Postgres chooses nested loops for a large table.
  await db.query('analyze');
  for (const invariant of INVARIANTS) {
    const { text } = invariantStatement(invariant, undefined);
    const { rows } = await db.query<{ 'QUERY PLAN': readonly { readonly Plan: PlanNode }[] }>(
      `explain (analyze, costs off, timing off, format json) ${text}`,
      [20],
    );
    const plan = rows[0]?.['QUERY PLAN'][0]?.Plan;
    if (plan === undefined) throw new Error(`${invariant.name} has no plan`);
    found.set(invariant.name, rowsOf(plan));
  }
  return found;
}

test('the pattern and its copies violate no invariant', async () => {
  const reports = await inspectInvariants(h.database.pool);
  expect(reports.filter(({ state }) => state !== 'holds')).toEqual([]);
  const [count] = await h.rows<{ n: number }>('select count(*)::int as n from boxcar.turns');
  expect(count?.n).toBeGreaterThan(FACTOR * COPIES * 10);
});

test.each(INVARIANTS.map(({ name }) => name))(
  'the work of %s grows with the rows, not with their square',
  (name) => {
    const [few = Number.NaN, many = Number.NaN] = work.get(name) ?? [];
    // `1_000` allows for constant parts when there are few rows of a kind. `turns` allows for a plan that changes from an index to the
    // whole table as the table grows.
    expect(many).toBeLessThan(Math.max(few * FACTOR * TOLERANCE, turns) + 1_000);
  },
);
