/** Jobs whose handler has held the event loop of a worker: they run again with back-off, and fail after five such losses. */
import { canonicalJson, KernelError, sha256 } from '@boxcar/kernel';
import { findBlockedJob, MAX_TRIES } from '@boxcar/store';
import type { Job } from 'bullmq';
import type { Runtime } from '../runtime.js';

const PREFIX = /^worker_blocked: /;

/** The id of the note that the watchdog writes about a job, as a UUID. */
export const noteIdOf = ({ queueName, id, timestamp }: Pick<Job, 'queueName' | 'id' | 'timestamp'>): string =>
  sha256(canonicalJson([queueName, id ?? '', timestamp])).slice(0, 32);

/**
 * For a job that was in hand when a process ended. Costs a statement only then.
 *
 * @returns How long it must wait before it may run again. Unit: milliseconds.
 * @throws KernelError `worker_blocked` when it has held an event loop too often.
 */
export async function checkBlocked({ pool }: Pick<Runtime, 'pool'>, job: Job): Promise<number> {
  if (job.stalledCounter === 0) return 0;
  const blocked = await findBlockedJob(pool, noteIdOf(job));
  if (blocked === undefined) return 0;
  const { attempts, cause, wait_ms } = blocked;
  if (attempts < MAX_TRIES) return Math.ceil(wait_ms);
  throw new KernelError('worker_blocked', {
    message: `${cause.replace(PREFIX, '')} It has ended ${attempts} workers.`,
    details: { job_id: job.id, attempts },
  });
}
