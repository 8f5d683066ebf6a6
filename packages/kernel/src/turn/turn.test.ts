import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import {
  decideStep,
  FINAL_STATUSES,
  isFinal,
  stepNotice,
  TRANSITIONS,
  TURN_STATUSES,
  type TurnStatus,
} from './turn.js';

const call = { id: 'call_0', name: 'tool', arguments: '{}' };

const canFollow = (from: TurnStatus, to: TurnStatus): boolean =>
  TRANSITIONS.some((transition) => transition.from === from && transition.to === to);

describe('the states of a turn', () => {
  test('have no way out of a final status', () => {
    for (const from of FINAL_STATUSES) {
      expect(isFinal(from)).toBe(true);
      for (const to of TURN_STATUSES) expect(canFollow(from, to)).toBe(false);
    }
  });

  test('allow only a claim to start a turn, only a dispatched turn to be claimed, and only a running turn to suspend', () => {
    const into = (to: TurnStatus) => TURN_STATUSES.filter((from) => canFollow(from, to));
    expect(into('running')).toEqual(['dispatched']);
    expect(into('suspended')).toEqual(['running']);
    expect(into('queued')).toEqual([]);
    expect(into('success')).toEqual(['running']);
    // A budget's time can be over before a turn begins.
    expect(into('partial')).toEqual(['queued', 'dispatched', 'running', 'suspended']);
  });

  test('let every turn that is not final end by deadline and by cancel', () => {
    for (const from of TURN_STATUSES.filter((status) => !isFinal(status))) {
      for (const to of ['timeout', 'failed', 'canceled'] as const) expect(canFollow(from, to)).toBe(true);
    }
  });

  test('end a random walk once at most, and never continue after an end', () => {
    fc.assert(
      fc.property(fc.array(fc.constantFrom(...TURN_STATUSES), { maxLength: 50 }), (wishes) => {
        let status: TurnStatus = 'queued';
        let ended: TurnStatus | undefined;
        for (const wish of wishes) {
          if (!canFollow(status, wish)) continue;
          expect(ended).toBeUndefined();
          status = wish;
          if (isFinal(status)) ended = status;
        }
      }),
    );
  });
});

describe('after a reply of the model', () => {
  const free = { must_end_with: [] };
  const bound = { must_end_with: ['submit_result', 'finish'] };

  test('calls are run, with or without text', () => {
    expect(decideStep({ text: 'x', toolCalls: [call] }, free)).toEqual({ kind: 'calls' });
    expect(decideStep({ text: '', toolCalls: [call] }, bound)).toEqual({ kind: 'calls' });
  });

  test('text ends a turn unless the turn must end by a call', () => {
    expect(decideStep({ text: ' x ', toolCalls: [] }, free)).toEqual({ kind: 'end', text: ' x ' });
  });

  test('text leads to a reminder in a turn that must end by a call', () => {
    expect(decideStep({ text: 'x', toolCalls: [] }, bound)).toMatchObject({
      kind: 'remind',
      reminder: expect.stringContaining('submit_result or finish'),
    });
  });

  test.each(['', ' ', '\n\t'])(
    'an answer without words leads to a reminder and never ends the turn: %j',
    (text) => {
      expect(decideStep({ text, toolCalls: [] }, free).kind).toBe('remind');
      expect(decideStep({ text, toolCalls: [] }, bound).kind).toBe('remind');
    },
  );
});

test('the model is told when two steps are left, and at the last step', () => {
  expect([0, 1, 2, 3].map((left) => stepNotice(left, ['submit_result']) !== undefined)).toEqual([
    false,
    true,
    true,
    false,
  ]);
  expect(stepNotice(1, ['submit_result'])).toContain('submit_result');
  expect(stepNotice(1, [])).not.toContain('submit_result');
});
