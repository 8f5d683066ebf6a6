import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import {
  beginCalls,
  findRoom,
  isProviderFailure,
  noteFailure,
  PROBE_MS,
  type ProviderState,
  paceOf,
  providerOf,
} from './provider.js';

const works: ProviderState = {
  maxConcurrent: null,
  requestsPerMinute: null,
  breakerAfter: 3,
  pacedUntil: null,
  openUntil: null,
  failures: 0,
  openings: 0,
  inUse: 0,
  now: 1_000_000_000_000,
};

test('the provider of a model is the part of its name before the colon', () => {
  expect(['openai:gpt', 'scripted', 'openai-compatible:a:b'].map(providerOf)).toEqual([
    'openai',
    'scripted',
    'openai-compatible',
  ]);
});

describe('room', () => {
  test('is without end where nothing limits it', () => {
    expect(findRoom(works)).toMatchObject({ calls: Number.POSITIVE_INFINITY, reason: null });
  });

  test('P1: no minute, wherever it begins, holds more calls than the rate allows, whoever asks when for how many', () => {
    const asks = fc.array(fc.tuple(fc.nat(20_000), fc.integer({ min: 1, max: 30 })), { maxLength: 100 });
    fc.assert(
      fc.property(fc.integer({ min: 1, max: 600 }), asks, (requestsPerMinute, wishes) => {
        let state: ProviderState = { ...works, requestsPerMinute };
        const begun: number[] = [];
        for (const [pause, wanted] of wishes) {
          state = { ...state, now: state.now + pause };
          const calls = Math.min(findRoom(state).calls, wanted);
          state = { ...state, ...beginCalls(state, calls), inUse: 0 };
          for (let n = 0; n < calls; n++) begun.push(state.now);
        }
        for (const [index, start] of begun.entries()) {
          const end = begun[index + requestsPerMinute];
          if (end !== undefined) expect(end - start).toBeGreaterThanOrEqual(60_000 - 1);
        }
      }),
    );
  });

  test('comes at the moment it is said to come, and not before', () => {
    fc.assert(
      fc.property(fc.integer({ min: 1, max: 600 }), (requestsPerMinute) => {
        const fresh = { ...works, requestsPerMinute };
        const { burst } = paceOf(requestsPerMinute);
        expect(findRoom(fresh).calls).toBe(burst);
        const full = { ...fresh, ...beginCalls(fresh, burst) };
        const { calls, lookAt } = findRoom(full);
        expect(calls).toBe(0);
        expect(findRoom({ ...full, now: lookAt }).calls).toBe(1);
        expect(findRoom({ ...full, now: lookAt - 1 }).calls).toBe(0);
      }),
    );
  });

  test('P1: calls at once are never more than allowed, also when the limit was lowered meanwhile', () => {
    const at = (inUse: number) => findRoom({ ...works, maxConcurrent: 3, inUse }).calls;
    expect([0, 2, 3, 9].map(at)).toEqual([3, 1, 0, 0]);
    expect(findRoom({ ...works, maxConcurrent: 3, inUse: 3 })).toMatchObject({ reason: 'concurrency' });
  });
});

describe('P2: a provider that fails', () => {
  const alone = { hasSucceeded: false, isProbe: false };
  const fail = (state: ProviderState, seen: Parameters<typeof noteFailure>[1] = alone): ProviderState => ({
    ...state,
    ...noteFailure(state, seen),
  });

  test('is closed off after so many failures in a row, for longer each time, and one call at a time tries', () => {
    let state = fail(fail(works));
    expect(findRoom(state).reason).toBeNull();
    state = fail(state);
    expect(findRoom(state)).toMatchObject({ calls: 0, reason: 'failing', lookAt: works.now + 10_000 });
    state = { ...state, now: works.now + 10_000 };
    expect(findRoom(state)).toMatchObject({ calls: 1, isProbe: true });
    state = { ...state, ...beginCalls(state, 1) };
    expect(findRoom(state)).toMatchObject({ calls: 0, lookAt: state.now + PROBE_MS });
    state = fail(state, { hasSucceeded: false, isProbe: true });
    expect(findRoom(state).lookAt).toBe(state.now + 20_000);
  });

  test('is not closed off by failures between answers', () => {
    let state = works;
    for (let n = 0; n < 20; n++) state = fail(state, { hasSucceeded: n % 2 === 0, isProbe: false });
    expect(state.openUntil).toBeNull();
  });

  test('stays closed off no longer by calls that were under way before', () => {
    const closed = fail(fail(fail(works)));
    expect(fail({ ...closed, now: closed.now + 5 }).openUntil).toBe(closed.openUntil);
  });

  test('is never closed off where the profile of its limits says so', () => {
    let state: ProviderState = { ...works, breakerAfter: 0 };
    for (let n = 0; n < 50; n++) state = fail(state);
    expect(state.openUntil).toBeNull();
  });
});

test.each([
  ['model_timeout', {}, true],
  ['model_unavailable', {}, true],
  ['model_unavailable', { status: 529 }, true],
  ['model_failed', { status: 500 }, true],
  ['model_unavailable', { status: 409 }, false],
  ['model_rate_limited', { status: 429 }, false],
  ['model_failed', {}, false],
  ['context_overflow', { status: 500 }, false],
])('%s %j is a failure of the provider: %s', (code, details, is) => {
  expect(isProviderFailure({ code, details })).toBe(is);
});
