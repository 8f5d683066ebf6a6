import {
  type Doorbell,
  type DoorbellSubscription,
  errorText,
  type Ring,
  type TurnId,
  tryParseId,
} from '@boxcar/kernel';
import type { Log } from '../lib/index.js';
import { chunks, type JobQueue, type JobWorker, type Queues, within } from './job-queue.js';
import { placeOf } from './ring-order.js';
import { TakenRings } from './taken-rings.js';

/** The data of a job in a turns queue: the turn and its epoch. All other facts are in the rows. */
export interface TurnJob {
  readonly turn_id: TurnId;
  readonly epoch: number;
}

export const PRIMITIVES_QUEUE = 'boxcar-primitives';
const turnsQueue = (workerTarget: string): string =>
  workerTarget === '' ? 'boxcar-turns' : `boxcar-turns-${workerTarget}`;

/** A ring that takes longer is lost; the sweep rings again. */
const RING_LIMIT_MS = 500;
const RINGS_PER_CALL = 100;
/** How long the workers of the doorbell may take to close. */
const CLOSE_LIMIT_MS = 2_000;
/** The time limit for one request to the queue. */
const ASK_LIMIT_MS = 2_000;
const QUESTIONS_AT_ONCE = 50;
/** States from which BullMQ will deliver the job. */
const ON_ITS_WAY = new Set(['waiting', 'prioritized', 'delayed', 'active', 'waiting-children']);

type WaitingJob = NonNullable<Awaited<ReturnType<JobQueue<TurnJob>['getJob']>>>;

const jobId = (ring: Pick<Ring, 'turnId' | 'epoch'>): string => `${ring.turnId}-${ring.epoch}`;

/** Any program may put jobs into a queue. A job that is not a ring gives undefined. */
function parseRing(data: unknown, workerTarget: string): Ring | undefined {
  const { turn_id, epoch } = (data ?? {}) as Partial<Record<keyof TurnJob, unknown>>;
  const turnId = typeof turn_id === 'string' ? tryParseId<'turn'>(turn_id) : undefined;
  return turnId === undefined || !Number.isInteger(epoch)
    ? undefined
    : { turnId, epoch: Number(epoch), workerTarget };
}

/** Rings by BullMQ jobs: `boxcar-turns` and `boxcar-turns-<target>`. */
export class BullMqDoorbell implements Doorbell {
  readonly #queues: Queues;
  readonly #log: Log;
  readonly #now: () => number;
  readonly #turnQueues = new Map<string, JobQueue<TurnJob>>();
  readonly #primitives: JobQueue<unknown>;
  readonly #workers = new Set<JobWorker>();
  readonly #taken = new TakenRings();

  /** @param now - Clock for tests, in milliseconds. */
  constructor(queues: Queues, log: Log, now: () => number = Date.now) {
    this.#queues = queues;
    this.#log = log;
    this.#now = now;
    this.#primitives = queues.queue(PRIMITIVES_QUEUE);
  }

  #queue(workerTarget: string): JobQueue<TurnJob> {
    const known = this.#turnQueues.get(workerTarget);
    if (known !== undefined) return known;
    const queue = this.#queues.queue<TurnJob>(turnsQueue(workerTarget));
    this.#turnQueues.set(workerTarget, queue);
    return queue;
  }

  async ring(rings: readonly Ring[]): Promise<void> {
    const add = async (target: string, group: readonly Ring[]): Promise<void> => {
      const jobs = group.map((ring) => ({
        name: 'turn',
        data: { turn_id: ring.turnId, epoch: ring.epoch },
        opts: {
          jobId: jobId(ring),
          removeOnComplete: true,
          removeOnFail: true,
          priority: placeOf(ring, this.#now()),
        },
      }));
      try {
        const queue = this.#queue(target);
        // BullMQ adds a single job much faster than a list of one.
        const [only] = jobs;
        await within(
          only !== undefined && jobs.length === 1
            ? queue.add(only.name, only.data, only.opts)
            : queue.addBulk(jobs),
          RING_LIMIT_MS,
        );
      } catch (error) {
        this.#log('warn', 'doorbell.ring_lost', { rings: group.length, error: errorText(error) });
      }
    };
    await Promise.all(
      [...groupByTarget(rings)].map(async ([target, group]) => {
        // The parts are sent in sequence, so that each part has the full time limit. Parts that are sent together wait
        // for each other at the server.
        for (const part of chunks(group, RINGS_PER_CALL)) await add(target, part);
      }),
    );
  }

  async findLost(
    rings: readonly Ring[],
    { takenMs = Number.POSITIVE_INFINITY }: { readonly takenMs?: number } = {},
  ): Promise<readonly Ring[] | undefined> {
    try {
      if (rings.length === 0) await within(this.#queue('').getJobState('none'), RING_LIMIT_MS);
      const lost: Ring[] = [];
      const taken = new Map<string, Ring>();
      for (const part of chunks(rings, QUESTIONS_AT_ONCE)) {
        const states = await within(
          Promise.all(part.map((ring) => this.#queue(ring.workerTarget).getJobState(jobId(ring)))),
          ASK_LIMIT_MS,
        );
        lost.push(...part.filter((_ring, index) => !ON_ITS_WAY.has(states[index] ?? 'unknown')));
        for (const [index, ring] of part.entries())
          if (states[index] === 'active') taken.set(jobId(ring), ring);
      }
      if (rings.length === 0) return lost;
      const overdue = this.#taken.record({ asked: rings.map(jobId), taken: new Set(taken.keys()) }, takenMs);
      return [...lost, ...[...taken].flatMap(([id, ring]) => (overdue.has(id) ? [ring] : []))];
    } catch (error) {
      this.#log('warn', 'doorbell.unreachable', { error: errorText(error) });
      return undefined;
    }
  }

  async raise(rings: readonly Ring[]): Promise<void> {
    const endsAt = performance.now() + ASK_LIMIT_MS;
    try {
      for (const part of chunks(rings, QUESTIONS_AT_ONCE)) {
        const jobs = await within(Promise.all(part.map((ring) => this.#prioritizedJob(ring))), ASK_LIMIT_MS);
        // One after the other, so that the rings keep their order. If the queue answers slowly, the next sweep raises the rest.
        for (const [index, ring] of part.entries()) {
          if (performance.now() > endsAt) return;
          await within(this.#raise(ring, jobs[index]), ASK_LIMIT_MS);
        }
      }
    } catch (error) {
      // Each further part would wait as long. The next sweep tries again.
      this.#log('warn', 'doorbell.unreachable', { error: errorText(error) });
    }
  }

  /** The job of a ring that waits with a priority. Raising a ring that has priority 0 would move it to the end. */
  async #prioritizedJob(ring: Ring): Promise<WaitingJob | undefined> {
    const queue = this.#queue(ring.workerTarget);
    return (await queue.getJobState(jobId(ring))) === 'prioritized' ? queue.getJob(jobId(ring)) : undefined;
  }

  async #raise(ring: Ring, job: WaitingJob | undefined): Promise<void> {
    await job?.changePriority({ priority: 0 }).catch((error: unknown) => {
      // The ring was delivered at this moment, so there is nothing to raise.
      this.#log('debug', 'doorbell.not_raised', { turn_id: ring.turnId, error: errorText(error) });
    });
  }

  async knock(jobIds: readonly string[]): Promise<readonly string[] | undefined> {
    const gone: string[] = [];
    const knockAt = async (id: string): Promise<void> => {
      const state = await this.#primitives.getJobState(id);
      if (state === 'delayed') {
        const waking = this.#primitives.getJob(id).then((job) => job?.promote());
        await waking.catch((error: unknown) => {
          // Another process promoted the job at this moment; if not, the sweep knocks again.
          this.#log('debug', 'doorbell.knock_failed', { job_id: id, error: errorText(error) });
        });
      } else if (!ON_ITS_WAY.has(state)) gone.push(id);
    };
    try {
      for (const part of chunks(jobIds, QUESTIONS_AT_ONCE))
        await within(Promise.all(part.map(knockAt)), ASK_LIMIT_MS);
      return gone;
    } catch (error) {
      // Each further part would wait as long, and would delay the sweep.
      this.#log('warn', 'doorbell.unreachable', { error: errorText(error) });
      return undefined;
    }
  }

  async listen(options: Parameters<Doorbell['listen']>[0]): Promise<DoorbellSubscription> {
    // A ring that the listener has admitted is recognised by its object identity.
    const rings = new WeakMap<object, Ring>();
    const worker = this.#queues.worker<unknown, void>(
      turnsQueue(options.workerTarget),
      async (job) => {
        const ring = rings.get(job);
        if (ring === undefined) {
          this.#log('warn', 'doorbell.no_ring', { job_id: job.id, worker_target: options.workerTarget });
          return;
        }
        // Never throws. The row records the outcome of the turn; a failed job would add nothing.
        await options.handle(ring).catch(options.onError);
      },
      {
        concurrency: options.concurrency,
        onError: options.onError,
        onUnreadable: ({ jobId, reason }) =>
          this.#log('warn', 'doorbell.no_ring', {
            job_id: jobId,
            worker_target: options.workerTarget,
            error: reason,
          }),
        keepCompleted: false,
        admit: (job) => {
          const ring = parseRing(job.data, options.workerTarget);
          if (ring === undefined) return true;
          rings.set(job, ring);
          return options.admit?.(ring) ?? true;
        },
        ...(options.onEmpty === undefined ? {} : { onEmpty: options.onEmpty }),
      },
    );
    this.#workers.add(worker);
    return {
      pause: () => worker.pause(),
      resume: () => worker.resume(),
      close: async () => {
        this.#workers.delete(worker);
        await worker.close();
      },
    };
  }

  async close(): Promise<void> {
    const workers = [...this.#workers];
    this.#workers.clear();
    try {
      // A job in progress may wait for a server that is away.
      await within(Promise.all(workers.map((worker) => worker.close())), CLOSE_LIMIT_MS);
    } finally {
      await this.#queues.close();
    }
  }
}

function groupByTarget(rings: readonly Ring[]): Map<string, Ring[]> {
  const groups = new Map<string, Ring[]>();
  for (const ring of rings) {
    const group = groups.get(ring.workerTarget);
    if (group === undefined) groups.set(ring.workerTarget, [ring]);
    else group.push(ring);
  }
  return groups;
}
