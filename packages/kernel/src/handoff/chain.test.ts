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
    ['the first hop', [], { kind: 'hop', hop: 1, isUndo: false }],
    ['the hop after the last one', [call(1), call(2)], { kind: 'hop', hop: 3, isUndo: false }],
    ['the end', [call(1), call(2), call(3), call(4)], { kind: 'end' }],
    [
      'the last completed hop is undone first',
      [call(1), call(2), call(3), call(4, 'failed')],
      { kind: 'hop', hop: 3, isUndo: true },
    ],
    [
      'what has no compensation is passed over',
      [call(1), call(2), call(3), call(4, 'failed'), undo(3)],
      { kind: 'hop', hop: 1, isUndo: true },
    ],
    [
      'a compensation that failed does not stop the others',
      [call(1), call(2), call(3), call(4, 'failed'), undo(3, 'failed')],
      { kind: 'hop', hop: 1, isUndo: true },
    ],
    [
      'all undone',
      [call(1), call(2, 'failed'), undo(1)],
      { kind: 'failed', phase: 'rolled_back', hop: 2, error: { code: 'platform_failed', message: 'hop 2' } },
    ],
    [
      'not all undone',
      [call(1), call(2, 'failed'), undo(1, 'failed')],
      {
        kind: 'failed',
        phase: 'compensation_failed',
        hop: 2,
        error: { code: 'platform_failed', message: 'hop 2' },
      },
    ],
    [
      'nothing to undo',
      [call(1, 'failed')],
      { kind: 'failed', phase: 'failed', hop: 1, error: { code: 'platform_failed', message: 'hop 1' } },
    ],
  ])('%s', (_name, calls, move) => {
    expect(nextMove(hops, calls)).toEqual(move);
  });
});
