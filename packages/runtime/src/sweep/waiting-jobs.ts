/** Jobs at the queue door whose answer is ready. */
import { findAnswerableJobs, isServerTrouble, removeWaitingJobs, type WaitingJob } from '@boxcar/store';
import type { RuntimeCore } from '../core/index.js';
import type { Clock, SweepContext } from './sweep-rows.js';

/** Jobs at the queue door that one pass reads. */
const DOORS = 2_000;

/** The position at which the search for jobs of each kind ended. The next search begins there. */
type Places = { turns?: string | undefined; batches?: string | undefined };

export class WaitingJobs {
  readonly #runtime: RuntimeCore;
  readonly #queue: SweepContext['queue'];
  /** The positions of the last searches. */
  #jobsAfter: Places = {};

  constructor(context: SweepContext) {
    this.#runtime = context.runtime;
    this.#queue = context.queue;
  }

  async wake(clock: Clock): Promise<void> {
    // Nothing is lost while the queue is unavailable: the next search finds the same jobs again.
    if (this.#queue.isDoorbellUnavailable) return;
    const jobs: WaitingJob[] = [];
    const next: Places = {};
    for (const of of ['turns', 'batches'] as const) {
      const found = await findAnswerableJobs(this.#runtime.pool, {
        ...clock,
        of,
        after: this.#jobsAfter[of],
        limit: DOORS,
      });
      next[of] = found.next;
      jobs.push(...found.jobs);
    }
    const answer = jobs.length === 0 ? [] : await this.#runtime.doorbell.knock(jobs.map((job) => job.job_id));
    if (answer === undefined) {
      this.#queue.markDoorbellUnavailable();
      return;
    }
    this.#jobsAfter = next;
    const ids = new Set(answer);
    const gone = jobs.filter((job) => ids.has(job.job_id));
    if (gone.length > 0) await this.#removeWaitingJobs(gone);
  }

  /**
   * Removes the records of jobs all at once, and if that fails one by one. A record that stays is found by the next
   * sweep.
   */
  async #removeWaitingJobs(jobs: readonly WaitingJob[]): Promise<void> {
    try {
      await removeWaitingJobs(this.#runtime.pool, jobs);
    } catch (error) {
      if (isServerTrouble(error)) throw error;
      const [only] = jobs;
      if (jobs.length > 1) for (const job of jobs) await this.#removeWaitingJobs([job]);
      else this.#runtime.log('warn', 'sweep.door_not_closed', { job_id: only?.job_id, error: String(error) });
    }
  }
}
