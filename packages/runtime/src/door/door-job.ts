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

/** A process of another build, or a migration, can accept what this one cannot. */
const OURS: ReadonlySet<string> = new Set(['database_auth_failed', 'schema_too_new']);

/** Closes a door when told to, or when a migration has shut this build out: other processes take its jobs then. */
export function closable({ builds, log }: RuntimeCore, worker: { close(): Promise<void> }): QueueDoor {
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

/**
 * Trouble that neither the caller nor a custom handler has a part in: the job waits until it is over. What a custom handler
 * throws never is, whatever its code, but in a runtime that was closed meanwhile: what it used is closed too.
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
  // What the caller asks for does not fit what is there: only the caller can decide again.
  if (known.code === 'conflict') return false;
  return known.entry.canRetry || OURS.has(known.code);
}

/** Whether the database has the schema of this build: then it lacks nothing that another build or a migration would bring. */
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

/**
 * A deploy of a plugin to all processes takes a few minutes. A door that has room takes a job before one that has none, and most doors
 * may lack the plugin: 15 minutes are more than sixty times.
 */
const MIN_HANDED_BACK = 20;
const HANDED_BACK_MS = 15 * 60_000;
const handBackMs = (times: number): number => Math.min(250 * 2 ** times, 15_000);

/** `since`: when it was handed back first, by the clock of that process. Unit: milliseconds. */
const progressSchema = z.object({ handed_back: z.int().min(0), since: z.number().optional() });

/**
 * Hands a job back whose primitive or arguments this process does not know, for a process that may know them; refuses every other job. How often
 * it was handed back is its progress in the queue.
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

/** Trouble of ours delays the job; everything else fails it at once, `code: message` as the reason. */
export async function refuse(
  runtime: Pick<RuntimeCore, 'builds' | 'isClosed' | 'log'>,
  job: Job,
  trouble: { error: unknown; token: string | undefined },
): Promise<never> {
  const { log } = runtime;
  const { error, token } = trouble;
  if (!(await isOurTrouble(runtime, error))) {
    const { code, message } = toErrorBody(error);
    // A reason that the queue cannot store would bring the job back again and again.
    throw new UnrecoverableError(sanitizeText(`${code}: ${message}`).value);
  }
  logTrouble(log, 'door.retry', job, error);
  await postpone(log, job, { token, ms: RETRY_MS });
  throw new DelayedError();
}

export interface QueueDoor extends AsyncDisposable {
  /** Takes no more jobs and waits for those in hand. */
  close(): Promise<void>;
}
