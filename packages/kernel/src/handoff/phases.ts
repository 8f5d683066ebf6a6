/**
 * The phases of a handoff, and their public states.
 *
 * F1  A phase changes only along `PHASE_MOVES`. Final phases have no next phase, except `compensation_failed`: its
 *     compensation may still succeed later.
 * F2  A single function derives the five states of the public interface from the phase; another derives the status of a
 *     response.
 * Rule: docs/reference/handoff.md, "Phases".
 */

export const HANDOFF_PHASES = [
  'pending',
  'awaiting_approval',
  'queued',
  'in_progress',
  'waiting_input',
  'completed',
  'failed',
  'timed_out',
  'canceled',
  'rejected',
  'rolled_back',
  'compensation_failed',
] as const;
export type HandoffPhase = (typeof HANDOFF_PHASES)[number];

export const HANDOFF_STATUSES = ['pending', 'in_progress', 'completed', 'failed', 'rejected'] as const;
export type HandoffStatus = (typeof HANDOFF_STATUSES)[number];

export type HandoffResponseStatus = 'accepted' | 'rejected' | 'completed' | 'failed';

const ENDS = ['completed', 'failed', 'timed_out', 'canceled', 'rolled_back', 'compensation_failed'] as const;

/** The phases that may follow each phase (F1). A turn of a native handoff may end before any reader has seen it run. */
export const PHASE_MOVES: Readonly<Record<HandoffPhase, readonly HandoffPhase[]>> = {
  pending: ['awaiting_approval', 'queued', 'in_progress', 'rejected', 'failed', 'canceled'],
  awaiting_approval: [
    'pending',
    'awaiting_approval',
    'queued',
    'in_progress',
    'rejected',
    'failed',
    'canceled',
  ],
  queued: ['in_progress', 'rejected', ...ENDS],
  in_progress: ['queued', 'waiting_input', ...ENDS],
  waiting_input: ['queued', 'in_progress', ...ENDS],
  completed: [],
  failed: [],
  timed_out: [],
  canceled: [],
  rejected: [],
  rolled_back: [],
  compensation_failed: ['rolled_back'],
};

const FINAL: ReadonlySet<HandoffPhase> = new Set([...ENDS, 'rejected']);

export const isFinalPhase = (phase: HandoffPhase): boolean => FINAL.has(phase);

const STATUSES: Readonly<Record<HandoffPhase, HandoffStatus>> = {
  pending: 'pending',
  awaiting_approval: 'pending',
  queued: 'in_progress',
  in_progress: 'in_progress',
  waiting_input: 'in_progress',
  completed: 'completed',
  failed: 'failed',
  timed_out: 'failed',
  canceled: 'failed',
  rejected: 'rejected',
  rolled_back: 'failed',
  compensation_failed: 'failed',
};

/** The public state of a phase (F2). */
export const handoffStatusOf = (phase: HandoffPhase): HandoffStatus => STATUSES[phase];

/** The phases of a public state, for filters. */
export const phasesOf = (status: HandoffStatus): readonly HandoffPhase[] =>
  HANDOFF_PHASES.filter((phase) => STATUSES[phase] === status);

/** The status of a response on the wire; undefined while the handoff has not been accepted. */
export function responseStatusOf(phase: HandoffPhase): HandoffResponseStatus | undefined {
  const status = STATUSES[phase];
  if (status === 'pending') return undefined;
  return status === 'in_progress' ? 'accepted' : status;
}
