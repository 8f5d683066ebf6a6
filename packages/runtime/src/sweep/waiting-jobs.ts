/** Jobs at the queue door whose answer is ready. */
import { closeDoors, type Door, findWaitingDoors, isServerTrouble } from '@boxcar/store';
import type { RuntimeCore } from '../core/index.js';
import type { Clock, SweepContext } from './sweep-rows.js';

/** Jobs at the queue door looked at in one pass. */
const DOORS = 2_000;

/** Where a search for doors of each kind ended. The next search begins there. */
type Places = { turns?: string | undefined; batches?: string | undefined };

export class WaitingDoors {
  readonly #runtime: RuntimeCore;
  readonly #queue: SweepContext['queue'];
  /** Where the last looks at the jobs at the queue door ended. */
  #doorsAfter: Places = {};

  constructor(context: SweepContext) {
    this.#runtime = context.runtime;
    this.#queue = context.queue;
  }

  async wake(clock: Clock): Promise<void> {
    // Nothing is lost while the queue is away: the next search finds the same doors again.
    if (this.#queue.isDoorbellUnavailable) return;
    const doors: Door[] = [];
    const next: Places = {};
    for (const of of ['turns', 'batches'] as const) {
      const found = await findWaitingDoors(this.#runtime.pool, {
        ...clock,
        of,
        after: this.#doorsAfter[of],
        limit: DOORS,
      });
      next[of] = found.next;
      doors.push(...found.doors);
    }
    const answer =
      doors.length === 0 ? [] : await this.#runtime.doorbell.knock(doors.map((door) => door.job_id));
    if (answer === undefined) {
      this.#queue.markDoorbellUnavailable();
      return;
    }
    this.#doorsAfter = next;
    const ids = new Set(answer);
    const gone = doors.filter((door) => ids.has(door.job_id));
    if (gone.length > 0) await this.#closeDoors(gone);
  }

  /** Closes doors all at once, and when that fails each alone. What stays open comes again, with all others. */
  async #closeDoors(doors: readonly Door[]): Promise<void> {
    try {
      await closeDoors(this.#runtime.pool, doors);
    } catch (error) {
      if (isServerTrouble(error)) throw error;
      const [only] = doors;
      if (doors.length > 1) for (const door of doors) await this.#closeDoors([door]);
      else this.#runtime.log('warn', 'sweep.door_not_closed', { job_id: only?.job_id, error: String(error) });
    }
  }
}
