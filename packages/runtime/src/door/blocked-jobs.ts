/**
 * Jobs whose handler has blocked the event loop of a worker or has ended its process. They run again with back-off, and fail
 * after five such losses.
 */
import { canonicalJson, KernelError, sha256 } from '@boxcar/kernel';
import { findBlockedJob, MAX_TRIES, noteSweepFailure } from '@boxcar/store';
import type { Job } from 'bullmq';
import type { RuntimeCore } from '../core/index.js';
import type { RunningJob } from '../lib/index.js';

const CRASHED = 'worker_crashed: ';
const PREFIX = /^worker_(?:blocked|crashed): /;
/** The note must never become a dead letter, because the door counts the attempts itself. */
const MAX_NOTES = 1_000_000;

/** The id of the note that the watchdog writes about a job, as a UUID. */
export const noteIdOf = ({ queueName, id, timestamp }: Pick<Job, 'queueName' | 'id' | 'timestamp'>): string =>
  sha256(canonicalJson([queueName, id ?? '', timestamp])).slice(0, 32);

/**
 * Checks a job that was in progress when its process ended. For other jobs it runs no statement.
 *
 * @returns How long the job must wait before it may run again, in milliseconds.
 * @throws KernelError `worker_blocked` or `attempts_exhausted` when the job has blocked an event loop or ended a process too
 * often.
 */
export async function checkBlocked({ pool }: Pick<RuntimeCore, 'pool'>, job: Job): Promise<number> {
  if (job.stalledCounter === 0) return 0;
  const blocked = await findBlockedJob(pool, noteIdOf(job));
  if (blocked === undefined) return 0;
  const { attempts, cause, wait_ms } = blocked;
  if (attempts < MAX_TRIES) return Math.ceil(wait_ms);
  throw new KernelError(cause.startsWith(CRASHED) ? 'attempts_exhausted' : 'worker_blocked', {
    message: `${cause.replace(PREFIX, '')} It has ended ${attempts} workers.`,
    details: { job_id: job.id, attempts },
  });
}

/** Notes a job whose handler left the error that ends the process. */
export async function noteCrashedJob(
  pool: RuntimeCore['pool'],
  { primitive, jobId, noteId }: RunningJob,
  why: string,
): Promise<void> {
  const error = `${CRASHED}The handler of ${primitive}, called by the job ${jobId}, left an error that nothing caught: ${why}`;
  const note = { kind: 'blocked_jobs' as const, rowId: noteId, projectId: null, error };
  await noteSweepFailure(pool, note, { maxTries: MAX_NOTES });
}
