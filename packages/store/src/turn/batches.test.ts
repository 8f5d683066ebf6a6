import type { BatchId, FinalStatus, ToolCallId, TurnId, WorkerId } from '@boxcar/kernel';
import { beforeEach, describe, expect, test } from 'vitest';
import { transaction } from '../db/db.js';
import { writeSubmission } from '../submit/submission.js';
import { emptySubmission, type NewBatch } from '../submit/submission-rows.js';
import { begin, holdCommits, waitUntilBlocked, watchErrors } from '../testing/interleave.js';
import { DEFAULT_PROJECT, newId, type TestProfile, type TestTurn, World } from '../testing/world.js';
import { findDueBatches, findOverdueCalls, probe } from '../work/sweep.js';
import {
  addBatch,
  closeBatch,
  endBatch,
  loadBatches,
  loadMembers,
  lockBatch,
  lockMembers,
} from './batches.js';
import { type CommitResult, commitSteps, commitWithin } from './commits.js';

let world: World;
let profile: TestProfile;
let holder: WorkerId;
let parent: TestTurn;

beforeEach(async () => {
  world = await World.open();
  profile = await world.profile('writer');
  holder = await world.worker();
  parent = await world.running({ profile, holder });
  return () => world[Symbol.asyncDispose]();
});

const child = (): Promise<TestTurn> => world.running({ profile, holder, parent });
const children = async (n: number): Promise<TestTurn[]> => {
  const made: TestTurn[] = [];
  for (let i = 0; i < n; i++) made.push(await child());
  return made;
};
const idsOf = (turns: readonly TestTurn[]): TurnId[] => turns.map((turn) => turn.turnId);
const newBatch = (turns: readonly TestTurn[], rest: Partial<NewBatch> = {}): NewBatch => ({
  id: newId<'batch'>(),
  projectId: DEFAULT_PROJECT,
  runId: null,
  turnId: null,
  toolCallId: null,
  primitive: 'collect',
  kind: 'collect',
  turnIds: idsOf(turns),
  remaining: turns.length,
  succeeded: 0,
  failed: 0,
  minSuccess: null,
  failFast: false,
  deadlineMs: null,
  ...rest,
});
/** Joins turns as `collect` does: turns that have ended under their locks count as ended. */
const joined = async (turns: readonly TestTurn[], rest: Partial<NewBatch> = {}): Promise<BatchId> => {
  const batch = newBatch(turns, rest);
  await transaction(world.pool, async (tx) => {
    const statuses = await lockMembers(tx, batch.turnIds);
    const open = batch.turnIds.filter((id) => statuses.get(id) === 'running');
    await addBatch(tx, open, batch.id);
    await writeSubmission(tx, {
      ...emptySubmission(),
      batches: [{ ...batch, remaining: open.length, succeeded: batch.turnIds.length - open.length }],
    });
  });
  return batch.id;
};
const end = async (
  turn: TestTurn,
  status: FinalStatus = 'success',
  pool = world.pool,
): Promise<CommitResult> => commitSteps(pool, [await world.commit(turn, { end: status })]);
const look = async (id: BatchId) => {
  const [batch] = await loadBatches(world.pool, [id]);
  const [row] = await world.rows<{ is_due: boolean }>('select is_due from boxcar.batches where id = $1', [
    id,
  ]);
  return { ...batch, isDue: row?.is_due };
};

describe('the ends of members', () => {
  test('count down their batches, and the last end makes a batch due', async () => {
    const [a, b, c] = (await children(3)) as [TestTurn, TestTurn, TestTurn];
    const all = await joined([a, b, c]);
    const two = await joined([a, b]);
    expect((await end(a)).dueBatchIds).toEqual([]);
    expect((await end(b, 'failed')).dueBatchIds).toEqual([two]);
    expect(await look(all)).toMatchObject({ remaining: 1, succeeded: 1, failed: 1, isDue: false });
    expect((await end(c, 'partial')).dueBatchIds).toEqual([all]);
    expect(await look(all)).toMatchObject({ remaining: 0, succeeded: 1, failed: 1, isDue: true });
  });

  test('in one commit count down a batch once, by their number', async () => {
    const turns = await children(5);
    const id = await joined(turns);
    const commits = await Promise.all(turns.map((turn) => world.commit(turn, { end: 'success' })));
    expect((await commitSteps(world.pool, commits)).dueBatchIds).toEqual([id]);
    expect(await look(id)).toMatchObject({ remaining: 0, succeeded: 5 });
  });

  test('make a batch due early after enough successes, or after a failure', async () => {
    const turns = (await children(4)) as [TestTurn, TestTurn, TestTurn, TestTurn];
    const enough = await joined(turns, { minSuccess: 2 });
    const fast = await joined(turns, { failFast: true });
    expect((await end(turns[0])).dueBatchIds).toEqual([]);
    expect((await end(turns[1])).dueBatchIds).toEqual([enough]);
    expect((await end(turns[2], 'timeout')).dueBatchIds.toSorted()).toEqual([enough, fast].toSorted());
    await closeBatch(world.pool, enough, 'min_success');
    await closeBatch(world.pool, fast, 'fail_fast');
    // From here on only the last end matters, and the first reason is kept.
    await closeBatch(world.pool, fast, 'deadline');
    expect(await look(fast)).toMatchObject({ closing: 'fail_fast', isDue: true });
    expect((await end(turns[3], 'canceled')).dueBatchIds.toSorted()).toEqual([enough, fast].toSorted());
  });

  test('that are fenced are not counted', async () => {
    const [turn] = (await children(1)) as [TestTurn];
    const id = await joined([turn]);
    const stale = await world.commit(turn, { end: 'success', epoch: 7 });
    expect((await commitSteps(world.pool, [stale])).dueBatchIds).toEqual([]);
    expect(await look(id)).toMatchObject({ remaining: 1 });
    const commit = await world.commit(turn, { end: 'success' });
    await commitSteps(world.pool, [commit]);
    await commitSteps(world.pool, [commit]);
    expect(await look(id)).toMatchObject({ remaining: 0, succeeded: 1 });
  });

  test('after the end of a batch are counted, and change nothing else', async () => {
    const [a, b] = (await children(2)) as [TestTurn, TestTurn];
    const id = await joined([a, b]);
    await end(a);
    await transaction(world.pool, (tx) =>
      endBatch(tx, id, { status: 'timeout', closing: 'deadline', answer: 'first' }),
    );
    await transaction(world.pool, (tx) =>
      endBatch(tx, id, { status: 'success', closing: null, answer: 'second' }),
    );
    expect((await end(b)).dueBatchIds).toEqual([]);
    expect(await look(id)).toMatchObject({
      status: 'timeout',
      closing: 'deadline',
      answer: 'first',
      remaining: 0,
      succeeded: 2,
      isDue: false,
    });
  });
});

describe('at the same moment', () => {
  test('two last ends are both counted, and one of them makes the batch due', async () => {
    const [a, b] = (await children(2)) as [TestTurn, TestTurn];
    const id = await joined([a, b]);
    const held = holdCommits(world.pool);
    const first = end(a, 'success', held.pool);
    const pid = await held.atCommit;
    const second = end(b);
    await waitUntilBlocked(world.pool, { by: pid });
    held.release();
    expect([...(await first).dueBatchIds, ...(await second).dueBatchIds]).toEqual([id]);
    expect(await look(id)).toMatchObject({ remaining: 0, succeeded: 2 });
  });

  test('an end and a collect always see each other: the end is first', async () => {
    const [turn] = (await children(1)) as [TestTurn];
    const held = holdCommits(world.pool);
    const ending = end(turn, 'success', held.pool);
    const pid = await held.atCommit;
    const joining = joined([turn]);
    await waitUntilBlocked(world.pool, { by: pid });
    held.release();
    await ending;
    expect(await look(await joining)).toMatchObject({ remaining: 0, succeeded: 1, isDue: true });
  });

  test('an end and a collect always see each other: the collect is first', async () => {
    const [turn] = (await children(1)) as [TestTurn];
    const batch = newBatch([turn]);
    await using joining = await begin(world.pool);
    await lockMembers(joining, [turn.turnId]);
    await addBatch(joining, [turn.turnId], batch.id);
    await writeSubmission(joining, { ...emptySubmission(), batches: [batch] });
    const ending = end(turn);
    await waitUntilBlocked(world.pool, { by: joining.pid });
    await joining.query('commit');
    expect((await ending).dueBatchIds).toEqual([batch.id]);
    expect(await look(batch.id)).toMatchObject({ remaining: 0, succeeded: 1 });
  });

  test('an end of a turn without a parent, which needs no transaction, sees a collect for which it waited', async () => {
    const turn = await world.running({ profile, holder });
    const batch = newBatch([turn]);
    await using joining = await begin(world.pool);
    await lockMembers(joining, [turn.turnId]);
    await addBatch(joining, [turn.turnId], batch.id);
    await writeSubmission(joining, { ...emptySubmission(), batches: [batch] });
    const ending = end(turn);
    await waitUntilBlocked(world.pool, { by: joining.pid });
    await joining.query('commit');
    const result = await ending;
    expect(result).toMatchObject({ outcomes: [{ outcome: 'committed' }], endedTurnIds: [turn.turnId] });
    expect(result.dueBatchIds).toEqual([batch.id]);
    expect(await look(batch.id)).toMatchObject({ remaining: 0, succeeded: 1 });
  });

  test('ends of members of the same batches, in opposite order, never wait in a circle', async () => {
    const turns = await children(16);
    const batches: BatchId[] = [];
    for (let i = 0; i < 6; i++) batches.push(await joined(i % 2 === 0 ? turns : turns.toReversed()));
    const commits = await Promise.all(turns.map((turn) => world.commit(turn, { end: 'success' })));
    const watched = watchErrors(world.pool);
    const results = await Promise.all([
      commitSteps(watched.pool, commits.slice(0, 8)),
      commitSteps(watched.pool, commits.slice(8).reverse()),
    ]);
    expect(watched.states).toEqual([]);
    expect(results.flatMap((result) => result.dueBatchIds).toSorted()).toEqual(batches.toSorted());
  });

  test('the end of a batch is decided under its lock: a member’s end in progress is seen or is later', async () => {
    const [a] = (await children(1)) as [TestTurn];
    const id = await joined([a]);
    const held = holdCommits(world.pool);
    const ending = end(a, 'success', held.pool);
    const pid = await held.atCommit;
    const locking = transaction(world.pool, (tx) => lockBatch(tx, { id, turn_id: null }));
    await waitUntilBlocked(world.pool, { by: pid });
    held.release();
    await ending;
    expect(await locking).toMatchObject({ remaining: 0, succeeded: 1 });
  });
});

describe('a call that waits for a batch', () => {
  const waiting = async (turns: readonly TestTurn[]): Promise<{ id: BatchId; callId: ToolCallId }> => {
    const [callId] = (await world.call(parent, 1)) as [ToolCallId];
    const id = await joined(turns, {
      turnId: parent.turnId,
      toolCallId: callId,
      kind: 'fork_join',
      deadlineMs: 900_000,
    });
    await world.wait(callId, 900_000, id);
    return { id, callId };
  };
  const later = (seconds: number) => ({ now: new Date(Date.now() + seconds * 1_000) });
  const limit = 100;

  test('is never overdue itself: the deadline belongs to its batch', async () => {
    const { id } = await waiting(await children(1));
    expect(await findOverdueCalls(world.pool, { ...later(1_000), limit })).toEqual([]);
    expect(await findDueBatches(world.pool, { ...later(800), limit })).toEqual([]);
    expect(await findDueBatches(world.pool, { ...later(1_000), limit })).toMatchObject([{ id }]);
    expect(await probe(world.pool, { ...later(1_000), lostRingMs: 1e9 })).toMatchObject({
      due_batches: true,
      overdue_calls: false,
    });
  });

  test('closes the batch when its turn ends; turns that are not awaited continue', async () => {
    const turns = await children(2);
    const { id } = await waiting(turns);
    const other = await joined(turns, { turnId: parent.turnId });
    const result = await transaction(
      world.pool,
      commitWithin([await world.commit(parent, { end: 'canceled' })]),
    );
    expect(result.dueBatchIds).toEqual([id]);
    expect(await look(id)).toMatchObject({ closing: 'cancel', isDue: true });
    expect(await look(other)).toMatchObject({ closing: null, isDue: false });
  });
});

test('no more of the members’ deliverables is read than an answer shows, and small deliverables are read whole', async () => {
  const [small, large] = await children(2);
  if (small === undefined || large === undefined) throw new Error('no children');
  await commitSteps(world.pool, [
    await world.commit(small, { end: 'success', says: 'y'.repeat(20) }),
    await world.commit(large, { end: 'success', says: '\u00e9'.repeat(1_000) }),
  ]);
  const members = async (limit: number) =>
    new Map((await loadMembers(world.pool, idsOf([small, large]), limit)).map((row) => [row.turn_id, row]));
  const few = await members(50);
  expect(few.get(small.turnId)).toMatchObject({ content: { text: 'y'.repeat(20) }, beginning: null });
  expect(few.get(large.turnId)).toMatchObject({ content: null, beginning: '\u00e9'.repeat(51) });
  const all = await members(1_000);
  expect(all.get(large.turnId)).toMatchObject({ content: { text: '\u00e9'.repeat(1_000) }, beginning: null });
});
