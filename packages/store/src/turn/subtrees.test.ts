import type { TurnId, WorkerId } from '@boxcar/kernel';
import { beforeEach, describe, expect, test } from 'vitest';
import { retryTransient } from '../db/retry.js';
import { type SubmissionResult, writeSubmission } from '../submit/submission.js';
import { begin, waitUntilBlocked } from '../testing/interleave.js';
import { DEFAULT_PROJECT, newId, type TestProfile, type TestTurn, World } from '../testing/world.js';
import { promote } from '../work/promote.js';
import { ringAgain } from '../work/stale-rings.js';
import { takeOver } from '../work/sweep.js';
import { claim } from './claims.js';
import { commitSteps, commitWithin } from './commits.js';
import { findSubtreeRoot, lockSubtrees } from './subtrees.js';
import { releaseTurns } from './turns.js';

let world: World;
let profile: TestProfile;
let holder: WorkerId;

beforeEach(async () => {
  world = await World.open();
  profile = await world.profile('writer');
  holder = await world.worker();
  return () => world[Symbol.asyncDispose]();
});

/** Adds a turn below `parent`, by a call of the parent or from outside. */
function spawn(
  parent: TestTurn,
  by: 'call' | 'outside',
  db: Parameters<typeof writeSubmission>[0] = world.pool,
): { readonly turn: TestTurn; readonly result: Promise<SubmissionResult> } {
  const { turn, submission } = world.draft({ profile, parent });
  const fence = {
    turnId: parent.turnId,
    epoch: by === 'call' ? 1 : null,
    holderId: by === 'call' ? holder : null,
    spawnRunId: parent.runId,
  };
  const write = () => writeSubmission(db, submission, { fence });
  return { turn, result: db === world.pool ? retryTransient(write) : write() };
}

/** Ends the subtree in the way a cancel does. */
async function end(tx: Parameters<typeof lockSubtrees>[0], root: TestTurn): Promise<TurnId[]> {
  const open = await lockSubtrees(tx, root.runId, { rootTurnIds: [root.turnId] });
  const ends = await Promise.all(
    open.map(async (turn) => ({
      ...(await world.commit(
        { ...root, turnId: turn.turn_id, agentId: turn.agent_id },
        { step: 'none', end: 'canceled' },
      )),
      epoch: turn.epoch,
      holderId: turn.holder_id,
    })),
  );
  return [...(await commitWithin(ends)(tx)).endedTurnIds];
}

describe.each(['call', 'outside'] as const)('a spawn by %s and a cancel of its tree', (by) => {
  test('when the spawn is first, the cancel waits for it and also ends its turn', async () => {
    const parent = await world.running({ profile, holder });
    await using spawning = await begin(world.pool);
    const { turn, result } = spawn(parent, by, spawning);
    expect(await result).toMatchObject({ outcome: 'accepted' });
    await using canceling = await begin(world.pool);
    const ended = end(canceling, parent);
    await waitUntilBlocked(world.pool, { by: spawning.pid });
    await spawning.query('commit');
    expect((await ended).sort()).toEqual([parent.turnId, turn.turnId].sort());
    await canceling.query('commit');
    expect(await world.statusOf(turn)).toBe('canceled');
  });

  test('when the cancel is first, the spawn waits for it and is refused completely', async () => {
    const parent = await world.running({ profile, holder });
    const before = await world.count('turns');
    await using canceling = await begin(world.pool);
    expect(await end(canceling, parent)).toEqual([parent.turnId]);
    const { result } = spawn(parent, by);
    await waitUntilBlocked(world.pool, { by: canceling.pid });
    await canceling.query('commit');
    expect(await result).toEqual({ outcome: 'refused' });
    expect(await world.count('turns')).toBe(before);
  });
});

describe('a completion and a cancel', () => {
  test('when the completion is first, the turn keeps its end', async () => {
    const turn = await world.running({ profile, holder });
    await using canceling = await begin(world.pool);
    await commitSteps(world.pool, [await world.commit(turn, { end: 'success' })]);
    expect(await end(canceling, turn)).toEqual([]);
    expect(await world.statusOf(turn)).toBe('success');
  });

  test('when the cancel is first, the completion is fenced and leaves nothing', async () => {
    const turn = await world.running({ profile, holder });
    await using canceling = await begin(world.pool);
    await end(canceling, turn);
    const tape = await world.tape(turn);
    const late = commitSteps(world.pool, [await world.commit(turn, { end: 'success' })]);
    await waitUntilBlocked(world.pool, { by: canceling.pid });
    await canceling.query('commit');
    expect((await late).outcomes).toEqual([{ outcome: 'fenced' }]);
    expect(await world.statusOf(turn)).toBe('canceled');
    expect((await world.tape(turn)).length).toBe(tape.length + 1);
  });
});

test('a tree is read through its ended turns, and the root of a run is found by either id', async () => {
  const root = await world.running({ profile, holder });
  const child = await world.submit({ profile, parent: root });
  const grandchild = await world.submit({ profile, parent: child });
  await commitSteps(world.pool, [await world.commit(root, { end: 'success' })]);
  await using tx = await begin(world.pool);
  const open = await lockSubtrees(tx, root.runId, { rootTurnIds: [root.turnId] });
  expect(open.map((turn) => turn.turn_id)).toEqual([child.turnId, grandchild.turnId].sort());
  const found = { turnId: root.turnId, runId: root.runId, ancestorAgentIds: [] };
  expect(await findSubtreeRoot(world.pool, DEFAULT_PROJECT, { runId: root.runId })).toEqual(found);
  expect(await findSubtreeRoot(world.pool, DEFAULT_PROJECT, { turnId: grandchild.turnId })).toEqual({
    turnId: grandchild.turnId,
    runId: root.runId,
    ancestorAgentIds: [child.agentId, root.agentId],
  });
  expect(await findSubtreeRoot(world.pool, newId(), { turnId: root.turnId })).toBeUndefined();
});

test('a canceled turn never changes its status and never runs again, through rings, takeovers, releases or promotions', async () => {
  const dead = await world.worker({ leaseMs: 0 });
  const dispatched = await world.submit({ profile });
  const running = await world.running({ profile, holder: dead });
  const queued = await world.submit({ profile, reuse: running });
  const rings = [dispatched, running, queued].map(({ turnId }) => ({ turnId, epoch: 1, workerTarget: '' }));
  for (const turn of [dispatched, running, queued]) {
    await using tx = await begin(world.pool);
    expect(await end(tx, turn)).toEqual([turn.turnId]);
    await tx.query('commit');
  }
  expect(await ringAgain(world.pool, rings)).toEqual([]);
  expect(await takeOver(world.pool, { maxLosses: 10, limit: 10 })).toEqual([]);
  expect(await releaseTurns(world.pool, dead, null)).toEqual([]);
  expect(await promote(world.pool, '')).toEqual([]);
  expect(await claim(world.pool, rings, holder)).toEqual(rings.map(() => ({ outcome: 'stale' })));
  for (const turn of [dispatched, running, queued]) expect(await world.statusOf(turn)).toBe('canceled');
});
