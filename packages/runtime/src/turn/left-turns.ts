/**
 * Turns that a worker stopped running while the rows may still name it as their holder, and the results of their calls.
 *
 * L1  The worker does not claim such a turn again at the same epoch. The turn continues at another epoch after it was
 *     handed back.
 * L2  A result that could not be recorded (the database was unavailable, or a row locked) is tried again until it is
 *     recorded. Its turn is handed back only after that: otherwise the next holder would answer a call that must not
 *     run twice as `outcome_unknown`. A call accepts its first result from any worker, so the worker continues to try
 *     even if it has lost the turn.
 * L3  A result that fails for another reason (it loses each race, or needs too much of the server) may never succeed.
 *     Its turn is handed back with a note, like a turn that cannot be run, and the result is dropped after five tries.
 */

import { setTimeout as delay } from 'node:timers/promises';
import type { ToolCallId, TurnId } from '@boxcar/kernel';
import { errorText } from '@boxcar/kernel';
import { isOutOfResources, isServerTrouble, isTransient, MAX_TRIES, sqlStateOf } from '@boxcar/store';
import type { RuntimeCore } from '../core/index.js';
import type { Recorder } from '../end/index.js';
import type { HeldTurn } from './held-turn.js';
import { keepLate, lateSettlements } from './late.js';

type Unrecorded = Pick<HeldTurn, 'turn' | 'holderId' | 'unrecorded'>;

interface RecordHost {
  readonly runtime: Pick<RuntimeCore, 'pool' | 'log'>;
  readonly record: Recorder['add'];
}

/**
 * The outcome of the attempt to record results: `waiting` (L2) or `failing` (L3) when some results are not recorded
 * yet.
 */
export type LeftResults = 'done' | 'waiting' | 'failing';

const LOCKED = '55P03';

/** L2: the result itself is not the cause of the failure. */
const mustWait = (error: unknown): boolean =>
  (isServerTrouble(error) && !isOutOfResources(error)) || sqlStateOf(error) === LOCKED;

/**
 * Records the results of a turn's calls. Never throws.
 *
 * @param options.isLast - Results that still fail are dropped (L3).
 */
export async function recordLeft(
  { runtime, record }: RecordHost,
  held: Unrecorded,
  { isLast = false }: { readonly isLast?: boolean } = {},
): Promise<LeftResults> {
  const { unrecorded } = held;
  let isWaiting = false;
  await Promise.all(
    [...unrecorded].map(async ([result, step]) => {
      try {
        // If an earlier try has recorded it, the result is not late.
        if ((await record(result, { isRepeated: true })) === 'duplicate')
          await keepLate(runtime, held, lateSettlements([result], step));
        unrecorded.delete(result);
      } catch (error) {
        const waits = mustWait(error);
        isWaiting ||= waits;
        const mayComeLater = waits || (isTransient(error) && !isLast);
        if (!mayComeLater) unrecorded.delete(result);
        runtime.log('warn', mayComeLater ? 'turn.result_not_recorded' : 'turn.result_lost', {
          turn_id: result.turnId,
          tool_call_id: result.toolCallId,
          error: errorText(error),
        });
      }
    }),
  );
  if (unrecorded.size === 0) return 'done';
  return isWaiting ? 'waiting' : 'failing';
}

interface Left {
  readonly epoch: number;
  /** On the worker's monotonic clock. */
  readonly since: number;
  readonly begunIds: ReadonlySet<ToolCallId>;
}

/** The pause between two tries. Each try also waits for the database itself. */
const PAUSE_MS = 200;

export class LeftTurns {
  readonly #host: RecordHost;
  /** L1 */
  readonly #turns = new Map<TurnId, Left>();
  /**
   * L2, L3: turns with unrecorded results, with their number of failed tries. Also turns whose rows no longer name this
   * worker.
   */
  readonly #owing = new Map<Unrecorded, number>();
  #recording: Promise<void> | undefined;
  #isClosed = false;

  constructor(host: RecordHost) {
    this.#host = host;
  }

  add(held: Pick<HeldTurn, 'turn' | 'holderId' | 'begunIds' | 'unrecorded'>): void {
    const { turn, begunIds } = held;
    this.#turns.set(turn.turnId, { epoch: turn.epoch, since: performance.now(), begunIds });
    if (held.unrecorded.size === 0) return;
    this.#owing.set(held, 0);
    void this.record();
  }

  /** The epoch at which a turn was left; 0 for any other turn. */
  epochOf(turnId: TurnId): number {
    return this.#turns.get(turnId)?.epoch ?? 0;
  }

  /** The begun calls of these turns, by default of all turns. */
  begunOf(turnIds: Iterable<TurnId> = this.#turns.keys()): readonly ToolCallId[] {
    return [...turnIds].flatMap((id) => [...(this.#turns.get(id)?.begunIds ?? [])]);
  }

  /**
   * Forgets turns that were left before `askedAt` and are not in `held`. `held` are the turns whose rows named this
   * worker as their holder at that moment.
   */
  forget(held: readonly TurnId[], askedAt: number): void {
    const ours = new Set(held);
    for (const [id, { since }] of this.#turns) if (since < askedAt && !ours.has(id)) this.#turns.delete(id);
  }

  /** For a new incarnation of the worker, which no row names as a holder yet. */
  clear(): void {
    this.#turns.clear();
  }

  /** L2, L3 */
  owes(turnId: TurnId): boolean {
    return [...this.#owing.keys()].some(({ turn }) => turn.turnId === turnId);
  }

  /** Never throws. Ends when everything is recorded or dropped. */
  record(): Promise<void> {
    // One run at a time: a result recorded twice at once would look late.
    this.#recording ??= this.#recordAll().finally(() => {
      this.#recording = undefined;
    });
    return this.#recording;
  }

  async #recordAll(): Promise<void> {
    while (this.#owing.size > 0 && !this.#isClosed) {
      // All at once, so that they share a statement.
      await Promise.all(
        [...this.#owing].map(async ([held, failed]) => {
          const tries = failed + 1;
          const left = await recordLeft(this.#host, held, { isLast: tries >= MAX_TRIES });
          if (left === 'done') this.#owing.delete(held);
          else if (left === 'failing') this.#owing.set(held, tries);
        }),
      );
      if (this.#owing.size > 0) await delay(PAUSE_MS, undefined, { ref: false });
    }
  }

  /** Call when the worker ends: results that are not recorded yet are lost. */
  close(): void {
    this.#isClosed = true;
  }
}
