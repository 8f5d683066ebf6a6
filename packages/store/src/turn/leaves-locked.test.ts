/** Batches that leave out turns whose row or tape another session has locked: the other turns are done while the lock is held. */
import type { ToolCallId, WorkerId } from '@boxcar/kernel';
import type pg from 'pg';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { sqlStateOf } from '../db/errors.js';
import { begin } from '../testing/interleave.js';
import { type TestProfile, type TestTurn, World } from '../testing/world.js';
import type { Advance } from './call-types.js';
import { claim } from './claims.js';
import { type CommitResult, commitSteps } from './commits.js';
import { findLockedSteps, finishSteps } from './finish-steps.js';
import type { StepCommit } from './step-commit.js';
import { advanceTurns } from './tool-calls.js';
import { claimWithViews } from './views.js';

let world: World;
let profile: TestProfile;
let holder: WorkerId;

beforeAll(async () => {
  world = await World.open();
  profile = await world.profile('writer');
  holder = await world.worker({ concurrency: 1_000 });
});

afterAll(() => world[Symbol.asyncDispose]());

const LEAVES_LOCKED = { leavesLocked: true };
const ALONE = { isRepeated: true, isPatient: false, lockMs: 5_000 };

type Lock = readonly [what: string, lock: (client: pg.PoolClient, turn: TestTurn) => Promise<unknown>];
const LOCKS: Lock[] = [
  [
    'tape',
    (client, { tapeId }) =>
      client.query('select from boxcar.boxes where id = $1 for no key update', [tapeId]),
  ],
  [
    'row',
    (client, { turnId }) => client.query('select from boxcar.turns where id = $1 for update', [turnId]),
  ],
];

const running = (n: number): Promise<TestTurn[]> =>
  Promise.all(Array.from({ length: n }, () => world.running({ profile, holder })));

test.each(LOCKS)(
  'a claim leaves out a turn whose %s is locked, and takes the other turns',
  async (_what, lock) => {
    const turns = await Promise.all(Array.from({ length: 5 }, () => world.submit({ profile })));
    const [locked, ...others] = turns as [TestTurn, ...TestTurn[]];
    const rings = turns.map(({ turnId }) => ({ turnId, epoch: 1 }));
    const take = (attempt: object) =>
      claimWithViews(world.pool, rings, { holderId: holder, maxViewBytes: 100_000, try: attempt });
    await using elsewhere = await begin(world.pool);
    await lock(elsewhere, locked);
    const outcomes = await take(LEAVES_LOCKED);
    expect(outcomes).toMatchObject([
      { outcome: 'stale', isLocked: true },
      ...others.map(({ turnId }) => ({ outcome: 'claimed', turn: { turnId } })),
    ]);
    expect(await take(LEAVES_LOCKED)).toEqual([
      { outcome: 'stale', isLocked: true },
      ...others.map(() => ({ outcome: 'stale' })),
    ]);
    expect(await world.statusOf(locked)).toBe('dispatched');
    await elsewhere.query('rollback');
    const [late] = await claim(world.pool, rings.slice(0, 1), holder);
    expect(late?.outcome).toBe('claimed');
  },
);

describe('a commit', () => {
  const outcomesOf = ({ outcomes }: CommitResult) => outcomes.map(({ outcome }) => outcome);
  const CASES: [string, (turn: TestTurn) => Promise<StepCommit>][] = [
    ['steps', (turn) => world.commit(turn)],
    ['ends', (turn) => world.commit(turn, { end: 'success' })],
  ];

  for (const [name, make] of CASES)
    test.each(LOCKS)(`of ${name} leaves out a turn whose %s is locked`, async (_what, lock) => {
      const turns = await running(5);
      const [locked] = turns as [TestTurn];
      const commits = await Promise.all(turns.map(make));
      await using elsewhere = await begin(world.pool);
      await lock(elsewhere, locked);
      const before = await world.row(locked);
      const result = await commitSteps(world.pool, commits, LEAVES_LOCKED);
      expect(outcomesOf(result)).toEqual(['fenced', ...turns.slice(1).map(() => 'committed')]);
      expect(result.lockedTurnIds).toEqual([locked.turnId]);
      expect(await world.row(locked)).toEqual(before);
      await elsewhere.query('rollback');
      const again = await commitSteps(world.pool, commits, ALONE);
      expect(outcomesOf(again)).toEqual(turns.map(() => 'committed'));
      expect(again.lockedTurnIds).toEqual([]);
    });

  test.each(LOCKS)(
    'leaves out a child whose %s is locked; only the other children answer their parent',
    async (_what, lock) => {
      const [parent] = (await running(1)) as [TestTurn];
      const calls = await world.call(parent, 3);
      const children = await Promise.all(
        calls.map((call) => world.running({ profile, holder, parent, answers: call })),
      );
      const commits = await Promise.all(
        children.map((child, n) =>
          world.commit(child, { end: 'success', settles: world.result(parent, calls[n] as ToolCallId) }),
        ),
      );
      await using elsewhere = await begin(world.pool);
      await lock(elsewhere, children[0] as TestTurn);
      const result = await commitSteps(world.pool, commits, LEAVES_LOCKED);
      expect(outcomesOf(result)).toEqual(['fenced', 'committed', 'committed']);
      expect(result.lockedTurnIds).toEqual([children[0]?.turnId]);
      expect(await world.row(parent)).toMatchObject({ pending_calls: 1 });
      await elsewhere.query('rollback');
      expect(outcomesOf(await commitSteps(world.pool, commits, ALONE))).toEqual(calls.map(() => 'committed'));
      expect(await world.row(parent)).toMatchObject({ pending_calls: 0 });
    },
  );

  test('of a turn that another worker holds is fenced, and not reported as locked', async () => {
    const turns = await running(2);
    const commits = await Promise.all(turns.map((turn) => world.commit(turn)));
    await world.rows('update boxcar.turns set epoch = epoch + 1 where id = $1', [turns[0]?.turnId]);
    const result = await commitSteps(world.pool, commits, LEAVES_LOCKED);
    expect(outcomesOf(result)).toEqual(['fenced', 'committed']);
    expect(result.lockedTurnIds).toEqual([]);
  });

  test.each(LOCKS)(
    'with results of its own leaves out a turn whose %s is locked, including its results',
    async (_what, lock) => {
      const turns = await running(2);
      const [locked, other] = turns as [TestTurn, TestTurn];
      const calls = (await Promise.all(turns.map((turn) => world.call(turn, 1)))).flat();
      const commits = await Promise.all(
        turns.map((turn, n) =>
          world.commit(turn, { end: 'success', results: [world.result(turn, calls[n] as ToolCallId)] }),
        ),
      );
      await using elsewhere = await begin(world.pool);
      await lock(elsewhere, locked);
      const result = await commitSteps(world.pool, commits, LEAVES_LOCKED);
      expect(outcomesOf(result)).toEqual(['fenced', 'committed']);
      expect(result.lockedTurnIds).toEqual([locked.turnId]);
      expect(await world.row(locked)).toMatchObject({ status: 'running', pending_calls: 1 });
      expect(await world.row(other)).toMatchObject({ status: 'success', pending_calls: 0 });
      await elsewhere.query('rollback');
      expect(outcomesOf(await commitSteps(world.pool, commits, ALONE))).toEqual(['committed', 'committed']);
    },
  );

  test.each(LOCKS)(
    'that answers a parent whose %s is locked is undone completely after a short wait',
    async (_what, lock) => {
      const [parent, other] = (await running(2)) as [TestTurn, TestTurn];
      const [call] = (await world.call(parent, 1)) as [ToolCallId];
      const child = await world.running({ profile, holder, parent, answers: call });
      const commits = await Promise.all([
        world.commit(child, { end: 'success', settles: world.result(parent, call) }),
        world.commit(other, { end: 'success' }),
      ]);
      await using elsewhere = await begin(world.pool);
      await lock(elsewhere, parent);
      const attempt = { ...LEAVES_LOCKED, isPatient: false };
      const failure = await commitSteps(world.pool, commits, attempt).catch((error: unknown) => error);
      expect(sqlStateOf(failure)).toBe('55P03');
      expect(await world.row(other)).toMatchObject({ status: 'running' });
      expect(outcomesOf(await commitSteps(world.pool, commits.slice(1), ALONE))).toEqual(['committed']);
      await elsewhere.query('rollback');
      expect(outcomesOf(await commitSteps(world.pool, commits, ALONE))).toEqual(['committed', 'committed']);
    },
  );
});

describe('the results of steps', () => {
  const answered = async (turn: TestTurn): Promise<Advance> => {
    const calls = await world.call(turn, 2);
    const results = calls.map((call) => world.result(turn, call));
    return { turnId: turn.turnId, epoch: 1, holderId: holder, results };
  };

  test.each(LOCKS)('leave out a turn whose %s is locked', async (_what, lock) => {
    const turns = await running(4);
    const [locked, answeredElsewhere, ...others] = turns as [TestTurn, TestTurn, ...TestTurn[]];
    const steps = await Promise.all(turns.map(answered));
    const [, second] = steps as [Advance, Advance];
    await advanceTurns(world.pool, [{ ...second, results: second.results.slice(0, 1) }]);
    await using elsewhere = await begin(world.pool);
    await lock(elsewhere, locked);
    const finished = await finishSteps(world.pool, steps, LEAVES_LOCKED);
    expect([...finished.keys()].toSorted()).toEqual(others.map(({ turnId }) => turnId).toSorted());
    const missing = steps.filter(({ turnId }) => !finished.has(turnId));
    expect(missing.map(({ turnId }) => turnId)).toEqual([locked.turnId, answeredElsewhere.turnId]);
    expect([...(await findLockedSteps(world.pool, missing))]).toEqual([locked.turnId]);
    await elsewhere.query('rollback');
    expect((await finishSteps(world.pool, steps.slice(0, 1), ALONE)).size).toBe(1);
  });

  test.each(LOCKS)(
    'that need two statements are undone completely after a short wait for one %s',
    async (_what, lock) => {
      const turns = await running(2);
      const steps = await Promise.all(turns.map(answered));
      await using elsewhere = await begin(world.pool);
      await lock(elsewhere, turns[0] as TestTurn);
      const attempt = { ...LEAVES_LOCKED, isPatient: false };
      const failure = await advanceTurns(world.pool, steps, attempt).catch((error: unknown) => error);
      expect(sqlStateOf(failure)).toBe('55P03');
      expect(await world.row(turns[1] as TestTurn)).toMatchObject({ pending_calls: 2 });
      const { outcomes } = await advanceTurns(world.pool, steps.slice(1), ALONE);
      expect(outcomes).toMatchObject([{ outcome: 'open' }]);
    },
  );
});
