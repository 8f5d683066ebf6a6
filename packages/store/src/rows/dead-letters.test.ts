import { statementProxy } from '@boxcar/testkit';
import { expect, test } from 'vitest';
import { createPool } from '../db/pool.js';
import { World } from '../testing/world.js';
import { claim } from '../turn/claims.js';
import { commitSteps } from '../turn/commits.js';
import { findFailedTurns, findRunFailures } from '../turn/failed-turns.js';
import { findReady } from '../work/workers.js';
import {
  findBlockedJob,
  forgetSettledFailures,
  listDeadLetters,
  noteSweepFailure,
  retryDeadLetters,
} from './dead-letters.js';

test('a list of dead letters with a limit that is not a number of rows is refused', async () => {
  await using world = await World.open();
  for (const limit of [0, -1, 1.5, Number.NaN])
    await expect(listDeadLetters(world.pool, limit)).rejects.toMatchObject({
      code: 'bad_request',
      details: { field: 'limit' },
    });
  expect(await listDeadLetters(world.pool, 1)).toEqual([]);
});

test('the note about a turn that could not be run is valid only for its step', async () => {
  await using world = await World.open();
  const profile = await world.profile('writer');
  const holder = await world.worker();
  const turn = await world.running({ profile, holder });
  const note = (maxTries?: number) =>
    noteSweepFailure(
      world.pool,
      { kind: 'turn_runs', rowId: turn.turnId, projectId: null, error: 'internal_error: broken' },
      maxTries === undefined ? {} : { maxTries },
    );
  const later = { now: new Date(Date.now() + 600_000) };
  for (const attempts of [1, 2, 3, 4]) expect(await note()).toEqual({ attempts, isDead: false });
  const known = 'internal_error: broken (at step 1)';
  expect([...(await findRunFailures(world.pool, [turn.turnId])).values()]).toEqual([known]);
  // A run may take longer than the time for which a note is kept.
  await forgetSettledFailures(world.pool, later);
  expect(await listDeadLetters(world.pool, 10)).toMatchObject([{ last_error: known, attempts: 4 }]);
  expect(await findFailedTurns(world.pool, { limit: 10 })).toEqual([]);

  await commitSteps(world.pool, [await world.commit(turn)]);
  await world.release(holder, [turn]);
  expect(await findFailedTurns(world.pool, { limit: 10 })).toEqual([]);
  expect((await findRunFailures(world.pool, [turn.turnId])).size).toBe(0);
  expect(await findReady(world.pool, [''], 10)).toHaveLength(1);
  expect(await note()).toEqual({ attempts: 1, isDead: false });
  expect(await findReady(world.pool, [''], 10)).toEqual([]);
  expect(await listDeadLetters(world.pool, 10)).toMatchObject([
    { last_error: 'internal_error: broken (at step 2)', is_dead: false },
  ]);
  await commitSteps(world.pool, [
    await world.commit(turn, { step: 'none', end: 'failed', holder: null, epoch: 2 }),
  ]);
  await forgetSettledFailures(world.pool, later);
  expect(await listDeadLetters(world.pool, 10)).toEqual([]);
});

test('the note of a job that held an event loop is kept for a day', async () => {
  await using world = await World.open();
  const rowId = '0198c1f2-0000-7000-8000-000000000001';
  const note = { kind: 'blocked_jobs' as const, rowId, projectId: null, error: 'worker_blocked: x' };
  for (const attempts of [1, 2])
    expect(await noteSweepFailure(world.pool, note, { maxTries: 1_000_000 })).toEqual({
      attempts,
      isDead: false,
    });
  const inHours = (hours: number) => ({ now: new Date(Date.now() + hours * 3_600_000) });
  await forgetSettledFailures(world.pool, inHours(23));
  expect(await findBlockedJob(world.pool, rowId)).toMatchObject({ attempts: 2, cause: 'worker_blocked: x' });
  await forgetSettledFailures(world.pool, inHours(25));
  expect(await findBlockedJob(world.pool, rowId)).toBeUndefined();
});

test('a turn that was set aside is ended and not run, even if its worker has since committed a step', async () => {
  await using world = await World.open();
  const holder = await world.worker();
  const turn = await world.running({ profile: await world.profile('writer'), holder });
  await noteSweepFailure(
    world.pool,
    { kind: 'turn_runs', rowId: turn.turnId, projectId: null, error: 'canceled: by its operator' },
    { maxTries: 1 },
  );
  await commitSteps(world.pool, [await world.commit(turn)]);
  await world.release(holder, [turn]);
  const { status, epoch, step_count } = await world.row(turn);
  expect({ status, step_count }).toEqual({ status: 'dispatched', step_count: 1 });
  expect(await claim(world.pool, [{ turnId: turn.turnId, epoch }], holder)).toEqual([{ outcome: 'stale' }]);
  expect(await findReady(world.pool, [''], 10)).toEqual([]);
  expect(await findFailedTurns(world.pool, { limit: 10 })).toMatchObject([{ turn_id: turn.turnId }]);
});

test('a row that was set aside stays so with its first cause, whatever fails later', async () => {
  await using world = await World.open();
  const holder = await world.worker();
  const turn = await world.running({ profile: await world.profile('writer'), holder });
  const note = (error: string, maxTries?: number) =>
    noteSweepFailure(
      world.pool,
      { kind: 'turn_runs', rowId: turn.turnId, projectId: null, error },
      maxTries === undefined ? {} : { maxTries },
    );
  await note('canceled: by its operator', 1);
  // The release of a failing row, the watchdog and a failed claim note failures in these ways.
  expect(await note('internal_error: poison')).toMatchObject({ isDead: true });
  expect(await note('internal_error: poison', 10)).toMatchObject({ isDead: true });
  expect(await listDeadLetters(world.pool, 10)).toMatchObject([
    { is_dead: true, last_error: 'canceled: by its operator (at step 1)' },
  ]);
  expect(await findFailedTurns(world.pool, { limit: 10 })).toMatchObject([{ turn_id: turn.turnId }]);
  expect(await retryDeadLetters(world.pool)).toBe(1);
  expect(await note('internal_error: poison')).toMatchObject({ isDead: false });
});

test('a note of an older build, which names no step, is valid', async () => {
  await using world = await World.open();
  const turn = await world.submit({ profile: await world.profile('writer') });
  await world.rows(
    `insert into boxcar.sweep_failures (kind, row_id, attempts, last_error, next_try_at, is_dead)
     values ('turn_runs', $1, 5, 'internal_error: broken', now(), true)`,
    [turn.turnId],
  );
  expect(await findFailedTurns(world.pool, { limit: 10 })).toMatchObject([{ turn_id: turn.turnId }]);
});

test('a note and a retry whose answer is lost are recorded once', async () => {
  await using world = await World.open();
  const turn = await world.submit({ profile: await world.profile('writer') });
  await using proxy = await statementProxy(world.database.url);
  const pool = createPool({ connectionString: proxy.url, max: 1 });
  const failure = {
    kind: 'turn_runs',
    rowId: turn.turnId,
    projectId: null,
    error: 'internal_error: broken',
  } as const;
  const cut = { at: 1, when: 'after', scope: 'connection' } as const;
  try {
    for (const attempts of [1, 2]) {
      proxy.arm(cut);
      expect(await noteSweepFailure(pool, failure, { maxTries: 2 })).toEqual({
        attempts,
        isDead: attempts === 2,
      });
      expect(proxy.struck).toMatch(/sweep_failures/);
      await world.rows("update boxcar.sweep_failures set next_try_at = now() - interval '1 second'");
    }
    for (const at of [1, 2]) {
      await world.rows('update boxcar.sweep_failures set is_dead = true');
      proxy.arm({ ...cut, at });
      expect(await retryDeadLetters(pool)).toBe(1);
      expect(proxy.struck).toMatch(/sweep_failures/);
      expect(await listDeadLetters(world.pool, 10)).toMatchObject([{ attempts: 1, is_dead: false }]);
    }
  } finally {
    await pool.end();
  }
});
