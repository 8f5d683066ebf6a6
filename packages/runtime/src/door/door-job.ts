import { KernelError, sanitizeText, toErrorBody } from '@boxcar/kernel';
import { isTransient, toDatabaseError } from '@boxcar/store';
import { DelayedError, type Job, UnrecoverableError } from 'bullmq';
import type { Log } from '../log.js';
import type { Runtime } from '../runtime.js';
import type { QueueDoor } from './queue-door.js';

export const RETRY_MS = 1_000;

/** A process of another build, or a migration, can accept what this one cannot. */
const OURS: ReadonlySet<string> = new Set(['database_auth_failed', 'schema_too_new', 'schema_outdated']);

/** Closes a door when told to, or when a migration has shut this build out: other processes take its jobs then. */
export function closable({ builds, log }: Runtime, worker: { close(): Promise<void> }): QueueDoor {
  let closing: Promise<void> | undefined;
  const close = (): Promise<void> => {
    unwatch();
    closing ??= worker.close();
    return closing;
  };
  const unwatch = builds.onOutdated((error) => {
    log('error', 'door.outdated', { error: error.message });
    // Not at once: the first may be told of it before there is anything to take away.
    setImmediate(() => void close().catch(() => undefined));
  });
  return { close, [Symbol.asyncDispose]: close };
}

/** Trouble that the caller has no part in: the job waits until it is over. */
export function isOurTrouble(error: unknown): boolean {
  const known = toDatabaseError(error);
  return (
    isTransient(known) || (known instanceof KernelError && (known.entry.canRetry || OURS.has(known.code)))
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
