/**
 * Records the results of a step's calls while other calls of the step still run, so that they survive the death of the
 * worker. Results that arrive together with the last result are left to the statement that opens the next step.
 */
import { errorText } from '@boxcar/kernel';
import type { CallSettlement } from '@boxcar/store';
import type { HeldTurn, TurnHost } from './held-turn.js';
import { keepLate, lateSettlements } from './late.js';

/** Results within this time share one statement. A step whose calls all return within it needs no extra statement. */
const TOGETHER_MS = 10;

export class EarlyResults {
  readonly #host: TurnHost;
  readonly #held: HeldTurn;
  readonly #step: number;
  /** Number of calls that still run. */
  #out: number;
  #waiting: CallSettlement[] = [];
  #timer: NodeJS.Timeout | undefined;
  readonly #recording = new Set<Promise<void>>();

  constructor(host: TurnHost, held: HeldTurn, of: { readonly step: number; readonly count: number }) {
    this.#host = host;
    this.#held = held;
    this.#step = of.step;
    this.#out = of.count;
  }

  add(result: CallSettlement): void {
    this.#waiting.push(result);
    this.#held.unrecorded.set(result, this.#step);
  }

  /** Call when a call has ended. Its result, if any, was added before. */
  leave(): void {
    this.#out -= 1;
    if (this.#out === 0 || this.#waiting.length === 0) return;
    this.#timer ??= setTimeout(() => this.#start(), TOGETHER_MS);
  }

  #start(): void {
    this.#timer = undefined;
    const results = this.#waiting.splice(0);
    const recording = Promise.all(results.map((result) => this.#record(result))).then(() => {
      this.#recording.delete(recording);
    });
    this.#recording.add(recording);
  }

  async #record(result: CallSettlement): Promise<void> {
    const { runtime, record } = this.#host;
    try {
      const outcome = await record(result);
      this.#held.unrecorded.delete(result);
      if (outcome === 'duplicate') await keepLate(runtime, this.#held, lateSettlements([result], this.#step));
    } catch (error) {
      // The result is recorded again with the others when all calls have ended; a failure then is a failure of the
      // turn.
      runtime.log('warn', 'turn.result_not_recorded', {
        turn_id: result.turnId,
        tool_call_id: result.toolCallId,
        error: errorText(error),
      });
    }
  }

  /** Call when all calls have ended: waits for records in progress and leaves the other results to the next step. */
  async close(): Promise<void> {
    clearTimeout(this.#timer);
    await Promise.all(this.#recording);
  }
}
