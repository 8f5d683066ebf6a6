/**
 * The time at which the turns of a project begin on a busy worker. The test releases the models, so it counts ends
 * instead of measuring times.
 */
import type { TurnId } from '@boxcar/kernel';
import { queueBackends, waitFor } from '@boxcar/testkit';
import { describe, expect, test } from 'vitest';
import { Sweeper } from '../sweep/sweeper.js';
import { type FairKind, type FairStage, openFairStage } from '../testing/fair-stage.js';
import { checkInvariants } from '../testing/invariants.js';

const KINDS: readonly FairKind[] = ['in process', 'no queue', ...queueBackends()];

/** Without a queue, only the sweep reads the rows. */
const settingsOf = (kind: FairKind) =>
  kind === 'no queue'
    ? { sweepMs: 20, lostRingMs: 1 }
    : { sweepMs: 3_600_000, heartbeatMs: 1_000, lostRingMs: 3_600_000 };

/** The number of other turns that end before the turn begins. */
async function endsUntil(stage: FairStage, turnId: TurnId, concurrency: number): Promise<number> {
  for (let ends = 0; ends < 20; ends++) {
    if (stage.started.includes(turnId)) return ends;
    await stage.end(concurrency);
  }
  throw new Error('the turn has not begun after 20 ends');
}

/** Waits until the ring was sent. An end before that says nothing about the place of the ring. */
const onItsWay = (stage: FairStage, kind: FairKind, turnId: TurnId) =>
  kind === 'no queue'
    ? undefined
    : waitFor(() => stage.rung.has(turnId), { message: 'the first turn is rung' });

const allHeld = (stage: FairStage, concurrency: number) =>
  waitFor(() => stage.held.length === concurrency, { message: 'all slots are taken' });

const MAX_STAGES = 20;

/**
 * A worker that is busy with turns, each of which starts other turns, some without the queue. The worker takes such
 * turns itself only while it knows that the queue is empty. It finds that out a moment after its start, which on a busy
 * machine is too late for the few turns here.
 */
async function openWithChains(kind: FairKind, concurrency: number, children: number): Promise<FairStage> {
  for (let attempt = 0; attempt < MAX_STAGES; attempt++) {
    const stage = await openFairStage(kind);
    try {
      await startChains(stage, kind, concurrency, children);
    } catch (error) {
      await stage[Symbol.asyncDispose]();
      throw error;
    }
    if (kind === 'no queue' || stage.started.some((turnId) => !stage.rung.has(turnId))) return stage;
    await stage[Symbol.asyncDispose]();
  }
  throw new Error('the worker took no turn without the queue');
}

async function startChains(
  stage: FairStage,
  kind: FairKind,
  concurrency: number,
  children: number,
): Promise<void> {
  const bomb = await stage.project('bomb');
  // Each delegation has its own instruction, because equal ones would count as a loop.
  const next = (child: number) => ({
    tool: 'delegate_async',
    arguments: { target_strategy: 'new', target_ref: 'bomb', instruction: `{{instruction}}${child}` },
  });
  await stage.h.runtime.applyProfile(
    {
      name: 'bomb',
      instructions: 'Delegate.',
      model: 'scripted',
      script: [{ calls: Array.from({ length: children }, (_, child) => next(child)) }, { say: 'done' }],
      tools: ['delegate_async'],
      delegation_policy: { target_profiles: null },
    },
    { projectId: bomb },
  );
  await stage.work({ ...settingsOf(kind), concurrency });
  const roots = children === 1 ? 2 : 1;
  for (let n = 0; n < roots; n++) await stage.submit(bomb, { profile_name: 'bomb' });
  await allHeld(stage, concurrency);
}

// Rings that stay near have the order of those in process, by the clock of the machine.
describe.each([...KINDS, 'near'] as const)(
  'with rings %s, the first turn of a project begins before three other turns have ended,',
  (kind) => {
    test.each([
      [4, 40],
      [30, 300],
    ])('at concurrency %i, when another project has %i turns', async (concurrency, count) => {
      await using stage = await openFairStage(kind);
      const busy = await stage.project('busy');
      await stage.work({ ...settingsOf(kind), concurrency });
      await Promise.all(Array.from({ length: count }, () => stage.submit(busy)));
      await allHeld(stage, concurrency);
      for (let n = 0; n < 3; n++) {
        const newcomer = await stage.submit(await stage.project(`newcomer ${n}`));
        expect(stage.started).not.toContain(newcomer);
        await onItsWay(stage, kind, newcomer);
        expect(await endsUntil(stage, newcomer, concurrency)).toBeLessThanOrEqual(2);
      }
    });

    test.each([
      ['one other', 1],
      ['two others', 2],
    ])('when each turn of another project begins %s', async (_name, children) => {
      const concurrency = 4;
      await using stage = await openWithChains(kind, concurrency, children);
      for (let n = 0; n < 3; n++) {
        const newcomer = await stage.submit(await stage.project(`newcomer ${n}`));
        expect(stage.started).not.toContain(newcomer);
        await onItsWay(stage, kind, newcomer);
        expect(await endsUntil(stage, newcomer, concurrency)).toBeLessThanOrEqual(2);
        await stage.end(concurrency, newcomer);
      }
    });
  },
);

describe.each(KINDS)('with rings %s, the priorities of callers', (kind) => {
  test('order the turns of their project, and do not affect other projects', async () => {
    await using stage = await openFairStage(kind);
    const { started, held } = stage;
    const [mine, other] = [await stage.project('mine'), await stage.project('other')];
    await stage.work({ ...settingsOf(kind), concurrency: 1 });
    // One turn runs, and four are in the window.
    for (let n = 0; n < 5; n++) await stage.submit(mine);
    await allHeld(stage, 1);
    const submitAll = async (priority: number): Promise<TurnId[]> => [
      await stage.submit(mine, { priority }),
      await stage.submit(mine, { priority }),
    ];
    const [low, normal, high] = [await submitAll(-10), await submitAll(0), await submitAll(100)];
    const others: TurnId[] = [];
    for (let n = 0; n < 3; n++) others.push(await stage.submit(other, { priority: -100 }));
    for (let ends = 0; ends < 13; ends++) {
      await stage.allRung();
      await stage.end(1);
    }
    expect(held).toHaveLength(1);
    const placesOf = (turnIds: readonly TurnId[]) => turnIds.map((turnId) => started.indexOf(turnId));
    expect(Math.max(...placesOf(high))).toBeLessThan(Math.min(...placesOf(normal)));
    expect(Math.max(...placesOf(normal))).toBeLessThan(Math.min(...placesOf(low)));
    // Their low priorities count only among themselves.
    expect(placesOf(others)[0]).toBeLessThanOrEqual(2);
    expect(Math.max(...placesOf(others))).toBeLessThan(Math.min(...placesOf(normal)));
    await stage.end(0);
    const unfinished = () => stage.h.rows('select from boxcar.turns where ended_at is null');
    await waitFor(async () => (await unfinished()).length === 0, { message: 'all turns have ended' });
    await checkInvariants(stage.h.database.pool);
  });
});

describe.each(KINDS.filter((kind) => kind !== 'no queue'))(
  'with rings %s, turns that wait for a worker',
  (kind) => {
    test('begin without a sweep while two projects always ring with lower priorities', async () => {
      let now = Date.now();
      await using stage = await openFairStage(kind, () => now);
      const busy = [await stage.project('one'), await stage.project('other')].map((projectId) => ({
        projectId,
        newest: '' as TurnId,
      }));
      const old = await stage.project('old');
      await stage.work({ ...settingsOf(kind), concurrency: 2 });
      for (const project of busy) project.newest = await stage.submit(project.projectId);
      await allHeld(stage, 2);
      const waiting: TurnId[] = [];
      for (let n = 0; n < 6; n++) waiting.push(await stage.submit(old));
      for (let ends = 0; waiting.some((turnId) => !stage.started.includes(turnId)); ends++) {
        expect(ends).toBeLessThan(24);
        // Each project has one running turn, so its next turn is rung with priority 1.
        for (const project of busy)
          if (stage.started.includes(project.newest)) project.newest = await stage.submit(project.projectId);
        now += 1_000;
        await stage.end(2);
      }
      expect(stage.started.filter((turnId) => waiting.includes(turnId))).toEqual(waiting);
    });
  },
);

/** A sweep that runs when it is called, and treats every ring as old enough. */
const sweepOf = (stage: FairStage) => {
  const sweeper = new Sweeper(stage.h.runtime, {
    lostRingMs: 1_000,
    claimFromRows: () => Promise.resolve(),
    wakeProvider: () => Promise.resolve(),
  });
  return () => sweeper.sweep({ now: new Date(Date.now() + 5_000) });
};

describe.each(KINDS.filter((kind) => kind !== 'no queue'))(
  'with rings %s, while each end is followed by a turn of a new project, no waiting turn is delayed forever',
  (kind) => {
    const quiet = settingsOf(kind);

    /** Starts a turn of a new project, then ends the running turn; repeats this until `isDone`. */
    const flood = async (stage: FairStage, isDone: () => boolean): Promise<number> => {
      const sweep = sweepOf(stage);
      for (let ends = 0; ends < 30; ends++) {
        if (isDone()) return ends;
        await stage.submit(await stage.project(`flood ${ends}`));
        await stage.allGivenBack();
        await sweep();
        await stage.end(1);
      }
      throw new Error('it waits after 30 ends');
    };

    test('in a project that has many turns', async () => {
      await using stage = await openFairStage(kind);
      const many = await stage.project('many');
      await stage.work({ ...quiet, concurrency: 1 });
      const turns: TurnId[] = [];
      for (let n = 0; n < 4; n++) turns.push(await stage.submit(many));
      await allHeld(stage, 1);
      const ends = await flood(stage, () => turns.every((turnId) => stage.started.includes(turnId)));
      expect(ends).toBeLessThanOrEqual(3 * turns.length);
      expect(stage.started.filter((turnId) => turns.includes(turnId))).toEqual(turns);
    });

    test('after a resume', async () => {
      await using stage = await openFairStage(kind);
      const { h } = stage;
      const project = await stage.project('resumed');
      await h.runtime.applyProfile(
        {
          name: 'boss',
          instructions: 'Ask.',
          model: 'scripted',
          script: [
            { calls: [{ tool: 'ask_expert', arguments: { expert_profile: 'plain', question: 'q' } }] },
            { say: 'done' },
          ],
          tools: ['ask_expert'],
          delegation_policy: { target_profiles: ['plain'] },
        },
        { projectId: project },
      );
      await stage.work({ ...quiet, concurrency: 1, takesOwnRings: false });
      const boss = await stage.submit(project, { profile_name: 'boss' });
      // The expert runs, and its end resumes the boss.
      await waitFor(() => stage.held.length === 1 && !stage.held.includes(boss), {
        message: 'the expert is asked',
      });
      await flood(stage, () => stage.held.includes(boss));
    });
  },
);
