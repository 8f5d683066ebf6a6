import type { ToolCallId, WorkerId } from '@boxcar/kernel';
import { beforeEach, describe, expect, test } from 'vitest';
import { begin, waitUntilBlocked } from '../testing/interleave.js';
import { DEFAULT_PROJECT, newId, type TestProfile, type TestTurn, World } from '../testing/world.js';
import { claim } from '../turn/claims.js';
import { commitSteps } from '../turn/commits.js';
import { recordResults } from '../turn/tool-calls.js';
import { findStaleRings, type RingPlace, ringAgain } from './stale-rings.js';
import {
  elected,
  findExhaustedTurns,
  findOverdueCalls,
  findOverdueTurns,
  findQueuedTargets,
  probe,
  takeOver,
} from './sweep.js';
import {
  findAnswerableJobs,
  findJobsWaitingFor,
  removeWaitingJob,
  removeWaitingJobs,
} from './waiting-jobs.js';

let world: World;
let profile: TestProfile;
let holder: WorkerId;

beforeEach(async () => {
  world = await World.open();
  profile = await world.profile('writer');
  holder = await world.worker();
  return () => world[Symbol.asyncDispose]();
});

/** A time in the given number of seconds from now: the clock of these tests. */
const later = (seconds: number): { now: Date } => ({ now: new Date(Date.now() + seconds * 1_000) });
const limit = 100;
const NOTHING = {
  lost_rings: false,
  dead_leases: false,
  overdue_turns: false,
  overdue_calls: false,
  due_batches: false,
  queued: false,
  due_waits: false,
  due_looks: false,
  waiting_doors: false,
  dead_workers: false,
  settled_failures: false,
  long_waits: false,
  notices: false,
  handoff_notices: false,
  webhooks: false,
  left_forks: false,
  selector_waits: false,
  approvals: false,
  failed_turns: false,
  lost_turns: false,
};

describe('the probe', () => {
  const look = (options: { now?: Date } = {}) => probe(world.pool, { ...options, lostRingMs: 2_000 });

  test('finds nothing when nothing is due', async () => {
    expect(await look()).toEqual(NOTHING);
    const turn = await world.running({ profile, holder, deadlineMs: 60_000 });
    await world.call(turn, 1);
    await world.submit({ profile });
    expect(await look()).toEqual(NOTHING);
  });

  test('finds each kind of due work', async () => {
    const turn = await world.running({ profile, holder, deadlineMs: 10_000 });
    await world.call(turn, 1);
    expect(await look(later(11))).toEqual({ ...NOTHING, overdue_turns: true });
    expect(await look(later(61))).toEqual({ ...NOTHING, overdue_turns: true, overdue_calls: true });
    expect(await look(later(3_601))).toMatchObject({ dead_leases: true });
    await world.submit({ profile });
    expect(await look(later(3))).toEqual({ ...NOTHING, lost_rings: true });
    await world.submit({ profile, reuse: turn });
    expect(await look()).toEqual({ ...NOTHING, queued: true });
  });

  test('does not report ended turns as overdue', async () => {
    const turn = await world.running({ profile, holder, deadlineMs: 10_000 });
    await commitSteps(world.pool, [await world.commit(turn, { end: 'success' })]);
    expect(await look(later(100))).toEqual(NOTHING);
  });
});

describe('workers whose lease is dead', () => {
  test('lose their turns to a new epoch; living workers keep theirs', async () => {
    const dead = await world.worker({ leaseMs: 0 });
    const lost = await world.running({ profile, holder: dead });
    const kept = await world.running({ profile, holder });
    const waiting = await world.submit({ profile });
    const late = await world.commit(lost, { end: 'success' });
    expect(await takeOver(world.pool, { maxLosses: 3, limit })).toEqual([
      { turnId: lost.turnId, epoch: 2, workerTarget: '' },
    ]);
    expect(await world.row(lost)).toMatchObject({ status: 'dispatched', epoch: 2, holder_id: null });
    expect(await world.statusOf(kept)).toBe('running');
    expect(await world.row(waiting)).toMatchObject({ status: 'dispatched', epoch: 1 });
    expect((await commitSteps(world.pool, [late])).outcomes).toEqual([{ outcome: 'fenced' }]);
    expect(await takeOver(world.pool, { maxLosses: 3, limit })).toEqual([]);
  });

  test('include workers whose row is gone', async () => {
    const gone = newId<'worker'>();
    const turn = await world.running({ profile, holder: gone });
    expect(await takeOver(world.pool, { maxLosses: 3, limit })).toMatchObject([{ turnId: turn.turnId }]);
  });

  test('are judged by the given clock', async () => {
    await world.running({ profile, holder });
    expect(await takeOver(world.pool, { ...later(3_599), maxLosses: 3, limit })).toEqual([]);
    expect(await takeOver(world.pool, { ...later(3_601), maxLosses: 3, limit })).toHaveLength(1);
  });

  test('leave the committed steps unchanged: the next holder continues after them', async () => {
    const dead = await world.worker({ leaseMs: 0 });
    const turn = await world.running({ profile, holder: dead });
    await commitSteps(world.pool, [await world.commit(turn, { says: 'kept' })]);
    await takeOver(world.pool, { maxLosses: 3, limit });
    expect(await world.claim(turn, holder)).toMatchObject({ stepCount: 1, attempt: 2, epoch: 2 });
    expect(await world.tape(turn)).toEqual(['turn.started', 'kept']);
  });

  test('lose a turn only a limited number of times before the turn is ended', async () => {
    const dead = await world.worker({ leaseMs: 0 });
    const turn = await world.running({ profile, holder: dead });
    await takeOver(world.pool, { maxLosses: 2, limit });
    await world.claim(turn, dead);
    expect(await takeOver(world.pool, { maxLosses: 2, limit })).toEqual([]);
    const exhausted = await findExhaustedTurns(world.pool, { maxLosses: 2, limit });
    expect(exhausted).toMatchObject([{ turn_id: turn.turnId, epoch: 2, holder_id: dead, attempt: 2 }]);
    expect(await findExhaustedTurns(world.pool, { maxLosses: 3, limit })).toEqual([]);
    const end = await world.commit(turn, { step: 'none', end: 'failed' });
    expect((await commitSteps(world.pool, [end])).outcomes).toMatchObject([{ outcome: 'committed' }]);
    expect(await world.statusOf(turn)).toBe('failed');
  });

  test('are counted on a turn, its releases are not; a committed step resets the count', async () => {
    const turn = await world.running({ profile, holder });
    const losses = async (): Promise<number> =>
      (
        await world.rows<{ losses: number }>('select losses from boxcar.turns where id = $1', [turn.turnId])
      )[0]?.losses ?? -1;
    for (let i = 0; i < 12; i += 1) {
      await world.release(holder, [turn]);
      await world.claim(turn, holder);
    }
    expect(await losses()).toBe(0);
    expect(await findExhaustedTurns(world.pool, { ...later(3_601), maxLosses: 2, limit })).toEqual([]);
    await world.release(holder, [turn], { isLoss: true });
    expect(await losses()).toBe(1);
    expect(await world.claim(turn, holder)).toMatchObject({ losses: 1, attempt: 14 });
    await commitSteps(world.pool, [await world.commit(turn)]);
    expect(await losses()).toBe(0);
  });

  test('do not wait for a turn that another session has locked', async () => {
    const dead = await world.worker({ leaseMs: 0 });
    const [one, two] = [
      await world.running({ profile, holder: dead }),
      await world.running({ profile, holder: dead }),
    ];
    await using other = await begin(world.pool);
    await other.query('select from boxcar.turns where id = $1 for update', [one.turnId]);
    expect(await takeOver(world.pool, { maxLosses: 3, limit })).toMatchObject([{ turnId: two.turnId }]);
  });
});

describe('lost rings', () => {
  test('include the rings that others may not pass: the oldest of a target, and of a project without a running turn', async () => {
    const projects = [await world.project('busy'), await world.project('idle')];
    const profiles = [];
    for (const { projectId } of projects) profiles.push(await world.profile('writer', { projectId }));
    const [busy, idle] = profiles as [TestProfile, TestProfile];
    await world.claim(await world.submit({ profile: busy }), holder);
    const turns: TestTurn[] = [];
    for (const of of [busy, busy, idle, idle, busy]) turns.push(await world.submit({ profile: of }));
    const { rings } = await findStaleRings(world.pool, { ...later(3), lostRingMs: 2_000, limit });
    expect(
      rings.map(({ turnId, isNext }) => [turns.findIndex((turn) => turn.turnId === turnId), isNext]),
    ).toEqual([
      [0, true],
      [1, false],
      [2, true],
      [3, false],
      [4, false],
    ]);
  });

  test('are found page by page: each page has the oldest ring of each target, and no ring occurs twice', async () => {
    const [busy, idle] = [await world.project('busy'), await world.project('idle')];
    const first = await world.profile('writer', { workerTarget: 'a', projectId: busy.projectId });
    const second = await world.profile('reader', { workerTarget: 'a', projectId: idle.projectId });
    const other = await world.profile('painter', { workerTarget: 'b', projectId: busy.projectId });
    await world.worker({ targets: ['a', 'b'] });
    await world.claim(await world.submit({ profile: first }), holder);
    const turns: TestTurn[] = [];
    for (const of of [first, first, second, first, second, other, other])
      turns.push(await world.submit({ profile: of }));
    const page = async (after?: RingPlace) => {
      const found = await findStaleRings(world.pool, { ...later(3), lostRingMs: 2_000, limit: 2, after });
      return {
        rings: found.rings.map(({ turnId, isNext }) => [
          turns.findIndex((turn) => turn.turnId === turnId),
          isNext,
        ]),
        next: found.next,
      };
    };
    const one = await page();
    expect(one.rings).toEqual([
      [0, true],
      [5, true],
      [1, false],
    ]);
    const two = await page(one.next);
    expect(two.rings).toEqual([
      [0, true],
      [5, true],
      [2, true],
      [3, false],
    ]);
    const three = await page(two.next);
    expect(three.rings).toEqual([
      [0, true],
      [5, true],
      [4, false],
    ]);
    const four = await page(three.next);
    expect(four.rings).toEqual([
      [0, true],
      [5, true],
      [6, false],
    ]);
    expect(four.next).toBeUndefined();
  });

  test('dispatched at the same moment are each found once', async () => {
    const turns = await Promise.all(Array.from({ length: 7 }, () => world.submit({ profile })));
    await world.rows(
      'update boxcar.turns set dispatched_at = now(), priority = case when id = $1 then 5 else 0 end',
      [turns[3]?.turnId],
    );
    const found: string[] = [];
    let after: RingPlace | undefined;
    do {
      const page = await findStaleRings(world.pool, { ...later(3), lostRingMs: 2_000, limit: 2, after });
      found.push(...page.rings.map(({ turnId }) => turnId));
      after = page.next;
    } while (after !== undefined);
    expect([...new Set(found)].sort()).toEqual(turns.map(({ turnId }) => turnId).sort());
  });

  test('move calls that no worker has begun, and no other calls, to the epoch of the next claim', async () => {
    const turn = await world.running({ profile, holder });
    const [begun, unbegun] = await world.call(turn, 2);
    const epochs = () =>
      world.rows('select id, epoch from boxcar.tool_calls where turn_id = $1 order by ordinal', [
        turn.turnId,
      ]);
    await world.release(holder, [turn], { begunIds: begun === undefined ? [] : [begun] });
    await ringAgain(world.pool, [{ turnId: turn.turnId, epoch: 2, workerTarget: '' }]);
    expect(await epochs()).toEqual([
      { id: begun, epoch: 1 },
      { id: unbegun, epoch: 3 },
    ]);
    await world.claim(turn, holder);
    await world.release(holder, [turn]);
    await ringAgain(world.pool, [{ turnId: turn.turnId, epoch: 4, workerTarget: '' }]);
    // The last holder did not report which calls it had begun.
    expect(await epochs()).toEqual([
      { id: begun, epoch: 1 },
      { id: unbegun, epoch: 3 },
    ]);
  });

  test('wait for the next sweep while a call that no worker has begun is locked', async () => {
    const turn = await world.running({ profile, holder });
    const [first, second] = await world.call(turn, 2);
    await world.release(holder, [turn]);
    await world.rows('update boxcar.tool_calls set epoch = 2 where turn_id = $1', [turn.turnId]);
    const ring = { turnId: turn.turnId, epoch: 2, workerTarget: '' };
    const epochs = () =>
      world.rows('select k.epoch from boxcar.tool_calls k where k.id in ($1, $2)', [first, second]);
    await using gate = await begin(world.pool);
    await gate.query('select from boxcar.tool_calls where id = $1 for update', [first]);
    expect(await ringAgain(world.pool, [ring])).toEqual([]);
    expect(await epochs()).toEqual([{ epoch: 2 }, { epoch: 2 }]);
    await gate.query('commit');
    expect(await ringAgain(world.pool, [ring])).toEqual([{ ...ring, epoch: 3 }]);
    expect(await epochs()).toEqual([{ epoch: 3 }, { epoch: 3 }]);
  });

  test('are rung again at a new epoch; the old epoch claims nothing', async () => {
    const turn = await world.submit({ profile });
    expect(await findStaleRings(world.pool, { lostRingMs: 2_000, limit })).toEqual({ rings: [] });
    const { rings: stale } = await findStaleRings(world.pool, { ...later(3), lostRingMs: 2_000, limit });
    expect(stale).toEqual([{ turnId: turn.turnId, epoch: 1, workerTarget: '', isNext: true }]);
    expect(await ringAgain(world.pool, stale)).toEqual([{ turnId: turn.turnId, epoch: 2, workerTarget: '' }]);
    expect(await ringAgain(world.pool, stale)).toEqual([]);
    expect(await claim(world.pool, stale, holder)).toEqual([{ outcome: 'stale' }]);
    expect((await claim(world.pool, [{ turnId: turn.turnId, epoch: 2 }], holder))[0]?.outcome).toBe(
      'claimed',
    );
  });

  test('of a target that no worker serves do not take the place of others', async () => {
    const gpu = await world.profile('painter', { workerTarget: 'gpu' });
    const painter = await world.worker({ targets: ['gpu'] });
    await world.submit({ profile: gpu });
    const turn = await world.submit({ profile });
    await world.rows("update boxcar.workers set lease_until = now() - interval '1 second' where id = $1", [
      painter,
    ]);
    expect(await findStaleRings(world.pool, { ...later(3), lostRingMs: 2_000, limit: 1 })).toMatchObject({
      rings: [{ turnId: turn.turnId }],
    });
  });

  test('whose turn was claimed meanwhile are left alone', async () => {
    const turn = await world.submit({ profile });
    const { rings: stale } = await findStaleRings(world.pool, { ...later(3), lostRingMs: 2_000, limit });
    await world.claim(turn, holder);
    expect(await ringAgain(world.pool, stale)).toEqual([]);
    expect(await world.row(turn)).toMatchObject({ status: 'running', epoch: 1 });
  });

  test('that race a claim do not wait for a lock: either the ring or the claim wins', async () => {
    const turn = await world.submit({ profile });
    const ring = { turnId: turn.turnId, epoch: 1, workerTarget: '' };
    await using gate = await begin(world.pool);
    await gate.query('select from boxcar.turns for update');
    const claimed = claim(world.pool, [ring], holder);
    await waitUntilBlocked(world.pool, { n: 1 });
    expect(await ringAgain(world.pool, [ring])).toEqual([]);
    await gate.query('commit');
    expect(await claimed).toMatchObject([{ outcome: 'claimed' }]);
    expect(await ringAgain(world.pool, [ring])).toEqual([]);
    expect(await world.statusOf(turn)).toBe('running');
  });
});

describe('deadlines', () => {
  test('find turns in every status that is not final, the most overdue first', async () => {
    const ended = await world.running({ profile, holder, deadlineMs: 1_000 });
    await commitSteps(world.pool, [await world.commit(ended, { end: 'success' })]);
    await world.running({ profile, holder });
    const running = await world.running({ profile, holder, deadlineMs: 30_000 });
    const dispatched = await world.submit({ profile, deadlineMs: 20_000 });
    const queued = await world.submit({ profile, reuse: running, deadlineMs: 10_000 });
    const found = async (seconds: number) =>
      (await findOverdueTurns(world.pool, { ...later(seconds), limit })).map(({ turn_id }) => turn_id);
    expect(await found(0)).toEqual([]);
    expect(await found(15)).toEqual([queued.turnId]);
    expect(await found(60)).toEqual([queued, dispatched, running].map(({ turnId }) => turnId));
    const [row] = await findOverdueTurns(world.pool, { ...later(60), limit: 1 });
    expect(row).toMatchObject({
      turn_id: queued.turnId,
      epoch: 0,
      holder_id: null,
      agent_id: running.agentId,
      output_box_id: running.tapeId,
      is_awaited: false,
    });
  });

  test('find calls, and report which of them wait for a turn', async () => {
    const turn = await world.running({ profile, holder });
    const [a, b] = (await world.call(turn, 2)) as [ToolCallId, ToolCallId];
    await world.submit({ profile, parent: turn, answers: b });
    expect(await findOverdueCalls(world.pool, { ...later(59), limit })).toEqual([]);
    const found = await findOverdueCalls(world.pool, { ...later(61), limit });
    expect(found.map(({ id, is_awaiting }) => [id, is_awaiting]).sort()).toEqual(
      [
        [a, false],
        [b, true],
      ].sort(),
    );
  });
});

test('a call that got more time after it was found overdue is not answered as overdue', async () => {
  const turn = await world.running({ profile, holder });
  const [call] = (await world.call(turn, 1)) as [ToolCallId];
  const [found] = await findOverdueCalls(world.pool, { ...later(61), limit });
  if (found === undefined) throw new Error('not found');
  await world.wait(call, 3_600_000);
  const answer = { ...world.result(turn, call, 'late'), deadlineAt: found.deadline_at };
  expect(await recordResults(world.pool, [answer])).toEqual({
    rings: [],
    duplicates: [call],
    lockedTurnIds: [],
  });
  const [again] = await findOverdueCalls(world.pool, { ...later(3_601), limit });
  const due = { ...answer, deadlineAt: again?.deadline_at ?? '' };
  expect(await recordResults(world.pool, [due])).toEqual({ rings: [], duplicates: [], lockedTurnIds: [] });
});

test('sweepers work one at a time: the others learn so at once, and no connection is held meanwhile', async () => {
  const swept: string[] = [];
  await elected(world.pool, 5_000, async () => {
    swept.push('first');
    expect(world.pool.idleCount).toBe(world.pool.totalCount);
    expect(await elected(world.pool, 5_000, async () => void swept.push('second'))).toBe(false);
  });
  expect(await elected(world.pool, 5_000, async () => void swept.push('third'))).toBe(true);
  await expect(elected(world.pool, 5_000, () => Promise.reject(new Error('in vain')))).rejects.toThrow(
    'in vain',
  );
  expect(await elected(world.pool, 5_000, async () => void swept.push('fourth'))).toBe(true);
  expect(swept).toEqual(['first', 'third', 'fourth']);
});

test('a sweeper that never returns delays the others only until its lease ends', async () => {
  const never = elected(world.pool, 5_000, async () => {
    await world.rows("update boxcar.sweeper set lease_until = now() - interval '1 second'");
    expect(await elected(world.pool, 5_000, async () => undefined)).toBe(true);
  });
  expect(await never).toBe(true);
  await elected(world.pool, 700, async () => {
    const [held] = await world.rows<{ lease_ms: number }>(
      'select extract(epoch from lease_until - clock_timestamp())::float8 * 1000 as lease_ms from boxcar.sweeper',
    );
    expect(held?.lease_ms).toBeLessThanOrEqual(700);
  });
});

test('targets with queued turns are listed once each', async () => {
  for (const workerTarget of ['b', 'a', 'b'])
    await world.submit({ profile: await world.profile(`p-${newId()}`, { workerTarget }) });
  await world.submit({ profile });
  expect(await findQueuedTargets(world.pool)).toEqual(['a', 'b']);
});

describe('jobs of the queue door', () => {
  test('wait for a turn until their own job closes the wait', async () => {
    const turn = await world.running({ profile, holder });
    await world.pool.query(
      `insert into boxcar.operations (project_id, idempotency_key, primitive, request_hash, response, awaited_turn_id, door_job_id)
       values ($1, 'key', 'p', '\\x00', '{}', $2, 'job-1')`,
      [DEFAULT_PROJECT, turn.turnId],
    );
    const jobs = async () =>
      (await findJobsWaitingFor(world.pool, [turn.turnId])).map(({ job_id }) => job_id);
    expect(await jobs()).toEqual(['job-1']);
    const find = async (options: { now?: Date } = {}) =>
      (await findAnswerableJobs(world.pool, { ...options, of: 'turns', limit })).jobs;
    expect(await find(later(10))).toEqual([]);
    const ended = await commitSteps(world.pool, [await world.commit(turn, { end: 'success' })]);
    expect(ended.doorTurnIds).toEqual([turn.turnId]);
    expect(await find()).toEqual([]);
    const [door] = await find(later(10));
    if (door === undefined) throw new Error('no door waits');
    await removeWaitingJob(world.pool, { ...door, job_id: 'job-2' });
    expect(await jobs()).toEqual(['job-1']);
    await removeWaitingJob(world.pool, door);
    expect(await jobs()).toEqual([]);
  });

  test('are closed together, except for those that another session has locked', async () => {
    const turn = await world.running({ profile, holder });
    for (const n of [1, 2, 3])
      await world.pool.query(
        `insert into boxcar.operations (project_id, idempotency_key, primitive, request_hash, response, awaited_turn_id, door_job_id)
         values ($1, $3, 'p', '\\x00', '{}', $2, $4)`,
        [DEFAULT_PROJECT, turn.turnId, `key-${n}`, `job-${n}`],
      );
    const doors = await findJobsWaitingFor(world.pool, [turn.turnId]);
    const jobs = async () =>
      (await findJobsWaitingFor(world.pool, [turn.turnId])).map(({ job_id }) => job_id);
    await using gate = await begin(world.pool);
    await gate.query("select from boxcar.operations where idempotency_key = 'key-2' for update");
    await removeWaitingJobs(
      world.pool,
      doors.filter((door) => door.job_id !== 'job-3'),
    );
    expect((await jobs()).sort()).toEqual(['job-2', 'job-3']);
    await gate.query('commit');
    await removeWaitingJobs(world.pool, doors);
    expect(await jobs()).toEqual([]);
  });
});
