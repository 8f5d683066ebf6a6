/** A question about one turn reads only the rows of that turn, however many other turns there are. */
import type { TurnId } from '@boxcar/kernel';
import { createPool, findTree, findTurnId, loadBudgets } from '@boxcar/store';
import { loadTree, loadWaitFacts } from '@boxcar/store/report';
import { waitFor } from '@boxcar/testkit';
import pg from 'pg';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { copyRuns, readRuns } from '../testing/copy-runs.js';
import { readsOf } from '../testing/count-reads.js';
import { type Harness, harness } from '../testing/harness.js';
import { explainStep, why } from './turn-prompts.js';

const COPIES = 600;
/**
 * More than the number of rows that a question about a turn of this size reads, and far less than the rows of any
 * table.
 */
const LITTLE = 200;
/** The count of turns ahead in a queue stops at a thousand. */
const QUEUE = 1_000;
const project = 'default';

let h: Harness;
/** This pool planned its statements when the tables were almost empty, and has kept the plans. */
let early: pg.Pool;
let late: pg.Pool;
let ended: TurnId;
let waiting: TurnId;

beforeAll(async () => {
  h = await harness();
  const policy = { delegation_policy: { target_profiles: null } };
  await h.profile('writer', [{ say: 'written' }]);
  await h.profile('absent', [{ say: 'never' }], { worker_target: 'nowhere' });
  for (const [name, expert_profile] of [
    ['boss', 'writer'],
    ['waiter', 'absent'],
  ] as const) {
    const ask = { tool: 'ask_expert', arguments: { expert_profile, question: 'What is known?' } };
    await h.profile(name, [{ calls: [ask] }, { say: 'done' }], { tools: ['ask_expert'], ...policy });
  }
  const launch = async (profile_name: string): Promise<TurnId> => {
    const receipt = await h.runtime.submit('launch_principal', { profile_name, instruction: 'Find it out.' });
    return (receipt as { turn_id: TurnId }).turn_id;
  };
  const worker = await h.worker();
  ended = await launch('boss');
  waiting = await launch('waiter');
  await h.runtime.waitForTurn(ended);
  await waitFor(
    async () =>
      (await h.rows("select from boxcar.turns where status = 'suspended' and id = $1", [waiting])).length ===
      1,
    { message: 'the turn waits' },
  );
  await worker.close();
  const openOne = (): pg.Pool => createPool({ connectionString: h.database.url, max: 1 });
  early = openOne();
  for (const ask of Object.values(QUESTIONS)) for (let time = 0; time < 6; time += 1) await ask(early);
  const db = new pg.Client({ connectionString: h.database.url });
  await db.connect();
  await copyRuns(db, await readRuns(db), { first: 1, last: COPIES });
  await db.query('analyze');
  await db.end();
  late = openOne();
});
afterAll(async () => {
  await Promise.all([early.end(), late.end()]);
  await h[Symbol.asyncDispose]();
});

const QUESTIONS: Readonly<Record<string, (pool: pg.Pool) => Promise<unknown>>> = {
  explain: (pool) => explainStep(pool, ended, { project }),
  'explain by a prefix of an id': (pool) => explainStep(pool, ended.slice(0, 30), { project }),
  'why of a text that occurs': (pool) => why(pool, ended, { text: 'Find it out', project }),
  'why of a text that does not occur': (pool) =>
    why(pool, ended, { text: 'a text that is nowhere', project }),
  'why-stuck': async (pool) => loadWaitFacts(pool, (await findTurnId(pool, waiting, project)).turnId),
  'why-stuck of a turn that has ended': (pool) => loadWaitFacts(pool, ended),
  'tree of a turn': async (pool) => loadTree(pool, (await findTree(pool, ended, { project })).roots),
  'tree of a run, with its budgets': async (pool) => {
    const { run_id: runId } = await loadTree(pool, (await findTree(pool, ended, { project })).roots);
    await findTree(pool, runId, { project });
    return loadBudgets(pool, runId);
  },
  'tree of a turn that waits': async (pool) =>
    loadTree(pool, (await findTree(pool, waiting, { project })).roots),
};

const sum = (reads: ReadonlyMap<string, number>): number =>
  [...reads].reduce((total, [name, n]) => (name === 'schema_version' ? total : total + n), 0);

test.each(Object.entries(QUESTIONS))('the report %s reads little of a large database', async (name, ask) => {
  const [{ n } = { n: 0 }] = await h.rows<{ n: number }>('select count(*)::int as n from boxcar.turns');
  expect(n).toBeGreaterThan(10 * LITTLE);
  for (const pool of [early, late]) {
    const reads = sum(await readsOf(pool, () => ask(pool), [early, late]));
    expect(reads).toBeGreaterThan(0);
    expect(reads).toBeLessThan(name === 'why-stuck' ? LITTLE + QUEUE : LITTLE);
  }
});
