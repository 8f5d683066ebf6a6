import type { Doorbell, DoorbellSubscription, Ring, TurnId } from '@boxcar/kernel';
import type { Log } from '../log.js';
import type { JobQueue, Queues } from '../queues.js';

/** What a job of a turns queue says: which turn, at which epoch. Nothing else; the rows know the rest. */
export interface TurnJob {
  readonly turn_id: TurnId;
  readonly epoch: number;
}

export const PRIMITIVES_QUEUE = 'boxcar-primitives';
export const turnsQueue = (workerTarget: string): string =>
  workerTarget === '' ? 'boxcar-turns' : `boxcar-turns-${workerTarget}`;

/** A ring that takes longer is lost; the sweep rings again. */
const RING_LIMIT_MS = 500;
const RINGS_PER_CALL = 500;
/** States from which BullMQ will deliver the job. */
const ON_ITS_WAY = new Set(['waiting', 'prioritized', 'delayed', 'active', 'waiting-children']);

const jobId = (ring: Pick<Ring, 'turnId' | 'epoch'>): string => `${ring.turnId}-${ring.epoch}`;

/** Settles like `work`, or rejects after `ms`; a late failure of `work` is nobody's any more. */
async function within<T>(work: Promise<T>, ms: number): Promise<T> {
  let timer: NodeJS.Timeout | undefined;
  work.catch(() => undefined);
  try {
    return await Promise.race([
      work,
      new Promise<never>((_resolve, reject) => {
        timer = setTimeout(() => reject(new Error(`the queue did not answer within ${ms} ms`)), ms);
      }),
    ]);
  } finally {
    clearTimeout(timer);
  }
}

/** Rings by BullMQ jobs: `boxcar-turns` and `boxcar-turns-<target>`. */
export class BullMqDoorbell implements Doorbell {
  readonly #queues: Queues;
  readonly #log: Log;
  readonly #turnQueues = new Map<string, JobQueue<TurnJob>>();
  readonly #primitives: JobQueue<unknown>;
  readonly #workers = new Set<{ close(force?: boolean): Promise<void> }>();

  constructor(queues: Queues, log: Log) {
    this.#queues = queues;
    this.#log = log;
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
    const byTarget = groupByTarget(rings);
    try {
      for (const [target, group] of byTarget) {
        for (let from = 0; from < group.length; from += RINGS_PER_CALL) {
          const jobs = group.slice(from, from + RINGS_PER_CALL).map((ring) => ({
            name: 'turn',
            data: { turn_id: ring.turnId, epoch: ring.epoch },
            opts: { jobId: jobId(ring), removeOnComplete: true, removeOnFail: true },
          }));
          await within(this.#queue(target).addBulk(jobs), RING_LIMIT_MS);
        }
      }
    } catch (error) {
      this.#log('warn', 'doorbell.ring_lost', {
        rings: rings.length,
        error: error instanceof Error ? error.message : String(error),
      });
    }
  }

  async findLost(rings: readonly Ring[]): Promise<readonly Ring[] | undefined> {
    try {
      if (rings.length === 0) await within(this.#queue('').getJobState('none'), RING_LIMIT_MS);
      const lost: Ring[] = [];
      for (let from = 0; from < rings.length; from += 50) {
        const part = rings.slice(from, from + 50);
        const states = await within(
          Promise.all(part.map((ring) => this.#queue(ring.workerTarget).getJobState(jobId(ring)))),
          5_000,
        );
        lost.push(...part.filter((_ring, index) => !ON_ITS_WAY.has(states[index] ?? 'unknown')));
      }
      return lost;
    } catch (error) {
      this.#log('warn', 'doorbell.unreachable', {
        error: error instanceof Error ? error.message : String(error),
      });
      return undefined;
    }
  }

  async knock(jobIds: readonly string[]): Promise<readonly string[]> {
    const gone: string[] = [];
    for (const id of jobIds) {
      try {
        const state = await within(this.#primitives.getJobState(id), RING_LIMIT_MS);
        if (state === 'delayed') await (await this.#primitives.getJob(id))?.promote();
        else if (!ON_ITS_WAY.has(state)) gone.push(id);
      } catch (error) {
        // Promoted by someone else in this moment, or the queue is away: the job asks again by itself.
        this.#log('debug', 'doorbell.knock_failed', {
          job_id: id,
          error: error instanceof Error ? error.message : String(error),
        });
      }
    }
    return gone;
  }

  async listen(options: Parameters<Doorbell['listen']>[0]): Promise<DoorbellSubscription> {
    const worker = this.#queues.worker<TurnJob, void>(
      turnsQueue(options.workerTarget),
      async (job) => {
        // Never throws: what becomes of the turn is in its row, a failed job would say nothing.
        await options
          .handle({ turnId: job.data.turn_id, epoch: job.data.epoch, workerTarget: options.workerTarget })
          .catch(options.onError);
      },
      { concurrency: options.concurrency, onError: options.onError, keepCompleted: false },
    );
    this.#workers.add(worker);
    return {
      close: async () => {
        this.#workers.delete(worker);
        await within(worker.close(), 5_000).catch(() => worker.close(true));
      },
    };
  }

  async close(): Promise<void> {
    const open = [...this.#workers, ...this.#turnQueues.values(), this.#primitives];
    await Promise.all(open.map((part) => within(part.close(), 2_000).catch(() => undefined)));
    await this.#queues.close();
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
