/**
 * Jobs whose data is not JSON. BullMQ marks such a job as active and then throws while it creates the job object: the job would be
 * delivered again every few seconds forever and never reach a processor.
 */
import { KernelError, sanitizeText, toErrorBody } from '@boxcar/kernel';
import type { Job } from 'bullmq';

/** The fields of a stored job that this file needs. */
interface StoredJob {
  readonly data: string;
}

interface JobMaker {
  createJob(stored: StoredJob, jobId: string): Pick<Job, 'deferredFailure'>;
}

/** A job that was failed because its data is not JSON. */
export interface UnreadableJob {
  readonly jobId: string;
  readonly reason: string;
}

/** The reason of the failed job, in the same form as for other bad input. */
function reasonOf(error: unknown): string {
  const why = toErrorBody(error).message;
  const { code, message } = new KernelError('bad_request', { message: `data: not valid JSON (${why}).` });
  return sanitizeText(`${code}: ${message}`).value;
}

/**
 * Makes a BullMQ worker fail such a job once, with the reason, in place of its processor. BullMQ itself fails a job that has
 * a deferred failure before it calls the processor.
 */
export function failUnreadable<W extends object>(worker: W, onUnreadable?: (job: UnreadableJob) => void): W {
  const maker = worker as W & JobMaker;
  const createJob = maker.createJob.bind(worker);
  maker.createJob = (stored, jobId) => {
    try {
      return createJob(stored, jobId);
    } catch (error) {
      const job = createJob({ ...stored, data: '{}' }, jobId);
      job.deferredFailure = reasonOf(error);
      onUnreadable?.({ jobId, reason: job.deferredFailure });
      return job;
    }
  };
  return worker;
}
