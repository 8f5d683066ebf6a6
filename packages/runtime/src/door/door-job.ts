import { isJsonObject, KernelError, sanitizeText, TOOL_NAME, toErrorBody } from '@boxcar/kernel';
import { isOutside, isTransient, lookUpPrimitive, toDatabaseError } from '@boxcar/store';
import { DelayedError, type Job, UnrecoverableError } from 'bullmq';
import { z } from 'zod';
import type { RuntimeCore } from '../core/index.js';
import type { Handler } from '../handler/index.js';
import type { Log } from '../lib/index.js';
import { readInput } from '../submit/index.js';
import { argumentsHash } from './announced-door.js';

export const RETRY_MS = 1_000;

/** A job waits at these errors: a process of another build may accept it, or this database after a migration. */
const OURS: ReadonlySet<string> = new Set(['database_auth_failed', 'schema_too_new']);

/** Closes a door on request, or when a migration has shut this build out. Other processes then take its jobs. */
export function closable({ builds, log }: RuntimeCore, worker: { close(): Promise<void> }): QueueDoor {
  let closing: Promise<void> | undefined;
  const close = (): Promise<void> => {
    unwatch();
    closing ??= worker.close();
    return closing;
  };
  const unwatch = builds.onOutdated((error) => {
    log('error', 'door.outdated', { error: error.message });
    // Deferred: the listener may be called before `unwatch` is assigned.
    setImmediate(() => void close().catch(() => undefined));
  });
  return { close, [Symbol.asyncDispose]: close };
}

/**
 * Whether an error is on the kernel's side, so that neither the caller nor a custom handler has caused it. The job then waits
 * until the cause has passed. An error of a custom handler never counts, whatever its code, except in a runtime that was closed
 * in the meantime: the handler's resources are closed too.
 */
export async function isOurTrouble(
  { builds, isClosed }: Pick<RuntimeCore, 'builds' | 'isClosed'>,
  error: unknown,
): Promise<boolean> {
  if (isClosed) return true;
  if (isOutside(error)) return false;
  const known = toDatabaseError(error);
  if (isTransient(known)) return true;
  if (!(known instanceof KernelError)) return false;
  if (known.code === 'schema_outdated') return !(await hasOwnSchema(builds));
  // The request conflicts with the stored state, and only the caller can change the request.
  if (known.code === 'conflict') return false;
  return known.entry.canRetry || OURS.has(known.code);
}

/** Whether the database has the schema of this build. If so, no other build and no migration would add anything. */
async function hasOwnSchema(builds: RuntimeCore['builds']): Promise<boolean> {
  try {
    return (await builds.refresh()) === builds.build.schemaVersion;
  } catch {
    return false;
  }
}

export function logTrouble(log: Log, event: string, job: Job, error: unknown): void {
  log('warn', event, {
    queue: job.queueName,
    job_id: job.id,
    name: job.name,
    error: toErrorBody(error).message,
  });
}

/** Frees the slot of a job. A job that cannot be moved stays active until its lock ends, and is then delivered again. */
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

/**
 * A deploy of a plugin to all processes takes a few minutes. Doors with free slots take a job before doors without, and most
 * doors may lack the plugin; in 15 minutes a job is handed back more than sixty times.
 */
const MIN_HANDED_BACK = 20;
const HANDED_BACK_MS = 15 * 60_000;
const handBackMs = (times: number): number => Math.min(250 * 2 ** times, 15_000);

/** `since`: when the job was first handed back, in milliseconds by the clock of that process. */
const progressSchema = z.object({ handed_back: z.int().min(0), since: z.number().optional() });

/**
 * Hands a job back when this process does not know its primitive or refuses its arguments and another process may accept it;
 * refuses every other job. The job's progress in the queue records how often it was handed back.
 */
export async function handBackOrRefuse(
  runtime: Pick<RuntimeCore, 'builds' | 'handlers' | 'isClosed' | 'log' | 'pool'>,
  job: Job,
  trouble: { error: unknown; token: string | undefined },
): Promise<never> {
  const { log } = runtime;
  const { error, token } = trouble;
  const { handed_back: times, since = Date.now() } = progressSchema.safeParse(job.progress).data ?? {
    handed_back: 0,
  };
  const mayHandBack = times < MIN_HANDED_BACK || Date.now() - since < HANDED_BACK_MS;
  let isHandedBack: boolean;
  try {
    isHandedBack = mayHandBack && (await isKnownElsewhere(runtime, job, error));
  } catch (failure) {
    return refuse(runtime, job, { error: failure, token });
  }
  if (!isHandedBack) return refuse(runtime, job, trouble);
  logTrouble(log, 'door.handed_back', job, error);
  try {
    await job.updateProgress({ handed_back: times + 1, since });
  } catch (failure) {
    logTrouble(log, 'door.postpone_failed', job, failure);
  }
  await postpone(log, job, { token, ms: handBackMs(times) });
  throw new DelayedError();
}

async function isKnownElsewhere(
  { handlers, pool }: Pick<RuntimeCore, 'handlers' | 'pool'>,
  { name, data }: Job,
  error: unknown,
): Promise<boolean> {
  if (!(error instanceof KernelError) || isOutside(error) || !TOOL_NAME.test(name)) return false;
  const handler = handlers.get(name);
  if (handler === undefined)
    return error.code === 'unknown_primitive' && (await lookUpPrimitive(pool, name, '')).isKnown;
  return (
    refusesArguments(handler, data) && (await lookUpPrimitive(pool, name, argumentsHash(handler))).isOther
  );
}

function refusesArguments(handler: Handler, data: unknown): boolean {
  if (!isJsonObject(data) || !isJsonObject(data.arguments)) return false;
  try {
    readInput(handler, data.arguments, undefined);
    return false;
  } catch (error) {
    return error instanceof KernelError && error.code === 'bad_request' && !isOutside(error);
  }
}

/** An error on the kernel's side delays the job. Any other error fails it at once, with `code: message` as the reason. */
export async function refuse(
  runtime: Pick<RuntimeCore, 'builds' | 'isClosed' | 'log'>,
  job: Job,
  trouble: { error: unknown; token: string | undefined },
): Promise<never> {
  const { log } = runtime;
  const { error, token } = trouble;
  if (!(await isOurTrouble(runtime, error))) {
    const { code, message } = toErrorBody(error);
    // If the queue could not store the reason, it would deliver the job again and again.
    throw new UnrecoverableError(sanitizeText(`${code}: ${message}`).value);
  }
  logTrouble(log, 'door.retry', job, error);
  await postpone(log, job, { token, ms: RETRY_MS });
  throw new DelayedError();
}

export interface QueueDoor extends AsyncDisposable {
  /** Takes no more jobs and waits for the jobs in progress. */
  close(): Promise<void>;
}
