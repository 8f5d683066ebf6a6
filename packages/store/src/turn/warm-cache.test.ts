import type { BatchId, TurnId, WorkerId } from '@boxcar/kernel';
import { describeWait } from '@boxcar/kernel/words';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, test } from 'vitest';
import { transaction } from '../db/db.js';
import { loadWaitFacts } from '../report/stuck.js';
import { lockAgents } from '../submit/find-agents.js';
import { writeSubmission } from '../submit/submission.js';
import { emptySubmission, type Submission } from '../submit/submission-rows.js';
import { DEFAULT_PROJECT, newId, type TestProfile, type TestTurn, World } from '../testing/world.js';
import { promote } from '../work/promote.js';
import { ringAgain } from '../work/stale-rings.js';
import { takeOver } from '../work/sweep.js';
import { retryLater, wakeDue } from '../work/waits.js';
import { claim } from './claims.js';
import { commitSteps } from './commits.js';
import { findWarmedTargets } from './warm-cache.js';

let world: World;
let profile: TestProfile;
let other: TestProfile;
let holder: WorkerId;

beforeAll(async () => {
  world = await World.open();
  profile = await world.profile('writer');
  other = await world.profile('other', { workerTarget: 'other' });
});
afterAll(() => world[Symbol.asyncDispose]());
beforeEach(async () => {
  holder = await world.worker({ targets: ['', 'other'] });
});
afterEach(async () => {
  await world.rows('delete from boxcar.turns');
  await world.rows('delete from boxcar.waits');
  await world.rows('delete from boxcar.workers');
});

/** A batch whose first turn fills the cache for the others. */
async function batch(
  profiles: readonly TestProfile[] = [profile, profile, profile],
  reuse?: TestTurn,
): Promise<readonly TestTurn[]> {
  const drafts = profiles.map((of, index) =>
    world.draft({ profile: of, ...(index === 0 && reuse !== undefined ? { reuse } : {}) }),
  );
  const turnIds = drafts.map(({ turn }) => turn.turnId);
  const batchId = newId<'batch'>() as BatchId;
  const [warmTurnId] = turnIds as [TurnId];
  const all = <T>(of: (submission: Submission) => readonly T[]) =>
    drafts.flatMap(({ submission }) => of(submission));
  await transaction(world.pool, async (tx) => {
    if (reuse !== undefined) await lockAgents(tx, [reuse.agentId]);
    await writeSubmission(tx, {
      ...emptySubmission(),
      cards: all(({ cards }) => cards),
      contextBoxes: all(({ contextBoxes }) => contextBoxes),
      runs: all(({ runs }) => runs),
      tapes: all(({ tapes }) => tapes),
      agents: all(({ agents }) => agents),
      turns: all(({ turns }) => turns).map((turn) => ({ ...turn, batchIds: [batchId], warmTurnId })),
      batches: [
        {
          id: batchId,
          projectId: DEFAULT_PROJECT,
          runId: null,
          turnId: null,
          toolCallId: null,
          primitive: 'fork_join',
          kind: 'fork_join',
          turnIds,
          remaining: turnIds.length,
          succeeded: 0,
          failed: 0,
          minSuccess: null,
          failFast: false,
          deadlineMs: null,
        },
      ],
    });
  });
  return drafts.map(({ turn }) => turn);
}

const statuses = async (turns: readonly TestTurn[]) =>
  (
    await world.rows<{ status: string }>(
      'select status from boxcar.turns where id = any ($1::uuid[]) order by id',
      [turns.map(({ turnId }) => turnId)],
    )
  ).map(({ status }) => status);
const promoted = async (target = '') => (await promote(world.pool, target)).map(({ turnId }) => turnId);
const idsOf = (turns: readonly TestTurn[]) => turns.map(({ turnId }) => turnId);
const age = (turns: readonly TestTurn[], seconds: number) =>
  world.rows(
    "update boxcar.turns set created_at = now() - $2 * interval '1 second' where id = any ($1::uuid[])",
    [idsOf(turns), seconds],
  );
const failure = async (turn: TestTurn) => {
  const { step, epoch } = await world.commit(turn);
  if (step === null) throw new Error('no step');
  const error = { code: 'model_unavailable', message: 'no' };
  return {
    turnId: turn.turnId,
    epoch,
    holderId: holder,
    step: { ...step, thoughtCardId: null, usage: null, finishReason: 'error', error },
    delayMs: 60_000,
    detail: { code: error.code },
  };
};

test('one turn is dispatched, and the others stay queued while its first model call is under way', async () => {
  const [first, ...rest] = (await batch()) as [TestTurn, ...TestTurn[]];
  expect(await statuses([first, ...rest])).toEqual(['dispatched', 'queued', 'queued']);
  expect(await promoted()).toEqual([]);
  expect(await world.claim(first, holder)).toMatchObject({ warmsCache: true });
  expect(await promoted()).toEqual([]);
});

describe('the other turns of the group enter the window', () => {
  const ways: Record<string, (first: TestTurn) => Promise<unknown>> = {
    'when the first step is committed': async (first) => {
      await commitSteps(world.pool, [await world.commit(first)]);
    },
    'when the first turn ends': async (first) => {
      await commitSteps(world.pool, [await world.commit(first, { end: 'success' })]);
    },
    'when a failed call suspends the first turn': async (first) => {
      expect(await retryLater(world.pool, await failure(first))).toBe(true);
    },
    'when the failed call of the first turn is made again': async (first) => {
      await retryLater(world.pool, await failure(first));
      const now = new Date(Date.now() + 61_000);
      const rings = await wakeDue(world.pool, { now, limit: 10 });
      await claim(world.pool, rings, holder);
      expect(await world.statusOf(first)).toBe('running');
    },
    'when the worker hands the first turn back': (first) => world.release(holder, [first]),
    'when the worker has died and another worker takes the first turn over': async (first) => {
      await world.rows("update boxcar.workers set lease_until = now() - interval '1 second' where id = $1", [
        holder,
      ]);
      holder = await world.worker();
      expect(await takeOver(world.pool, { maxLosses: 3, limit: 10 })).toMatchObject([
        { turnId: first.turnId },
      ]);
    },
    'when the row of the first turn is gone': (first) =>
      world.rows('delete from boxcar.turns where id = $1', [first.turnId]),
  };
  test.each(Object.entries(ways))('%s', async (_name, go) => {
    const [first, ...rest] = (await batch()) as [TestTurn, ...TestTurn[]];
    await world.claim(first, holder);
    expect(await promoted()).toEqual([]);
    await go(first);
    expect((await promoted()).sort()).toEqual(idsOf(rest).sort());
  });

  test('when the first turn ends before any worker has taken it', async () => {
    const [first, ...rest] = (await batch()) as [TestTurn, ...TestTurn[]];
    const end = await world.commit(first, { end: 'canceled', step: 'none', holder: null });
    await commitSteps(world.pool, [end]);
    expect((await promoted()).sort()).toEqual(idsOf(rest).sort());
  });

  test('when the lost ring of the first turn is rung again', async () => {
    const [first, ...rest] = (await batch()) as [TestTurn, ...TestTurn[]];
    await ringAgain(world.pool, [{ turnId: first.turnId, epoch: 1, workerTarget: '' }]);
    expect((await promoted()).sort()).toEqual(idsOf(rest).sort());
  });

  test('after ten seconds, whatever the first turn does', async () => {
    const turns = await batch();
    const [first, ...rest] = turns as [TestTurn, ...TestTurn[]];
    await world.claim(first, holder);
    await age(turns, 9);
    expect(await promoted()).toEqual([]);
    await age(turns, 10);
    expect((await promoted()).sort()).toEqual(idsOf(rest).sort());
  });

  test('also when the first turn waits for its busy agent', async () => {
    const busy = await world.running({ profile, holder });
    const turns = await batch([profile, profile], busy);
    const [first, second] = turns as [TestTurn, TestTurn];
    expect(await statuses(turns)).toEqual(['queued', 'queued']);
    expect(await promoted()).toEqual([]);
    await age(turns, 10);
    expect(await promoted()).toEqual([second.turnId]);
    expect(await world.statusOf(first)).toBe('queued');
  });
});

test('other turns pass the turns that are held back, also in a window that is nearly full', async () => {
  await world.rows('delete from boxcar.workers');
  holder = await world.worker({ concurrency: 1 });
  const turns = await batch(Array.from({ length: 50 }, () => profile));
  const later = await world.submit({ profile });
  await world.rows('update boxcar.turns set priority = 100 where id = any ($1::uuid[])', [idsOf(turns)]);
  expect(await world.statusOf(later)).toBe('queued');
  expect(await promoted()).toEqual([later.turnId]);
  expect((await statuses(turns)).filter((status) => status === 'queued')).toHaveLength(49);
});

test('only the pools of turns that were held back are known', async () => {
  const [first] = (await batch([profile, other, other])) as [TestTurn];
  await batch([profile, profile]);
  expect(await findWarmedTargets(world.pool, first.turnId)).toEqual(['other']);
});

test('why-stuck reports the reason and the end of the wait of a turn that is held back', async () => {
  const turns = await batch();
  const [first, second] = turns as [TestTurn, TestTurn];
  await world.claim(first, holder);
  await age(turns, 4);
  const links = async (turn: TestTurn) =>
    describeWait(await loadWaitFacts(world.pool, turn.turnId))?.links ?? [];
  const [row] = await world.rows<{ until: Date }>(
    "select created_at + interval '10 seconds' as until from boxcar.turns where id = $1",
    [second.turnId],
  );
  const found = await links(second);
  expect(found).toMatchObject([
    { kind: 'warm_cache', what: expect.stringContaining(first.turnId), is_live: true },
  ]);
  expect(new Date(found[0]?.until ?? '')).toEqual(row?.until);
  expect(await links(first)).toMatchObject([{ kind: 'lease' }]);
  await age(turns, 11);
  expect(await links(second)).toMatchObject([{ kind: 'window' }]);
});
