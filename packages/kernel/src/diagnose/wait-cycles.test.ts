import { expect, test } from 'vitest';
import type { AgentId, ToolCallId, TurnId } from '../base/ids.js';
import { findWaitCycles, type WaitingTurn } from './wait-cycles.js';

const turn = (
  id: string,
  awaits: readonly (readonly [turnId: string, since: number])[],
  behind: string | null = null,
): WaitingTurn => ({
  turnId: id as TurnId,
  agentId: `agent-${id}` as AgentId,
  agentName: id,
  awaits: awaits.map(([turnId, since]) => ({
    toolCallId: `${id}>${turnId}` as ToolCallId,
    name: 'ask',
    since: new Date(since),
    batchId: null,
    turnId: turnId as TurnId,
  })),
  behindTurnId: behind as TurnId | null,
});
const describeCycles = (turns: readonly WaitingTurn[]) =>
  findWaitCycles(turns).map((cycle) => ({
    turns: cycle.turns.map(({ turnId }) => turnId).sort(),
    victim: cycle.victim.toolCallId,
  }));

test('of two turns that wait in each other’s queue, the younger wait is given up', () => {
  const turns = [turn('a', [['b1', 10]]), turn('b', [['a1', 20]]), turn('b1', [], 'b'), turn('a1', [], 'a')];
  const expected = [{ turns: ['a', 'a1', 'b', 'b1'], victim: 'b>a1' }];
  expect(describeCycles(turns)).toEqual(expected);
  expect(describeCycles([...turns].reverse())).toEqual(expected);
});

test('a tree, a long queue and a diamond are not circles', () => {
  expect(
    describeCycles([
      turn('a', [
        ['b', 1],
        ['c', 1],
      ]),
      turn('b', [['d', 1]]),
      turn('c', [['d', 1]]),
      turn('d', [], 'e'),
      turn('e', []),
      turn('f', [], 'e'),
    ]),
  ).toEqual([]);
});

test('circles that share a wait end with that wait; each circle that shares none has its own victim', () => {
  const shared = [
    turn('a', [['b1', 30]]),
    turn('b1', [], 'b'),
    turn('b', [
      ['a1', 10],
      ['a2', 20],
    ]),
    turn('a1', [], 'a'),
    turn('a2', [], 'a'),
  ];
  expect(describeCycles(shared).map(({ victim }) => victim)).toEqual(['a>b1']);
  const apart = [
    ...shared,
    turn('x', [['y1', 1]]),
    turn('y1', [], 'y'),
    turn('y', [['x1', 2]]),
    turn('x1', [], 'x'),
  ];
  expect(describeCycles(apart).map(({ victim }) => victim)).toEqual(['a>b1', 'y>x1']);
});

test('among waits of the same moment the same wait is given up in any order of the turns', () => {
  const turns = [turn('a', [['b1', 5]]), turn('b', [['a1', 5]]), turn('b1', [], 'b'), turn('a1', [], 'a')];
  expect(describeCycles(turns)).toEqual(describeCycles([...turns].reverse()));
});

test('a chain of 50,000 turns that ends in a circle does not overflow the stack', () => {
  const chain = Array.from({ length: 50_000 }, (_, n) => turn(`t${n}`, [[`t${n + 1}`, n]]));
  expect(describeCycles([...chain, turn('t50000', [['t49999', 0]])])).toEqual([
    { turns: ['t49999', 't50000'], victim: 't49999>t50000' },
  ]);
});
