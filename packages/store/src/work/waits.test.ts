import type { WorkerId } from '@boxcar/kernel';
import { beforeEach, describe, expect, test } from 'vitest';
import { begin, waitUntilBlocked } from '../testing/interleave.js';
import { type TestProfile, type TestTurn, World } from '../testing/world.js';
import { claim } from '../turn/claims.js';
import { commitSteps } from '../turn/commits.js';
import { findExhaustedTurns, probe, takeOver } from './sweep.js';
import { loadFailedAttempts, retryLater, wakeDue, wakeRetries } from './waits.js';

let world: World;
let profile: TestProfile;
let holder: WorkerId;

beforeEach(async () => {
  world = await World.open();
  profile = await world.profile('writer');
  holder = await world.worker();
  return () => world[Symbol.asyncDispose]();
});

const SECOND = 1_000;
const later = (seconds: number) => ({ now: new Date(Date.now() + seconds * SECOND), limit: 100 });

/** Reports that the model call of the open step failed. The next call is a minute later. */
async function fail(turn: TestTurn, options: { holder?: WorkerId; epoch?: number } = {}): Promise<boolean> {
  const { step } = await world.commit(turn);
  const row = await world.row(turn);
  if (step === null) throw new Error('no step');
  const error = { code: 'model_unavailable', message: `try ${step.attempt}` };
  return retryLater(world.pool, {
    turnId: turn.turnId,
    epoch: options.epoch ?? row.epoch,
    holderId: options.holder ?? holder,
    step: { ...step, thoughtCardId: null, usage: null, finishReason: 'error', error },
    delayMs: 60 * SECOND,
    detail: { code: error.code },
  });
}
const running = () => world.running({ profile, holder });
const state = (turn: TestTurn) =>
  world.rows('select status, epoch, attempt, retries, holder_id from boxcar.turns where id = $1', [
    turn.turnId,
  ]);

describe('a turn whose model call failed', () => {
  test('waits without a holder, and continues with the next attempt of the step when the wait is over', async () => {
    const turn = await running();
    const before = await world.tape(turn);
    expect(await fail(turn)).toBe(true);
    expect(await state(turn)).toEqual([
      { status: 'suspended', epoch: 1, attempt: 1, retries: 1, holder_id: null },
    ]);
    expect(await wakeDue(world.pool, later(59))).toEqual([]);
    const rings = await wakeDue(world.pool, later(61));
    expect(rings).toMatchObject([{ turnId: turn.turnId, epoch: 2 }]);
    expect(await world.count('waits')).toBe(0);
    const [again] = await claim(world.pool, rings, holder);
    expect(again).toMatchObject({ turn: { attempt: 2, retries: 1, stepCount: 0 } });
    expect(await world.tape(turn)).toEqual(before);
    expect(await loadFailedAttempts(world.pool, turn.turnId, 1)).toMatchObject([
      { attempt: 1, error: { message: 'try 1' } },
    ]);
  });

  test('counts from the beginning at its next step', async () => {
    const turn = await running();
    await fail(turn);
    await claim(world.pool, await wakeDue(world.pool, later(61)), holder);
    await commitSteps(world.pool, [await world.commit(turn)]);
    expect(await state(turn)).toMatchObject([{ status: 'running', attempt: 1, retries: 0 }]);
  });

  test('is found by the probe when it is due, and not before', async () => {
    await fail(await running());
    const due = async (seconds: number): Promise<boolean> =>
      (await probe(world.pool, { ...later(seconds), lostRingMs: 3_600_000 })).due_waits;
    expect([await due(0), await due(61)]).toEqual([false, true]);
  });

  test('is not suspended by a worker that has lost the turn', async () => {
    const turn = await running();
    const stranger = await world.worker();
    expect(await fail(turn, { holder: stranger })).toBe(false);
    expect(await fail(turn, { epoch: 7 })).toBe(false);
    expect(await world.count('waits')).toBe(0);
    expect(await world.count('steps', 'error is not null')).toBe(0);
    expect(await world.statusOf(turn)).toBe('running');
  });

  test('does not lose an allowed loss: a retry is not a lost worker', async () => {
    const turn = await running();
    for (let n = 0; n < 5; n++) {
      await fail(turn);
      await claim(world.pool, await wakeDue(world.pool, later(61)), holder);
    }
    await world.pool.query('update boxcar.workers set lease_until = now()');
    const clock = { now: new Date(Date.now() + SECOND), maxLosses: 3, limit: 10 };
    expect(await findExhaustedTurns(world.pool, clock)).toEqual([]);
    expect(await takeOver(world.pool, clock)).toMatchObject([{ turnId: turn.turnId }]);
  });
});

describe('a wake', () => {
  test('happens once, however many processes look', async () => {
    const turns = await Promise.all(Array.from({ length: 6 }, running));
    for (const turn of turns) await fail(turn);
    const timed = turns.map((turn) => ({ turnId: turn.turnId, epoch: 1 }));
    const woken = await Promise.all([
      wakeDue(world.pool, later(61)),
      wakeRetries(world.pool, timed),
      wakeDue(world.pool, later(61)),
    ]);
    const epochs = await world.rows('select distinct status, epoch from boxcar.turns');
    expect(epochs).toEqual([{ status: 'dispatched', epoch: 2 }]);
    expect(woken.flat()).toHaveLength(6);
  });

  test('removes the wait that an older build has left of a turn that it ended', async () => {
    const turn = await running();
    await fail(turn);
    const [wait] = await world.rows('select * from boxcar.waits');
    await commitSteps(world.pool, [await world.commit(turn, { step: 'none', end: 'timeout', holder: null })]);
    await world.pool.query(
      'insert into boxcar.waits select (jsonb_populate_record(null::boxcar.waits, $1)).*',
      [JSON.stringify(wait)],
    );
    expect(await wakeDue(world.pool, later(61))).toEqual([]);
    expect(await world.count('waits')).toBe(0);
    expect(await world.statusOf(turn)).toBe('timeout');
  });

  test('by a timer of an earlier wait does nothing', async () => {
    const turn = await running();
    await fail(turn);
    await claim(world.pool, await wakeDue(world.pool, later(61)), holder);
    await fail(turn);
    expect(await wakeRetries(world.pool, [{ turnId: turn.turnId, epoch: 1 }])).toEqual([]);
    expect(await world.count('waits')).toBe(1);
  });

  test('and an end of the same turn leave one of the two and no wait, in either order', async () => {
    const turn = await running();
    await fail(turn);
    const end = await world.commit(turn, { step: 'none', end: 'timeout', holder: null });
    await using other = await begin(world.pool);
    await other.query('select from boxcar.turns where id = $1 for update', [turn.turnId]);
    const ending = commitSteps(world.pool, [end]);
    await waitUntilBlocked(world.pool, { by: other.pid });
    // A turn that another session has locked is left for the next look.
    expect(await wakeDue(world.pool, later(61))).toEqual([]);
    await other.query('commit');
    expect((await ending).outcomes).toMatchObject([{ outcome: 'committed' }]);
    expect(await wakeDue(world.pool, later(61))).toEqual([]);
    expect(await world.statusOf(turn)).toBe('timeout');
    expect(await world.count('waits')).toBe(0);

    const woken = await running();
    await fail(woken);
    const late = await world.commit(woken, { step: 'none', end: 'timeout', holder: null });
    expect(await wakeDue(world.pool, later(61))).toHaveLength(1);
    expect((await commitSteps(world.pool, [late])).outcomes).toEqual([{ outcome: 'fenced' }]);
  });
});
