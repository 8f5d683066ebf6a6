import { describe, expect, test } from 'vitest';
import { type ChainCall, nextMove } from './chain.js';

const call = (at: number, status: ChainCall['status'] = 'success', isUndo = false): ChainCall => ({
  hop: at,
  isUndo,
  status,
  error: status === 'failed' ? { code: 'platform_failed', message: `hop ${at}` } : null,
});
const undo = (at: number, status?: ChainCall['status']): ChainCall => call(at, status, true);

describe('the next move of a chain', () => {
  const hops = [true, false, true, true].map((has_compensation) => ({ has_compensation }));

  test.each<[string, readonly ChainCall[], object]>([
    ['is the first hop at the beginning', [], { kind: 'hop', hop: 1, isUndo: false }],
    [
      'is the hop after the last call of the chain',
      [call(1), call(2)],
      { kind: 'hop', hop: 3, isUndo: false },
    ],
    ['is the end after the last hop', [call(1), call(2), call(3), call(4)], { kind: 'end' }],
    [
      'undoes the last completed hop first',
      [call(1), call(2), call(3), call(4, 'failed')],
      { kind: 'hop', hop: 3, isUndo: true },
    ],
    [
      'skips a hop that has no compensation',
      [call(1), call(2), call(3), call(4, 'failed'), undo(3)],
      { kind: 'hop', hop: 1, isUndo: true },
    ],
    [
      'continues with the other hops after a compensation has failed',
      [call(1), call(2), call(3), call(4, 'failed'), undo(3, 'failed')],
      { kind: 'hop', hop: 1, isUndo: true },
    ],
    [
      'is the end as rolled_back when everything is undone',
      [call(1), call(2, 'failed'), undo(1)],
      { kind: 'failed', phase: 'rolled_back', hop: 2, error: { code: 'platform_failed', message: 'hop 2' } },
    ],
    [
      'is the end as compensation_failed when not everything is undone',
      [call(1), call(2, 'failed'), undo(1, 'failed')],
      {
        kind: 'failed',
        phase: 'compensation_failed',
        hop: 2,
        error: { code: 'platform_failed', message: 'hop 2' },
      },
    ],
    [
      'is the end as failed when there is nothing to undo',
      [call(1, 'failed')],
      { kind: 'failed', phase: 'failed', hop: 1, error: { code: 'platform_failed', message: 'hop 1' } },
    ],
  ])('%s', (_name, calls, move) => {
    expect(nextMove(hops, calls)).toEqual(move);
  });
});
