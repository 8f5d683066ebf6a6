import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import {
  beginCalls,
  chooseCallers,
  findRoom,
  isProviderAnswer,
  isProviderFailure,
  noteFailure,
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
  failingSince: null,
  openings: 0,
  inUse: 0,
  kept: 0,
  isProbing: false,
  now: 1_000_000_000_000,
};

test('the provider of a model is the part of its name before the colon, and all APIs of an account are one provider', () => {
  const models = [
    'openai:gpt',
    'openai-chat:gpt',
    'openai-chat',
    'scripted',
    'openai-compatible:a:b',
    'constructor:x',
  ];
  expect(models.map(providerOf)).toEqual([
    'openai',
    'openai',
    'openai',
    'scripted',
    'openai-compatible',
    'constructor',
  ]);
});

describe('the room at a provider', () => {
  test('is unlimited when nothing limits it', () => {
    expect(findRoom(works)).toMatchObject({ calls: Number.POSITIVE_INFINITY, reason: null });
  });

  test('P1: in any minute, no more calls are admitted than the rate allows', () => {
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

  test('is free again at the reported moment, and not before', () => {
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

  test('P1: at no moment are more calls under way than allowed, also after the limit was lowered', () => {
    const at = (inUse: number) => findRoom({ ...works, maxConcurrent: 3, inUse }).calls;
    expect([0, 2, 3, 9].map(at)).toEqual([3, 1, 0, 0]);
    expect(findRoom({ ...works, maxConcurrent: 3, inUse: 3 })).toMatchObject({ reason: 'concurrency' });
  });
});

describe('P3: places that are kept for turns', () => {
  test('hold back room of every kind, and are checked again soon', () => {
    const rated = { ...works, requestsPerMinute: 20 };
    expect([0, 1, 2, 3].map((kept) => findRoom({ ...rated, kept }).calls)).toEqual([2, 1, 0, 0]);
    expect(findRoom({ ...rated, kept: 2 }).lookAt).toBe(works.now + 2_000);
    const { lookAt } = findRoom({ ...rated, ...beginCalls(rated, 1), kept: 1 });
    expect(lookAt - works.now).toBeCloseTo(paceOf(20).everyMs);
    expect(findRoom({ ...works, maxConcurrent: 3, inUse: 1, kept: 1 }).calls).toBe(1);
  });

  /** Turns in order of arrival: some ask now, some have a kept place, some still wait. */
  const lines = fc.array(fc.record({ asks: fc.boolean(), hasPlace: fc.boolean(), waits: fc.boolean() }), {
    maxLength: 12,
  });

  test('let turns call in their order and within the room, and no turn uses room that is kept for an earlier turn', () => {
    fc.assert(
      fc.property(lines, fc.integer({ min: 0, max: 12 }), (line, calls) => {
        const turns = line.map((turn, index) => ({
          ...turn,
          index,
          isBehind: line.slice(0, index).some(({ asks, hasPlace, waits }) => !asks && !hasPlace && waits),
          keptBefore: line.slice(0, index).filter(({ asks, hasPlace }) => !asks && hasPlace).length,
        }));
        const asking = turns.filter(({ asks }) => asks);
        const chosen = chooseCallers(asking, calls);
        expect(chosen.length).toBeLessThanOrEqual(calls);
        for (const turn of chosen) {
          const before = chosen.filter(({ index }) => index < turn.index).length;
          expect(before + turn.keptBefore).toBeLessThan(calls);
        }
        // A refused turn had no room, or an earlier turn was waiting. A later turn is never the reason.
        for (const turn of asking.filter((one) => !chosen.includes(one))) {
          const before = chosen.filter(({ index }) => index < turn.index).length;
          const hasRoom = before + turn.keptBefore < calls;
          expect(hasRoom && (turn.hasPlace || !turn.isBehind)).toBe(false);
        }
        // Kept places within the limit can all be used.
        const places = turns.filter(({ hasPlace }) => hasPlace);
        if (places.length <= calls)
          for (const turn of places)
            if (turn.asks && !asking.some((one) => !one.hasPlace)) expect(chosen).toContain(turn);
      }),
    );
  });
});

describe('P2: a provider that fails', () => {
  const alone = { hasSucceeded: false, isProbe: false, allTold: true };
  const fail = (state: ProviderState, seen: Parameters<typeof noteFailure>[1] = alone): ProviderState => ({
    ...state,
    ...noteFailure(state, seen),
  });

  test('is closed off after several failures in a row, longer each time, until a single trial call succeeds', () => {
    let state = fail(fail(works));
    expect(findRoom(state).reason).toBeNull();
    state = fail(state);
    expect(findRoom(state)).toMatchObject({ calls: 0, reason: 'failing', lookAt: works.now + 10_000 });
    state = { ...state, now: works.now + 10_000 };
    expect(findRoom(state)).toMatchObject({ calls: 1, isProbe: true });
    expect(findRoom({ ...state, isProbing: true })).toMatchObject({ calls: 0, reason: 'failing' });
    expect(findRoom({ ...state, kept: 1 })).toMatchObject({ calls: 0, reason: 'failing' });
    state = fail(state, { ...alone, isProbe: true });
    expect(findRoom(state).lookAt).toBe(state.now + 20_000);
  });

  test('is not closed off when answers come between the failures', () => {
    let state = works;
    for (let n = 0; n < 20; n++) state = fail(state, { ...alone, hasSucceeded: n % 2 === 0 });
    expect(state.openUntil).toBeNull();
  });

  test('is not closed off before all workers have reported whether they had answers', () => {
    let state = works;
    for (let n = 0; n < 20; n++) state = fail(state, { ...alone, allTold: false });
    expect(state).toMatchObject({ openUntil: null, failures: 20, failingSince: works.now });
    expect(fail(state).openUntil).toBe(works.now + 10_000);
  });

  test('is not closed off longer when calls that were already under way fail', () => {
    const closed = fail(fail(fail(works)));
    expect(fail({ ...closed, now: closed.now + 5 }).openUntil).toBe(closed.openUntil);
  });

  test('is never closed off when its limits switch the breaker off', () => {
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
])('the error %s %j counts as a failure of the provider: %s', (code, details, is) => {
  expect(isProviderFailure({ code, details })).toBe(is);
});

test.each([
  ['model_rate_limited', { status: 429 }, true],
  ['model_refused', {}, true],
  ['model_unauthorized', { status: 401 }, true],
  ['model_unauthorized', {}, false],
  ['bad_config', {}, false],
  ['model_unavailable', {}, false],
  ['model_unavailable', { status: 503 }, false],
])('the error %s %j counts as an answer of the provider: %s', (code, details, is) => {
  expect(isProviderAnswer({ code, details })).toBe(is);
});
