/** What Boxcar uses of BullMQ's queues and workers, on either backend. */
import type { FlowJob, Job, Processor } from 'bullmq';
import type { UnreadableJob } from './unreadable-jobs.js';

/** Where the queues live. */
export type QueueConnection =
  | { readonly kind: 'redis'; readonly url: string }
  | { readonly kind: 'postgres'; readonly url: string };

export interface NewJobOptions {
  readonly jobId: string;
  readonly removeOnComplete: boolean;
  readonly removeOnFail: boolean;
  /** The lowest priority is delivered first. 0 is before all others. */
  readonly priority?: number;
}

/** What we use of a BullMQ queue. */
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
  /** 0 when a worker has it in hand, or one of its children. */
  remove(jobId: string): Promise<number>;
}

/** What we use of BullMQ's flows: jobs with jobs below them, which are delivered when those have ended. */
export interface JobFlow {
  addBulk(flows: FlowJob[]): Promise<unknown>;
}

export interface JobWorker {
  /** Takes no more jobs until `resume`. A job that is on its way may still arrive. */
  pause(): void;
  resume(): void;
  /** Takes no more jobs, waits for those in hand. */
  close(): Promise<void>;
}

export interface WorkerSettings {
  readonly concurrency: number;
  readonly onError: (error: unknown) => void;
  /** Called when a job is failed because its data is not JSON. */
  readonly onUnreadable?: (job: UnreadableJob) => void;
  readonly keepCompleted: boolean;
  /** Called just before a job is processed. False: the job is put back (B7), and the worker pauses. */
  readonly admit?: (job: Job) => boolean;
  /** Called when the queue had no further job. */
  readonly onEmpty?: () => void;
}

/** Opens queues and workers on one backend and closes what they share. */
export interface Queues {
  readonly kind: QueueConnection['kind'];
  queue<D>(name: string): JobQueue<D>;
  flow(): JobFlow;
  worker<D, R>(name: string, processor: Processor<D, R>, settings: WorkerSettings): JobWorker;
  close(): Promise<void>;
}

/** Parts of at most `size`: what one call to the queue takes. */
export function* chunks<T>(items: readonly T[], size: number): Generator<readonly T[]> {
  for (let from = 0; from < items.length; from += size) yield items.slice(from, from + size);
}

/** Settles like `work`, or rejects after `ms`; a late failure of `work` is nobody's any more. */
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
