import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import type { AgentId, BoxId, TurnId } from '../base/ids.js';
import {
  BATCH_STATUSES,
  buildResults,
  decideJoin,
  type JoinedTurn,
  type JoinState,
  summaryLimit,
} from './join.js';
import { FINAL_STATUSES, type FinalStatus } from './turn.js';

const running = (rest: Partial<JoinState> = {}): JoinState => ({
  kind: 'fork_join',
  status: 'running',
  closing: null,
  total: 3,
  remaining: 3,
  succeeded: 0,
  failed: 0,
  minSuccess: null,
  isFailFast: false,
  isOverdue: false,
  ...rest,
});

/**
 * Models the rows: the end of a member lowers the counters, and a batch that closes ends its members in the same way.
 */
function play(start: JoinState, ends: readonly FinalStatus[]): { state: JoinState; trace: string[] } {
  let state = start;
  const trace: string[] = [];
  const settle = (status: FinalStatus): void => {
    state = {
      ...state,
      remaining: state.remaining - 1,
      succeeded: state.succeeded + (status === 'success' ? 1 : 0),
      failed: state.failed + (['failed', 'timeout', 'canceled'].includes(status) ? 1 : 0),
    };
  };
  const act = (): void => {
    for (;;) {
      const decision = decideJoin(state);
      trace.push(decision.kind);
      if (decision.kind === 'wait') return;
      if (decision.kind === 'finish') {
        state = { ...state, status: decision.status, closing: decision.closing };
        continue;
      }
      state = { ...state, closing: decision.closing };
      while (state.remaining > 0) settle(decision.memberStatus);
    }
  };
  for (const status of ends) {
    if (state.remaining === 0) break;
    settle(status);
    act();
  }
  return { state, trace };
}

const endings = fc.array(fc.constantFrom(...FINAL_STATUSES), { minLength: 1, maxLength: 12 });
const shuffled = endings.chain((ends) =>
  fc.record({
    ends: fc.constant(ends),
    other: fc.shuffledSubarray(ends, { minLength: ends.length, maxLength: ends.length }),
    minSuccess: fc.option(fc.integer({ min: 1, max: ends.length })),
  }),
);

describe('a batch', () => {
  test('ends the same for every order in which its members end', () => {
    fc.assert(
      fc.property(shuffled, ({ ends, other, minSuccess }) => {
        const start = running({ total: ends.length, remaining: ends.length, minSuccess });
        const first = play(start, ends).state;
        expect(first.status).not.toBe('running');
        expect(play(start, other).state.status).toBe(first.status);
        const successes = ends.filter((status) => status === 'success').length;
        expect(first.status === 'success').toBe(successes >= (minSuccess ?? ends.length));
      }),
    );
  });

  test('with fail_fast ends at the first failure, and is never a success when a member fails before enough have succeeded', () => {
    fc.assert(
      fc.property(shuffled, ({ ends, minSuccess }) => {
        const start = running({ total: ends.length, remaining: ends.length, minSuccess, isFailFast: true });
        const { state } = play(start, ends);
        const enough = minSuccess ?? ends.length;
        const failure = ends.findIndex((status) => !['success', 'partial'].includes(status));
        const before = (failure === -1 ? ends : ends.slice(0, failure)).filter((s) => s === 'success');
        expect(state.remaining).toBe(0);
        expect(state.status === 'success').toBe(before.length >= enough);
      }),
    );
  });

  test('never leaves a final status, whatever happens afterwards', () => {
    const final = BATCH_STATUSES.filter((status) => status !== 'running');
    fc.assert(
      fc.property(
        fc.constantFrom(...final),
        fc.record({ remaining: fc.nat(3), succeeded: fc.nat(3), failed: fc.nat(3), isOverdue: fc.boolean() }),
        fc.constantFrom('fork_join' as const, 'collect' as const),
        (status, counters, kind) => {
          expect(decideJoin(running({ ...counters, kind, status }))).toEqual({ kind: 'wait' });
        },
      ),
    );
  });

  test.each([
    [
      { remaining: 1, succeeded: 2, isOverdue: true },
      { kind: 'close', closing: 'deadline', memberStatus: 'timeout' },
    ],
    [
      { remaining: 2, failed: 1, isFailFast: true },
      { kind: 'close', closing: 'fail_fast', memberStatus: 'canceled' },
    ],
    [
      { remaining: 2, succeeded: 1, minSuccess: 1, isOverdue: true },
      { kind: 'close', closing: 'min_success', memberStatus: 'canceled' },
    ],
    [
      { remaining: 0, succeeded: 2, failed: 1, closing: 'deadline' },
      { kind: 'finish', status: 'timeout', closing: 'deadline' },
    ],
    [
      { remaining: 0, succeeded: 3, closing: 'deadline' },
      { kind: 'finish', status: 'success', closing: 'deadline' },
    ],
    [
      { remaining: 0, succeeded: 1, failed: 2, closing: 'fail_fast' },
      { kind: 'finish', status: 'partial', closing: 'fail_fast' },
    ],
    [
      { remaining: 0, succeeded: 0, failed: 1 },
      { kind: 'finish', status: 'failed', closing: null },
    ],
    [
      { remaining: 0, succeeded: 1, closing: 'cancel' },
      { kind: 'finish', status: 'canceled', closing: 'cancel' },
    ],
    [
      { remaining: 2, closing: 'cancel' },
      { kind: 'close', closing: 'cancel', memberStatus: 'canceled' },
    ],
    [
      { kind: 'collect', remaining: 2, succeeded: 1, isOverdue: true },
      { kind: 'finish', status: 'timeout', closing: 'deadline' },
    ],
    [
      { kind: 'collect', remaining: 2, closing: 'cancel' },
      { kind: 'finish', status: 'canceled', closing: 'cancel' },
    ],
    [{ remaining: 1, failed: 1 }, { kind: 'wait' }],
    // A member that could not be ended counts as failed.
    [
      { remaining: 2, lostCount: 1, isFailFast: true },
      { kind: 'close', closing: 'fail_fast', memberStatus: 'canceled' },
    ],
    [{ remaining: 2, lostCount: 1 }, { kind: 'wait' }],
  ] as const)('with %o is decided as: %o', (rest, decision) => {
    expect(decideJoin(running(rest))).toEqual(decision);
  });
});

describe('the results of a batch', () => {
  const turn = (rest: Partial<JoinedTurn> = {}): JoinedTurn => ({
    turnId: 't' as TurnId,
    agentId: 'a' as AgentId,
    outputBoxId: 'b' as BoxId,
    status: 'success',
    deliverable: 'fine',
    error: null,
    ...rest,
  });

  test('are in the order of the tasks; a member that still runs is listed as timeout', () => {
    const results = buildResults([
      turn({ deliverable: { answer: 6 } }),
      turn({ status: 'running', deliverable: null }),
      turn({ status: 'failed', error: { code: 'model_failed', message: 'no' } }),
    ]);
    expect(results).toMatchObject([
      { task_index: 0, status: 'success', summary: { answer: 6 } },
      { task_index: 1, status: 'timeout', error: { code: 'wait_timeout' } },
      { task_index: 2, status: 'failed', summary: 'fine', error: { code: 'model_failed', message: 'no' } },
    ]);
    expect(results[1]).not.toHaveProperty('summary');
  });

  test('of a wide batch fit into a prompt: long deliverables are cut between characters and marked as cut', () => {
    const long = '😀'.repeat(20_000);
    const results = buildResults(Array.from({ length: 1_000 }, () => turn({ deliverable: long })));
    expect(JSON.stringify(results).length).toBeLessThan(500_000);
    expect(results[0]).toMatchObject({ summary: '😀'.repeat(100), is_cut: true });
    const [odd] = buildResults([turn({ deliverable: `x${long}` })]);
    expect(odd?.summary).toBe(`x${'😀'.repeat(3_999)}`);
    expect(buildResults([turn()])[0]).not.toHaveProperty('is_cut');
  });

  test('keep a deliverable of exactly the limit whole, and cut a deliverable that is a character longer', () => {
    const limit = summaryLimit(1);
    const [whole, cut] = [limit, limit + 1].map(
      (length) => buildResults([turn({ deliverable: 'x'.repeat(length) })])[0],
    );
    expect(whole).toMatchObject({ summary: 'x'.repeat(limit) });
    expect(whole).not.toHaveProperty('is_cut');
    expect(cut).toMatchObject({ summary: 'x'.repeat(limit), is_cut: true });
  });
});
