/** Statements that change turns of the window read only those turns, however many others the window holds. */
import type { Ring, WorkerId } from '@boxcar/kernel';
import type pg from 'pg';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { createPool } from '../db/pool.js';
import { run } from '../db/statement.js';
import { THIS_BUILD } from '../rows/build.js';
import { countReads } from '../testing/count-reads.js';
import { DEFAULT_PROJECT, type TestProfile, type TestTurn, World } from '../testing/world.js';
import { CLAIM, claim } from '../turn/claims.js';
import { releaseTurns } from '../turn/turns.js';
import { PROMOTE } from './promote.js';
import { findStaleRings, type RingPlace, ringAgain } from './stale-rings.js';
import { takeOver } from './sweep.js';
import { wakeRetries } from './waits.js';

/** Turns of the window that a statement does not change. */
const WINDOW = 5_000;
const ENDED = 20_000;
/** More rows than a statement about {@link BATCH} turns reads, and far fewer than the window has. */
const LITTLE = 1_000;
const BATCH = 20;

interface PlanNode {
  readonly 'Node Type': string;
  readonly 'Relation Name'?: string;
  readonly 'Index Name'?: string;
  readonly 'Actual Rows': number;
  readonly 'Actual Loops': number;
  readonly Plans?: readonly PlanNode[];
}
const nodesOf = (node: PlanNode | undefined): readonly PlanNode[] =>
  node === undefined ? [] : [node, ...(node.Plans ?? []).flatMap(nodesOf)];
const isLittle = (reads: number): boolean => reads > 0 && reads < LITTLE;

let world: World;
let profile: TestProfile;
let other: TestProfile;
let holder: WorkerId;

const id = (kind: number): string => `('${kind}0000000-0000-7000-8000-' || lpad(to_hex(n), 12, '0'))::uuid`;
const insertTurns = (kind: number, count: number, columns: Readonly<Record<string, string>>) =>
  world.rows(
    `insert into boxcar.turns (id, project_id, run_id, agent_id, profile_id, depth, primitive, epoch, max_steps, context_box_id, output_box_id, ${Object.keys(columns).join()})
    select ${id(kind)}, $1, ${id(9)}, ${id(kind)}, $1, 0, 'p', 1, 10, $1, $1, ${Object.values(columns).join()} from generate_series(1, ${count}) n`,
    [DEFAULT_PROJECT],
  );
const openOne = (): pg.Pool => createPool({ connectionString: world.database.url, max: 1 });
const many = <T>(make: () => Promise<T>): Promise<T[]> => Promise.all(Array.from({ length: BATCH }, make));
const ringsOf = (turns: readonly Pick<TestTurn, 'turnId'>[], epoch = 1) =>
  turns.map(({ turnId }) => ({ turnId, epoch }));

/** Runs each statement on a few turns, and returns one item for each turn that it changed. */
const operations: Readonly<Record<string, () => Promise<(pool: pg.Pool) => Promise<unknown[]>>>> = {
  'a claim': async () => {
    const turns = await many(() => world.submit({ profile }));
    return async (pool) =>
      (await claim(pool, ringsOf(turns), holder)).filter(({ outcome }) => outcome === 'claimed');
  },
  'a claim of stale rings': async () => {
    const turns = await many(() => world.submit({ profile }));
    return (pool) => claim(pool, ringsOf(turns, 7), holder).then((all) => [...all]);
  },
  'a second ring': async () => {
    const rings: Ring[] = ringsOf(await many(() => world.submit({ profile }))).map((ring) => ({
      ...ring,
      workerTarget: '',
    }));
    return async (pool) => [...(await ringAgain(pool, rings))];
  },
  'a release': async () => {
    const turns = await many(() => world.running({ profile, holder }));
    return async (pool) => [
      ...(await releaseTurns(
        pool,
        holder,
        turns.map(({ turnId }) => ({ turnId, epoch: 1 })),
      )),
    ];
  },
  'a takeover': async () => {
    const dead = await world.worker({ leaseMs: 0 });
    const turns = await many(() => world.running({ profile, holder: dead }));
    const turnIds = turns.map(({ turnId }) => turnId);
    return async (pool) => [...(await takeOver(pool, { maxLosses: 10, limit: BATCH, turnIds }))];
  },
  'a wake': async () => {
    const turns = await many(() => world.running({ profile, holder }));
    const ids = turns.map(({ turnId }) => turnId);
    await world.rows(
      "update boxcar.turns set status = 'suspended', holder_id = null where id = any ($1::uuid[])",
      [ids],
    );
    await world.rows(
      `insert into boxcar.waits (turn_id, project_id, kind, due_at, detail)
       select id, $2, 'retry', now(), '{}' from unnest($1::uuid[]) id`,
      [ids, DEFAULT_PROJECT],
    );
    return async (pool) => [...(await wakeRetries(pool, ringsOf(turns)))];
  },
  'a promotion': async () => {
    const turns = await many(() => world.submit({ profile: other }));
    return (pool) => run(pool, PROMOTE, [turns.map(({ turnId }) => turnId)]);
  },
};

beforeAll(async () => {
  world = await World.open();
  profile = await world.profile('writer');
  other = await world.profile('other', { workerTarget: 'other' });
  // At the time of the last ANALYZE hardly any turn is under way.
  await insertTurns(1, ENDED, { status: "'success'", ended_at: 'now()', deliverable_card_id: '$1' });
  holder = await world.worker({ concurrency: 100_000 });
  await many(() => world.submit({ profile }));
  await world.rows('analyze');
});
afterAll(() => world[Symbol.asyncDispose]());

test.each(Object.entries(operations))(
  '%s reads as little in a large window as in a small window',
  async (_name, operation) => {
    const reads = async (pool: pg.Pool): Promise<number> => {
      const work = await operation();
      let changed: unknown[] = [];
      const count = await countReads(pool, async () => {
        changed = await work(pool);
      });
      expect(changed).toHaveLength(BATCH);
      return count;
    };
    const clear = () => world.rows('delete from boxcar.turns where ended_at is null');
    await clear();
    // Until then, index entries of deleted rows are still read.
    await world.rows('vacuum analyze');
    // The early connection keeps the plans that it makes in the small window.
    const [early, late] = [openOne(), openOne()];
    try {
      const few = await reads(early);
      await insertTurns(2, WINDOW, { status: "'dispatched'", dispatched_at: 'now()' });
      await insertTurns(4, WINDOW, { status: "'queued'", worker_target: "'far'" });
      await insertTurns(5, WINDOW, { status: "'suspended'" });
      const kept = await reads(early);
      const made = await reads(late);
      await world.rows('analyze boxcar.turns');
      const known = openOne();
      const afterAnalyze = await reads(known).finally(() => known.end());
      expect({ few, kept, made, afterAnalyze }).toEqual({
        few: expect.toSatisfy(isLittle),
        kept: expect.toSatisfy(isLittle),
        made: expect.toSatisfy(isLittle),
        afterAnalyze: expect.toSatisfy(isLittle),
      });
    } finally {
      await Promise.all([early.end(), late.end()]);
      await clear();
    }
  },
);

test('a page of the old rings of a large window is read without the rest of the window', async () => {
  const pool = openOne();
  try {
    await world.rows('delete from boxcar.turns where ended_at is null');
    const dispatched_at = "now() - n * interval '1 millisecond'";
    await insertTurns(2, WINDOW, { status: "'dispatched'", dispatched_at, worker_target: "'b'" });
    await insertTurns(4, WINDOW, { status: "'dispatched'", dispatched_at, worker_target: "'far'" });
    await insertTurns(5, WINDOW, { status: "'dispatched'", dispatched_at, worker_target: "'n' || n % 3" });
    // Otherwise index entries of the deleted rows would be read.
    await world.rows('vacuum boxcar.turns');
    await world.worker({ targets: ['b', 'n0', 'n1', 'n2'] });
    const now = new Date(Date.now() + 60_000);
    const look = (after?: RingPlace) => findStaleRings(pool, { now, lostRingMs: 1_000, limit: 100, after });
    const reads: number[] = [];
    let after: RingPlace | undefined;
    const found = new Set<string>();
    for (const isAnalyzed of [false, true]) {
      if (isAnalyzed) await world.rows('analyze boxcar.turns');
      do {
        const count = await countReads(pool, async () => {
          const { rings, next } = await look(after);
          for (const { turnId } of rings) found.add(turnId);
          after = next;
        });
        reads.push(count);
      } while (after !== undefined);
    }
    expect(found.size).toBe(2 * WINDOW);
    // The oldest turn of each target, and one page of one target: not a page of each target.
    expect(Math.max(...reads)).toBeLessThan(LITTLE / 2);
  } finally {
    await world.rows('delete from boxcar.turns where ended_at is null');
    await pool.end();
  }
});

test('the plan of a claim finds the turns to update by their ids', async () => {
  const pool = openOne();
  try {
    const rings = ringsOf(await many(() => world.submit({ profile })));
    await insertTurns(3, WINDOW, { status: "'dispatched'", dispatched_at: 'now()' });
    const client = await pool.connect();
    try {
      await client.query(`prepare claiming as ${CLAIM.text}`);
      const wanted = rings.map(({ turnId, epoch }) => ({ turn_id: turnId, epoch }));
      const { rows } = await client.query<{ 'QUERY PLAN': { Plan: PlanNode }[] }>(
        `explain (analyze, format json) execute claiming (${[
          `'${JSON.stringify(wanted)}'`,
          `'${holder}'`,
          `'{${rings.map(({ turnId }) => turnId).join()}}'`,
          THIS_BUILD.schemaVersion,
          THIS_BUILD.turnFormat,
          `'{""}'`,
        ].join()})`,
      );
      const nodes = nodesOf(rows[0]?.['QUERY PLAN'][0]?.Plan);
      const scans = nodes.filter((node) => node['Relation Name'] === 'turns' && 'Index Name' in node);
      expect(scans.map((node) => node['Index Name'])).toEqual(scans.map(() => 'turns_pkey'));
      expect(
        nodes.filter((node) => node['Node Type'] === 'ModifyTable' && node['Relation Name'] === 'turns'),
      ).toHaveLength(1);
      expect(scans.map((node) => node['Actual Rows'] * node['Actual Loops'])).toEqual(scans.map(() => BATCH));
    } finally {
      client.release();
    }
  } finally {
    await pool.end();
  }
});
