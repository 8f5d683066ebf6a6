import type { JsonValue } from '@boxcar/kernel';
import type { StepCommit } from '@boxcar/store';
import type { Ending } from '../end/index.js';
import { deliverableContent } from '../lib/index.js';
import type { HeldPrompt } from './context-keeper.js';
import type { ClosedStep } from './held-turn.js';
import type { OpenCalls } from './step-calls.js';

/** Progress of the turn in memory; the rows hold the same values. */
export interface Progress {
  step: number;
  attempt: number;
  /** Failed model calls of this step. */
  retries: number;
  emptyReplies: number;
  open: OpenCalls;
}

/** An attempt whose call has failed, with its usage. */
export interface FailedStep {
  readonly step: ClosedStep;
  readonly spent: StepCommit['spent'];
}

/** A prompt with the values that its commit records about it. */
export interface SentPrompt extends HeldPrompt {
  readonly isLast: boolean;
  readonly hash: string;
  readonly toolset: string;
}

export const successOf = (value: JsonValue, { isSanitized = false } = {}): Ending => ({
  status: 'success',
  deliverable: deliverableContent(value),
  error: null,
  ...(isSanitized ? { metadata: { sanitized: true } } : {}),
});
