import type { ToolCallId, TurnId, WorkerId } from '@boxcar/kernel';
import { beforeEach, describe, expect, test } from 'vitest';
import { transaction } from '../db/db.js';
import { begin, holdCommits, waitUntilBlocked, watchErrors } from '../testing/interleave.js';
import { newId, type TestProfile, type TestTurn, World } from '../testing/world.js';
import type { Advance } from './call-types.js';
import { commitSteps } from './commits.js';
import { loadCallsOfStep, loadPendingCalls } from './pending-calls.js';
import { advanceTurns, recordResults, settleCalls } from './tool-calls.js';

let world: World;
let profile: TestProfile;
let holder: WorkerId;

beforeEach(async () => {
  world = await World.open();
  profile = await world.profile('writer');
  holder = await world.worker();
  return () => world[Symbol.asyncDispose]();
});

async function calling<N extends number>(
  n: N,
): Promise<{ turn: TestTurn; calls: [ToolCallId, ...ToolCallId[]] }> {
  const turn = await world.running({ profile, holder });
  return { turn, calls: (await world.call(turn, n)) as [ToolCallId, ...ToolCallId[]] };
}
const callsOf = async (n: number): Promise<{ turn: TestTurn; a: ToolCallId; b: ToolCallId }> => {
  const { turn, calls } = await calling(n);
  return { turn, a: calls[0], b: calls[1] ?? calls[0] };
};
const advance = (turn: TestTurn, results: Advance['results'] = [], epoch = 1): Advance => ({
  turnId: turn.turnId,
  epoch,
  holderId: holder,
  results,
});
const suspend = async (turn: TestTurn): Promise<void> => {
  const { outcomes } = await advanceTurns(world.pool, [advance(turn)]);
  expect(outcomes).toEqual([{ outcome: 'suspended' }]);
};
const ring = (turn: TestTurn, epoch = 2) => ({ turnId: turn.turnId, epoch, workerTarget: '' });
/** Every answer on the tape, in the order of the tape. */
const answers = async (turn: TestTurn): Promise<string[]> =>
  (await world.tape(turn)).filter((words) => words.startsWith('result'));
const openSteps = (turn: TestTurn) =>
  world.count('steps', `turn_id = '${turn.turnId}' and committed_at is null`);

describe('a result', () => {
  test('is recorded while its turn runs, is suspended, and is dispatched again', async () => {
    for (const state of ['running', 'suspended', 'dispatched'] as const) {
      const { turn, a } = await callsOf(1);
      if (state === 'suspended') await suspend(turn);
      if (state === 'dispatched') await world.release(holder, [turn]);
      const { rings, duplicates } = await recordResults(world.pool, [world.result(turn, a)]);
      expect(duplicates).toEqual([]);
      expect(rings).toEqual(state === 'suspended' ? [ring(turn)] : []);
      expect(await world.row(turn)).toMatchObject({
        status: state === 'suspended' ? 'dispatched' : state,
        epoch: state === 'running' ? 1 : 2,
        pending_calls: 0,
      });
      expect(await answers(turn)).toEqual(['result']);
      await world.pool.query(
        "update boxcar.turns set status = 'failed', holder_id = null, ended_at = now(), deliverable_card_id = id where id = $1",
        [turn.turnId],
      );
    }
  });

  test('that arrives again is a duplicate and changes nothing, also in the same batch', async () => {
    const { turn, a } = await callsOf(2);
    const first = await recordResults(world.pool, [
      world.result(turn, a, 'result 1'),
      world.result(turn, a, 'result 2'),
    ]);
    expect(first).toEqual({ rings: [], duplicates: [a], lockedTurnIds: [] });
    const cards = await world.count('cards');
    expect(await recordResults(world.pool, [world.result(turn, a, 'result 3')])).toEqual({
      rings: [],
      duplicates: [a],
      lockedTurnIds: [],
    });
    expect(await world.count('cards')).toBe(cards);
    expect(await world.row(turn)).toMatchObject({ pending_calls: 1 });
    expect(await loadCallsOfStep(world.pool, turn.turnId, 1)).toMatchObject([
      { status: 'success', content: { text: 'result 1' } },
      { status: 'pending', content: null },
    ]);
  });

  test('of an unknown call, or of another turn’s call, changes nothing', async () => {
    const { turn, a } = await callsOf(1);
    const other = await world.running({ profile, holder });
    const unknown = newId<'tool_call'>();
    expect(await recordResults(world.pool, [world.result(turn, unknown), world.result(other, a)])).toEqual({
      rings: [],
      duplicates: [unknown, a],
      lockedTurnIds: [],
    });
    expect(await world.row(turn)).toMatchObject({ pending_calls: 1 });
    expect(await world.count('cards', "type = 'tool.result'")).toBe(0);
  });

  test('for a deadline counts only while the call has that deadline', async () => {
    const { turn, a } = await callsOf(1);
    const late = async () => {
      const [call] = await world.rows<{ at: string }>(
        'select deadline_at::text as at from boxcar.tool_calls where id = $1',
        [a],
      );
      return { ...world.result(turn, a), status: 'timeout' as const, deadlineAt: call?.at ?? '' };
    };
    const before = await late();
    // Meanwhile the call was given more time.
    await world.wait(a, 3_600_000);
    expect(await recordResults(world.pool, [before])).toMatchObject({ rings: [], duplicates: [a] });
    expect(await world.row(turn)).toMatchObject({ pending_calls: 1 });
    expect(await answers(turn)).toEqual([]);
    expect(await recordResults(world.pool, [await late()])).toMatchObject({ duplicates: [] });
    expect(await world.row(turn)).toMatchObject({ pending_calls: 0 });
  });

  test('that arrives after the end of its turn is kept, and the tape stays unchanged', async () => {
    const { turn, a, b } = await callsOf(2);
    await commitSteps(world.pool, [await world.commit(turn, { step: 'none', end: 'timeout' })]);
    const before = await world.entries(turn);
    const row = await world.row(turn);
    expect(await recordResults(world.pool, [world.result(turn, a), world.result(turn, b)])).toEqual({
      rings: [],
      duplicates: [],
      lockedTurnIds: [],
    });
    expect(await world.entries(turn)).toEqual(before);
    expect(await world.row(turn)).toEqual({ ...row, pending_calls: 0 });
    expect(await world.count('tool_calls', "status = 'success'")).toBe(2);
  });

  test('is appended with the others of its step in call order, once all have arrived', async () => {
    const { turn, calls } = await calling(3);
    await suspend(turn);
    for (const index of [2, 0]) {
      await recordResults(world.pool, [world.result(turn, calls[index] as ToolCallId, `result ${index}`)]);
      expect(await answers(turn)).toEqual([]);
    }
    await recordResults(world.pool, [world.result(turn, calls[1] as ToolCallId, 'result 1')]);
    expect(await answers(turn)).toEqual(['result 0', 'result 1', 'result 2']);
    const entries = (await world.entries(turn)).filter(({ kind }) => kind === 'tool_result');
    expect(entries.map(({ position, step, turn_id }) => [position, step, turn_id])).toEqual(
      [8, 9, 10].map((position) => [position, 1, turn.turnId]),
    );
  });
});

describe('two last results at once', () => {
  test.each([
    ['suspended', 0],
    ['suspended', 1],
    ['running', 0],
    ['running', 1],
  ] as const)('of a turn that is %s resume it exactly once (%i first)', async (state, first) => {
    const { turn, calls } = await calling(2);
    if (state === 'suspended') await suspend(turn);
    const results = calls.map((id, index) => world.result(turn, id, `result ${index}`));
    await using one = await begin(world.pool);
    const early = await settleCalls(one, results.slice(first, first + 1));
    expect(early).toEqual({ rings: [], duplicates: [] });
    const late = recordResults(world.pool, results.slice(1 - first, 2 - first));
    await waitUntilBlocked(world.pool, { by: one.pid });
    await one.query('commit');
    expect(await late).toEqual({
      rings: state === 'suspended' ? [ring(turn)] : [],
      duplicates: [],
      lockedTurnIds: [],
    });
    expect(await answers(turn)).toEqual(['result 0', 'result 1']);
    expect(await world.row(turn)).toMatchObject(
      state === 'suspended'
        ? { status: 'dispatched', epoch: 2, pending_calls: 0, holder_id: null }
        : { status: 'running', epoch: 1, pending_calls: 0, holder_id: holder },
    );
  });

  test('resume it when the first result is rolled back and arrives again', async () => {
    const { turn, a, b } = await callsOf(2);
    await suspend(turn);
    await using one = await begin(world.pool);
    await settleCalls(one, [world.result(turn, a, 'result a')]);
    const late = recordResults(world.pool, [world.result(turn, b, 'result b')]);
    await waitUntilBlocked(world.pool, { by: one.pid });
    await one.query('rollback');
    expect((await late).rings).toEqual([]);
    expect((await recordResults(world.pool, [world.result(turn, a, 'result a')])).rings).toEqual([
      ring(turn),
    ]);
    expect(await answers(turn)).toEqual(['result a', 'result b']);
  });

  test('for one call are one result and one duplicate', async () => {
    const { turn, a } = await callsOf(1);
    await suspend(turn);
    await using one = await begin(world.pool);
    await settleCalls(one, [world.result(turn, a, 'result 1')]);
    const late = recordResults(world.pool, [world.result(turn, a, 'result 2')]);
    await waitUntilBlocked(world.pool, { by: one.pid });
    await one.query('commit');
    expect(await late).toEqual({ rings: [], duplicates: [a], lockedTurnIds: [] });
    expect(await answers(turn)).toEqual(['result 1']);
    expect(await world.row(turn)).toMatchObject({ epoch: 2, pending_calls: 0 });
  });
});

describe('a result and a suspend at once', () => {
  test('with the result first, let the worker continue with the next step', async () => {
    const { turn, a } = await callsOf(1);
    await using child = await begin(world.pool);
    expect((await settleCalls(child, [world.result(turn, a)])).rings).toEqual([]);
    const advanced = advanceTurns(world.pool, [advance(turn)]);
    await waitUntilBlocked(world.pool, { by: child.pid });
    await child.query('commit');
    expect(await advanced).toEqual({
      outcomes: [{ outcome: 'open', attempt: 1, basePosition: null }],
      rings: [],
      lockedTurnIds: [],
    });
    expect(await world.row(turn)).toMatchObject({ status: 'running', epoch: 1, attempt: 1 });
    expect(await answers(turn)).toEqual(['result']);
    expect(await openSteps(turn)).toBe(1);
  });

  test('with the suspend first, let the result resume the turn', async () => {
    const { turn, a } = await callsOf(1);
    const held = holdCommits(world.pool);
    const advanced = advanceTurns(held.pool, [advance(turn)]);
    const pid = await held.atCommit;
    const recorded = recordResults(world.pool, [world.result(turn, a)]);
    await waitUntilBlocked(world.pool, { by: pid });
    held.release();
    expect(await advanced).toEqual({ outcomes: [{ outcome: 'suspended' }], rings: [], lockedTurnIds: [] });
    expect((await recorded).rings).toEqual([ring(turn)]);
    expect(await world.row(turn)).toMatchObject({ status: 'dispatched', epoch: 2, holder_id: null });
    expect(await answers(turn)).toEqual(['result']);
    expect(await openSteps(turn)).toBe(0);
  });

  test.each([
    ['the result commits first', true],
    ['the suspend commits first', false],
  ])('together with a result of the worker itself, lose nothing: %s', async (_order, resultFirst) => {
    const { turn, a, b } = await callsOf(2);
    const own = world.result(turn, a, 'result own');
    const foreign = world.result(turn, b, 'result foreign');
    const held = holdCommits(world.pool);
    if (resultFirst) {
      const recorded = recordResults(held.pool, [foreign]);
      const pid = await held.atCommit;
      const advanced = advanceTurns(world.pool, [advance(turn, [own])]);
      await waitUntilBlocked(world.pool, { by: pid });
      held.release();
      expect((await recorded).rings).toEqual([]);
      expect((await advanced).outcomes).toMatchObject([{ outcome: 'open', attempt: 1 }]);
      expect(await openSteps(turn)).toBe(1);
    } else {
      const advanced = advanceTurns(held.pool, [advance(turn, [own])]);
      const pid = await held.atCommit;
      const recorded = recordResults(world.pool, [foreign]);
      await waitUntilBlocked(world.pool, { by: pid });
      held.release();
      expect((await advanced).outcomes).toEqual([{ outcome: 'suspended' }]);
      expect((await recorded).rings).toEqual([ring(turn)]);
      expect(await openSteps(turn)).toBe(0);
    }
    expect(await answers(turn)).toEqual(['result own', 'result foreign']);
    expect(await world.row(turn)).toMatchObject({ pending_calls: 0 });
  });
});

describe('an advance', () => {
  test('records the results, opens the next step and returns its attempt', async () => {
    const { turn, a, b } = await callsOf(2);
    const { outcomes, rings } = await advanceTurns(world.pool, [
      advance(turn, [world.result(turn, b, 'result b'), world.result(turn, a, 'result a')]),
    ]);
    expect(outcomes).toMatchObject([{ outcome: 'open', attempt: 1 }]);
    expect(rings).toEqual([]);
    expect(await answers(turn)).toEqual(['result a', 'result b']);
    const [step] = await world.rows('select * from boxcar.steps where turn_id = $1 and step = 2', [
      turn.turnId,
    ]);
    const [box] = await world.rows<{ head_position: number }>(
      'select head_position from boxcar.boxes where id = $1',
      [turn.tapeId],
    );
    expect(step).toMatchObject({ attempt: 1, epoch: 1, from_position: 1, to_position: box?.head_position });
  });

  test('by a stale worker is fenced: it neither suspends nor opens; its results are still recorded', async () => {
    const { turn, a } = await callsOf(1);
    await world.release(holder, [turn]);
    expect((await advanceTurns(world.pool, [advance(turn)])).outcomes).toEqual([{ outcome: 'fenced' }]);
    await world.claim(turn, await world.worker());
    const late = await advanceTurns(world.pool, [advance(turn, [world.result(turn, a)])]);
    expect(late.outcomes).toEqual([{ outcome: 'fenced' }]);
    expect(await world.row(turn)).toMatchObject({ status: 'running', epoch: 2, pending_calls: 0 });
    expect(await openSteps(turn)).toBe(0);
    expect(await answers(turn)).toEqual(['result']);
  });

  test('of a turn that has ended is fenced', async () => {
    const { turn } = await callsOf(1);
    await commitSteps(world.pool, [await world.commit(turn, { step: 'none', end: 'failed' })]);
    expect((await advanceTurns(world.pool, [advance(turn)])).outcomes).toEqual([{ outcome: 'fenced' }]);
  });

  test('in a batch gives each turn its own outcome', async () => {
    const [open, waiting, stale] = [await callsOf(1), await callsOf(2), await callsOf(1)];
    const { outcomes } = await advanceTurns(world.pool, [
      advance(waiting.turn, [world.result(waiting.turn, waiting.a)]),
      advance(stale.turn, [], 7),
      advance(open.turn, [world.result(open.turn, open.a)]),
    ]);
    expect(outcomes.map(({ outcome }) => outcome)).toEqual(['suspended', 'fenced', 'open']);
  });

  test('locks all its turns at once and by id, including turns without a result', async () => {
    const [low, high] = [await callsOf(1), await callsOf(1)];
    await using other = await begin(world.pool);
    await other.query('select from boxcar.turns where id = $1 for update', [low.turn.turnId]);
    const advanced = advanceTurns(world.pool, [
      advance(high.turn, [world.result(high.turn, high.a)]),
      advance(low.turn),
    ]);
    await waitUntilBlocked(world.pool, { by: other.pid });
    // It waits for the lower turn without holding the higher turn, so the session that holds the lower turn can lock the higher one.
    await other.query('select from boxcar.turns where id = $1 for update nowait', [high.turn.turnId]);
    await other.query('commit');
    expect((await advanced).outcomes.map(({ outcome }) => outcome)).toEqual(['open', 'suspended']);
  });
});

describe('batches in opposite order', () => {
  test('never wait for each other in a circle', async () => {
    const watched = watchErrors(world.pool);
    for (let round = 0; round < 5; round++) {
      const all = await Promise.all(Array.from({ length: 8 }, () => callsOf(3)));
      const results = all.flatMap(({ turn, a, b }) => [world.result(turn, a), world.result(turn, b)]);
      await Promise.all([
        recordResults(watched.pool, results),
        recordResults(watched.pool, [...results].reverse()),
        advanceTurns(
          watched.pool,
          [...all].reverse().map(({ turn }) => advance(turn)),
        ),
        advanceTurns(
          watched.pool,
          all.map(({ turn, a }, index) => advance(turn, index % 2 === 0 ? [world.result(turn, a)] : [])),
        ),
      ]);
      for (const { turn } of all) {
        expect(await world.row(turn)).toMatchObject({ status: 'suspended', pending_calls: 1 });
      }
    }
    expect(watched.states).toEqual([]);
  });
});

describe('pending calls', () => {
  test('are listed in call order, with the work for which they wait and the remaining time', async () => {
    const { turn, a, b } = await callsOf(2);
    await world.submit({ profile, parent: turn, answers: b });
    await world.wait(b, 3_600_000);
    const [first, second] = await loadPendingCalls(world.pool, turn.turnId);
    expect(first).toMatchObject({
      id: a,
      ordinal: 1,
      provider_call_id: 'call_0',
      is_awaiting: false,
      epoch: 1,
    });
    expect(second).toMatchObject({ id: b, ordinal: 2, provider_call_id: 'call_0', is_awaiting: true });
    expect(first?.remaining_ms).toBeLessThanOrEqual(60_000);
    expect(second?.remaining_ms).toBeGreaterThan(60_000);
    await recordResults(world.pool, [world.result(turn, a)]);
    expect((await loadPendingCalls(world.pool, turn.turnId)).map(({ id }) => id)).toEqual([b]);
    expect(await loadPendingCalls(world.pool, newId<'turn'>() as TurnId)).toEqual([]);
  });
});

test('calls settled in a transaction that is rolled back stay open', async () => {
  const { turn, a } = await callsOf(1);
  await suspend(turn);
  const failed = transaction(world.pool, async (tx) => {
    expect((await settleCalls(tx, [world.result(turn, a)])).rings).toEqual([ring(turn)]);
    throw new Error('no');
  });
  await expect(failed).rejects.toThrow('no');
  expect(await world.row(turn)).toMatchObject({ status: 'suspended', epoch: 1, pending_calls: 1 });
  expect(await answers(turn)).toEqual([]);
});

test('results that are the victim of a deadlock are recorded nevertheless', async () => {
  const { turn, a } = await callsOf(2);
  await suspend(turn);
  await using other = await begin(world.pool);
  // The other transaction checks for deadlocks later than the results do, so the results' transaction is the victim.
  await other.query("set local deadlock_timeout = '60s'");
  await other.query('select from boxcar.tool_calls where id = $1 for update', [a]);
  const watched = watchErrors(world.pool);
  const recording = recordResults(watched.pool, [world.result(turn, a)]);
  await waitUntilBlocked(world.pool, { by: other.pid });
  await other.query('select from boxcar.turns where id = $1 for update', [turn.turnId]);
  await other.query('commit');
  expect(await recording).toEqual({ rings: [], duplicates: [], lockedTurnIds: [] });
  expect(watched.states).toContain('40P01');
  expect(await world.count('tool_calls', `id = '${a}' and status = 'success'`)).toBe(1);
});
