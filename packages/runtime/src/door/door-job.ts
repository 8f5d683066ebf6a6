import { KernelError, sanitizeText, toErrorBody } from '@boxcar/kernel';
import { isTransient, toDatabaseError } from '@boxcar/store';
import { DelayedError, type Job, UnrecoverableError } from 'bullmq';
import type { Log } from '../log.js';

export const RETRY_MS = 1_000;

/** Trouble that the caller has no part in: the job waits until it is over. */
export function isOurTrouble(error: unknown): boolean {
  const known = toDatabaseError(error);
  return (
    isTransient(known) ||
    (known instanceof KernelError && (known.entry.canRetry || known.code === 'database_auth_failed'))
  );
}

export function logTrouble(log: Log, event: string, job: Job, error: unknown): void {
  log('warn', event, {
    queue: job.queueName,
    job_id: job.id,
    name: job.name,
    error: error instanceof Error ? error.message : String(error),
  });
}

/** Gives the slot back. A job that cannot be moved stays active until its lock ends, and is given again then. */
export async function postpone(
  log: Log,
  job: Job,
  options: { readonly token: string | undefined; readonly ms: number },
): Promise<void> {
  try {
    await job.moveToDelayed(Date.now() + options.ms, options.token);
  } catch (error) {
    logTrouble(log, 'door.postpone_failed', job, error);
  }
}

/** Trouble of ours delays the job; everything else fails it at once, `code: message` as the reason. */
export async function refuse(
  log: Log,
  job: Job,
  trouble: { error: unknown; token: string | undefined },
): Promise<never> {
  const { error, token } = trouble;
  if (!isOurTrouble(error)) {
    const { code, message } = toErrorBody(error);
    // A reason that the queue cannot store would bring the job back again and again.
    throw new UnrecoverableError(sanitizeText(`${code}: ${message}`).value);
  }
  logTrouble(log, 'door.retry', job, error);
  await postpone(log, job, { token, ms: RETRY_MS });
  throw new DelayedError();
}
