/**
 * The queues of tools that workers outside the kernel run. Each call is a job of `boxcar-tools-<target>` with a bell: a parent
 * job in `boxcar-tool-results`. BullMQ delivers the bell when the job has ended, whatever its outcome, on both backends and
 * without events. Like any ring, a bell may be lost; the sweep checks the jobs itself.
 */

import type { JobState, JsonValue, ToolCallId, TurnId } from '@boxcar/kernel';
import { errorText } from '@boxcar/kernel';
import type { Log } from '../lib/index.js';
import { chunks, type JobFlow, type JobQueue, type Queues, within } from '../queue/index.js';

export const TOOL_RESULTS_QUEUE = 'boxcar-tool-results';
const toolsQueue = (target: string): string => `boxcar-tools-${target}`;

/** A call whose job is in a queue, or should be. */
export interface QueuedCall {
  readonly id: ToolCallId;
  readonly target: string;
}

export interface NewToolJob extends QueuedCall {
  readonly turnId: TurnId;
  readonly name: string;
  readonly arguments: JsonValue;
}

/** Maximum time of one request to the queue. */
const ASK_LIMIT_MS = 2_000;
export const JOBS_PER_CALL = 100;
const QUESTIONS_AT_ONCE = 50;
/** How long an ended job stays in the queue unread; a job that was read is removed. */
const KEPT_SECONDS = 24 * 3600;

const bellId = (id: ToolCallId): string => `call-${id}`;

const toFlow = (job: NewToolJob) => ({
  name: 'ended',
  queueName: TOOL_RESULTS_QUEUE,
  data: { ended: job.id },
  opts: { jobId: bellId(job.id), removeOnComplete: true, removeOnFail: true },
  children: [
    {
      name: job.name,
      queueName: toolsQueue(job.target),
      data: { tool_call_id: job.id, turn_id: job.turnId, name: job.name, arguments: job.arguments },
      opts: {
        jobId: job.id,
        // The bell rings after a failure as well.
        ignoreDependencyOnFailure: true,
        removeOnComplete: { age: KEPT_SECONDS },
        removeOnFail: { age: KEPT_SECONDS },
      },
    },
  ],
});

export class ToolQueue {
  readonly #queues: Queues;
  readonly #log: Log;
  readonly #flow: JobFlow;
  readonly #bells: JobQueue<unknown>;
  readonly #targets = new Map<string, JobQueue<unknown>>();

  constructor(queues: Queues, log: Log) {
    this.#queues = queues;
    this.#log = log;
    this.#flow = queues.flow();
    this.#bells = queues.queue(TOOL_RESULTS_QUEUE);
  }

  #queue(target: string): JobQueue<unknown> {
    const known = this.#targets.get(target);
    if (known !== undefined) return known;
    const queue = this.#queues.queue<unknown>(toolsQueue(target));
    this.#targets.set(target, queue);
    return queue;
  }

  /**
   * Adds jobs, best effort; an existing job stays unchanged.
   *
   * @returns The calls whose job is known to be in its queue now.
   */
  async add(jobs: readonly NewToolJob[]): Promise<readonly ToolCallId[]> {
    const added: ToolCallId[] = [];
    try {
      for (const part of chunks(jobs, JOBS_PER_CALL)) {
        await within(this.#flow.addBulk(part.map(toFlow)), ASK_LIMIT_MS);
        added.push(...part.map((job) => job.id));
      }
    } catch (error) {
      this.#log('warn', 'tools.jobs_lost', { jobs: jobs.length - added.length, error: errorText(error) });
    }
    return added;
  }

  async #stateOf({ id, target }: QueuedCall): Promise<JobState> {
    const queue = this.#queue(target);
    // The state is read first: a job that was read before it ended contains no answer.
    const state = await queue.getJobState(id);
    if (state === 'unknown') return { state: 'gone' };
    if (state !== 'completed' && state !== 'failed') return { state: 'open' };
    let job: Awaited<ReturnType<JobQueue<unknown>['getJob']>>;
    try {
      job = await queue.getJob(id);
    } catch (error) {
      // The stored data of this job is damaged. This failure does not affect the checks of other jobs.
      if (!(error instanceof SyntaxError)) throw error;
      return { state: 'failed', reason: `The job of this call cannot be read: ${error.message}.` };
    }
    // Another process has read and removed the job in the meantime.
    if (job === undefined) return { state: 'open' };
    return state === 'completed'
      ? { state, result: job.returnvalue ?? null }
      : { state, reason: job.failedReason ?? '' };
  }

  /** True when no worker has ever taken one of these jobs; undefined when the queue cannot be asked. */
  async isUntouched(calls: readonly QueuedCall[]): Promise<boolean | undefined> {
    try {
      const states = await within(
        Promise.all(calls.map(({ id, target }) => this.#queue(target).getJobState(id))),
        ASK_LIMIT_MS,
      );
      return states.every((state) => state !== 'active' && state !== 'completed' && state !== 'failed');
    } catch (error) {
      this.#log('warn', 'tools.unreachable', { error: errorText(error) });
      return undefined;
    }
  }

  /** The states of jobs, in order; undefined when the queue cannot be asked. */
  async getJobStates(calls: readonly QueuedCall[]): Promise<readonly JobState[] | undefined> {
    const looks: JobState[] = [];
    try {
      for (const part of chunks(calls, QUESTIONS_AT_ONCE))
        looks.push(...(await within(Promise.all(part.map((call) => this.#stateOf(call))), ASK_LIMIT_MS)));
      return looks;
    } catch (error) {
      this.#log('warn', 'tools.unreachable', { error: errorText(error) });
      return undefined;
    }
  }

  /**
   * Removes the jobs of settled calls, best effort. A job that a worker is processing stays until it ends.
   *
   * @returns False when the queue does not answer.
   */
  async remove(calls: readonly QueuedCall[]): Promise<boolean> {
    const take = async ({ id, target }: QueuedCall): Promise<void> => {
      // Removing the bell removes its job too, so that the bell does not ring for the removal.
      await this.#bells.remove(bellId(id)).catch(() => undefined);
      await this.#queue(target).remove(id);
    };
    try {
      for (const part of chunks(calls, QUESTIONS_AT_ONCE)) {
        const taken = await within(Promise.allSettled(part.map(take)), ASK_LIMIT_MS);
        for (const result of taken)
          if (result.status === 'rejected')
            this.#log('debug', 'tools.job_stays', { error: errorText(result.reason) });
      }
      return true;
    } catch (error) {
      // Each further part would time out as well and delay the sweep.
      this.#log('warn', 'tools.unreachable', { error: errorText(error) });
      return false;
    }
  }
}
