import { expect, test } from 'vitest';
import {
  HANDOFF_PHASES,
  HANDOFF_STATUSES,
  handoffStatusOf,
  isFinalPhase,
  PHASE_MOVES,
  phasesOf,
  responseStatusOf,
} from './phases.js';

test('each phase maps to one of the five states, and each state lists its phases', () => {
  const all = HANDOFF_STATUSES.flatMap((status) => phasesOf(status));
  expect([...all].sort()).toEqual([...HANDOFF_PHASES].sort());
  expect(phasesOf('pending')).toEqual(['pending', 'awaiting_approval']);
  expect(phasesOf('completed')).toEqual(['completed']);
  expect(phasesOf('rejected')).toEqual(['rejected']);
});

test('a final phase has a final state, and every other phase can reach every end', () => {
  for (const phase of HANDOFF_PHASES) {
    const reached = new Set<string>([phase]);
    for (const one of reached) for (const next of PHASE_MOVES[one as typeof phase]) reached.add(next);
    if (isFinalPhase(phase))
      expect([...reached]).toEqual(phase === 'compensation_failed' ? [phase, 'rolled_back'] : [phase]);
    else
      expect([phase, ['completed', 'failed', 'canceled'].every((end) => reached.has(end))]).toEqual([
        phase,
        true,
      ]);
    expect(['completed', 'failed', 'rejected'].includes(handoffStatusOf(phase))).toBe(isFinalPhase(phase));
  }
});

test('a rejected handoff is never executed, and a running handoff is never rejected', () => {
  expect(PHASE_MOVES.in_progress).not.toContain('rejected');
  for (const phase of HANDOFF_PHASES)
    if (PHASE_MOVES[phase].includes('rejected'))
      expect(['pending', 'awaiting_approval', 'queued']).toContain(phase);
});

test('a pending handoff has no response', () => {
  expect(HANDOFF_PHASES.filter((phase) => responseStatusOf(phase) === undefined)).toEqual([
    'pending',
    'awaiting_approval',
  ]);
  expect(responseStatusOf('waiting_input')).toBe('accepted');
  expect(responseStatusOf('timed_out')).toBe('failed');
});
