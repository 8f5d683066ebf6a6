/** The parts of BullMQ's queues and workers that Boxcar uses, on either backend. */
import type { FlowJob, Job, Processor } from 'bullmq';
import type { UnreadableJob } from './unreadable-jobs.js';

/** The address of the server that holds the queues. */
export type QueueConnection =
  | { readonly kind: 'redis'; readonly url: string }
  | { readonly kind: 'postgres'; readonly url: string };

/** The options of a new job. */
export interface NewJobOptions {
  readonly jobId: string;
  readonly removeOnComplete: boolean;
  readonly removeOnFail: boolean;
  /** The job with the lowest number is delivered first; 0 precedes all others. */
  readonly priority?: number;
}

/** The part of a BullMQ queue that Boxcar uses. */
export interface JobQueue<D> {
  add(name: string, data: D, opts: NewJobOptions): Promise<unknown>;
  addBulk(jobs: { name: string; data: D; opts: NewJobOptions }[]): Promise<unknown>;
  getJobState(jobId: string): Promise<string>;
  getJob(jobId: string): Promise<
    | {
        promote(): Promise<void>;
        changePriority(opts: { readonly priority: number }): Promise<void>;
        returnvalue: unknown;
        failedReason?: string;
      }
    | undefined
  >;
  /** Returns 0 when a worker is processing the job or one of its children. */
  remove(jobId: string): Promise<number>;
}

/** The part of BullMQ's flows that Boxcar uses: a job that is delivered after the jobs below it have ended. */
export interface JobFlow {
  addBulk(flows: FlowJob[]): Promise<unknown>;
}

/** The part of a BullMQ worker that Boxcar uses. */
export interface JobWorker {
  /** Takes no more jobs until `resume`. A job that is on its way may still arrive. */
  pause(): void;
  resume(): void;
  /** Takes no more jobs and waits for the jobs in progress. */
  close(): Promise<void>;
}

/** The settings of a worker of a queue. */
export interface WorkerSettings {
  readonly concurrency: number;
  readonly onError: (error: unknown) => void;
  /** Called when a job is failed because its data is not JSON. */
  readonly onUnreadable?: (job: UnreadableJob) => void;
  readonly keepCompleted: boolean;
  /** Called before a job is processed. False: the job is put back (B7), and the worker pauses. */
  readonly admit?: (job: Job) => boolean;
  /** Called when the queue has no further job. */
  readonly onEmpty?: () => void;
}

/** Opens queues and workers on one backend, and closes the connections that they share. */
export interface Queues {
  readonly kind: QueueConnection['kind'];
  queue<D>(name: string): JobQueue<D>;
  flow(): JobFlow;
  worker<D, R>(name: string, processor: Processor<D, R>, settings: WorkerSettings): JobWorker;
  close(): Promise<void>;
}

/** Parts of at most `size` items: as many as one call to the queue takes. */
export function* chunks<T>(items: readonly T[], size: number): Generator<readonly T[]> {
  for (let from = 0; from < items.length; from += size) yield items.slice(from, from + size);
}

/** Settles like `work`, or rejects after `ms`. A later failure of `work` is ignored. */
export async function within<T>(work: Promise<T>, ms: number): Promise<T> {
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
