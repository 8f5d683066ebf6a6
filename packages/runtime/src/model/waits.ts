/**
 * A failed model call is retried later, without occupying a worker: the turn is suspended with a wait row. A timer of the worker
 * that suspended the turn wakes it, or any sweep. Rules: kernel/base/retry.ts; docs/reference/models.md, "Tried again".
 */
import {
  decideRetry,
  type ErrorBody,
  errorText,
  type JsonObject,
  ModelError,
  type RetryLimits,
  type Ring,
  type TurnId,
  type WorkerId,
} from '@boxcar/kernel';
import {
  type ClaimedTurn,
  loadFailedAttempts,
  retryLater,
  type StepCommit,
  wakeRetries,
} from '@boxcar/store';
import type { RuntimeCore } from '../core/index.js';
import { Batcher, Timers } from '../lib/index.js';
import { ModelGate } from './gate.js';

/** Maximum characters that are kept of the message of each attempt. */
const WORDS = 300;

export type AfterFailure =
  | { readonly outcome: 'suspended' }
  | { readonly outcome: 'fenced' }
  /** The call is not retried; the turn ends with this error. */
  | { readonly outcome: 'final'; readonly error: ErrorBody };

export class ModelWaits {
  readonly gate: ModelGate;
  readonly #runtime: RuntimeCore;
  readonly #timers = new Timers();
  readonly #wakes: Batcher<Pick<Ring, 'turnId' | 'epoch'>, true>;

  constructor(runtime: RuntimeCore) {
    this.#runtime = runtime;
    this.gate = new ModelGate(runtime, this.#timers);
    this.#wakes = new Batcher(async (waiting) => {
      runtime.ring(await wakeRetries(runtime.pool, waiting));
      return waiting.map(() => true as const);
    });
  }

  /** Decides what follows a failed call of an open step. */
  async afterFailure(
    { turn, holderId }: { readonly turn: Pick<ClaimedTurn, 'turnId' | 'epoch'>; readonly holderId: WorkerId },
    failed: {
      readonly error: unknown;
      /** The failure in the form of its rows. */
      readonly body: ErrorBody;
      readonly step: NonNullable<StepCommit['step']>;
      readonly spent: StepCommit['spent'];
      /** How often this step was already retried. */
      readonly retries: number;
      readonly limits: RetryLimits;
    },
  ): Promise<AfterFailure> {
    const { body, step, spent, retries, limits } = failed;
    const failure = failed.error instanceof ModelError ? failed.error : { canRetry: false };
    const decided = decideRetry(failure, { retries, limits, random: Math.random() });
    switch (decided.kind) {
      case 'final':
      case 'spent':
        return {
          outcome: 'final',
          error: retries === 0 ? body : await this.#withTries(turn.turnId, step, body),
        };
      case 'retry': {
        const { delayMs } = decided;
        const detail = { ...summaryOf(step.attempt, body), step: step.step, retry: retries + 1 };
        const isDone = await retryLater(this.#runtime.pool, {
          turnId: turn.turnId,
          epoch: turn.epoch,
          holderId,
          step,
          spent,
          delayMs,
          detail,
        });
        if (!isDone) return { outcome: 'fenced' };
        this.#runtime.log('info', 'turn.retries_later', {
          turn_id: turn.turnId,
          delay_ms: delayMs,
          ...detail,
        });
        this.wakeLater(turn, delayMs);
        return { outcome: 'suspended' };
      }
      default:
        return decided satisfies never;
    }
  }

  /** Wakes a turn that waits for its retry. Without this timer the sweep of any worker wakes it a little later. */
  wakeLater(turn: Pick<Ring, 'turnId' | 'epoch'>, delayMs: number): void {
    this.#timers.set(`turn ${turn.turnId} ${turn.epoch}`, delayMs, () => void this.#wake(turn));
  }

  async #withTries(
    turnId: TurnId,
    { step, attempt }: { readonly step: number; readonly attempt: number },
    body: ErrorBody,
  ): Promise<ErrorBody> {
    const earlier = await loadFailedAttempts(this.#runtime.pool, turnId, step);
    const tries: JsonObject[] = earlier.map((row) => ({
      ...summaryOf(row.attempt, row.error),
      at: row.opened_at.toISOString(),
    }));
    return { ...body, details: { ...body.details, tries: [...tries, summaryOf(attempt, body)] } };
  }

  async #wake(turn: Pick<Ring, 'turnId' | 'epoch'>): Promise<void> {
    try {
      await this.#wakes.add(turn);
    } catch (error) {
      // The sweep finds the turn.
      this.#runtime.log('warn', 'turn.not_woken', {
        turn_id: turn.turnId,
        error: errorText(error),
      });
    }
  }

  /** After this, only the sweeps of other workers wake waiting turns. */
  close(): void {
    this.#timers.close();
  }
}

const summaryOf = (attempt: number, { code, message }: ErrorBody): JsonObject => ({
  attempt,
  code,
  message: message.slice(0, WORDS).toWellFormed(),
});
