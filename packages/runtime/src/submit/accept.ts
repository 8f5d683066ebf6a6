/**
 * The only entry point for submissions: every door parses its input and calls `accept`.
 *
 * It makes one read (caller, policy, first answer under the key), the handler's reads, and one write. After the commit the
 * doorbell rings.
 */
import { type ErrorBody, type ErrorCode, KernelError, parseJsonValue } from '@boxcar/kernel';
import {
  CallerTransaction,
  type CallerTx,
  isTransient,
  limitsOn,
  refuseNested,
  retryTransient,
} from '@boxcar/store';
import type { Accepted, Caller, InnerSubmitOptions, RuntimeCore, SubmitOptions } from '../core/index.js';
import type { Written } from './announce.js';
import { attempt } from './attempt.js';
import { findCaller } from './caller.js';
import { startHandlerLimit } from './handler-limit.js';
import { parseSubmission } from './parse.js';
import { WordsErased } from './write.js';

/**
 * Accepts a primitive: validates, decides, and commits its whole effect in one transaction.
 *
 * @returns The answer, or the receipt while a turn is awaited.
 * @throws KernelError of the catalogue; then nothing was written.
 * Rule: docs/reference/primitives.md, "Accepting".
 */
export async function accept(
  runtime: RuntimeCore,
  primitive: string,
  args: unknown,
  options: SubmitOptions & InnerSubmitOptions = {},
): Promise<Accepted> {
  refuseNested(runtime.pool);
  const accepted = await acceptOnce(runtime, primitive, args, options);
  // A call gets the failure as its result, so nothing is thrown for it.
  const handler =
    options.call === undefined ? (options.handler ?? runtime.handlers.get(primitive)) : undefined;
  const failure = handler?.failureOf?.(accepted.answer);
  if (failure !== undefined) throw fromBody(failure);
  return accepted;
}

async function acceptOnce(
  runtime: RuntimeCore,
  primitive: string,
  args: unknown,
  options: SubmitOptions & InnerSubmitOptions,
): Promise<Accepted> {
  // The job's name is outside text: the program that adds the job chooses it.
  if (options.doorJobId !== undefined) parseJsonValue(options.doorJobId, 'job_id');
  if (options.tx !== undefined && options.within === undefined)
    return acceptWithin(runtime, { primitive, args, tx: options.tx }, options);
  const parsed = options.call?.parsed ?? parseSubmission(runtime, primitive, args, options);
  let caller: Promise<Caller> | undefined = parsed.caller;
  // Deadlocks and lost connections repeat everything. If the lost try was committed after all, the key finds its answer.
  const written: Written[] = [];
  // A call has its own deadline.
  const limit =
    options.call === undefined
      ? startHandlerLimit(parsed.primitive, runtime.handlerTimeoutMs)
      : { signal: options.call.signal, clear: () => undefined };
  let tries = 0;
  let holdsErasures = false;
  try {
    // A try in a caller's transaction cannot be repeated: only the caller can repeat the whole transaction.
    const retry = options.within === undefined ? retryTransient : <T>(work: () => Promise<T>) => work();
    return await retry(async () => {
      tries += 1;
      const first = caller;
      caller = undefined;
      const attemptFor = (found: Caller, isAgain: boolean): Promise<Accepted> =>
        attempt(runtime, {
          parsed,
          options,
          caller: found,
          written,
          isAgain,
          holdsErasures,
          signal: limit.signal,
        });
      try {
        const found = await (first ?? findCaller(runtime, options, parsed.request));
        return await attemptFor(found, tries > 1).catch(async (error: unknown) => {
          // The cached facts about the caller may be out of date, so the refusal is not final.
          if (!found.isKept || isTransient(error)) throw error;
          return attemptFor(await findCaller(runtime, options, parsed.request), true);
        });
      } catch (error) {
        holdsErasures ||= error instanceof WordsErased;
        throw error;
      }
    });
  } finally {
    limit.clear();
  }
}

/** Accepts a primitive in a transaction of the caller. Its effects are announced after that transaction has ended. */
async function acceptWithin(
  runtime: RuntimeCore,
  { primitive, args, tx }: { readonly primitive: string; readonly args: unknown; readonly tx: CallerTx },
  options: SubmitOptions & InnerSubmitOptions,
): Promise<Accepted> {
  const within = await CallerTransaction.enter(tx, { lockMs: limitsOn(runtime.pool).lockMs });
  let accepted: Accepted;
  try {
    accepted = await accept(runtime, primitive, args, { ...options, within });
  } catch (error) {
    // A lost connection has undone everything; report the connection's error.
    await within.undo().catch(() => undefined);
    throw error;
  }
  // For a repeated submission the first answer is returned, and the locks of this try are released.
  if (accepted.isReplay) await within.undo();
  else await within.keep();
  return accepted;
}

/** A recorded failure with its original message. */
const fromBody = ({ code, message, details }: ErrorBody): KernelError =>
  new KernelError(code as ErrorCode, { message, next: '', details: details ?? {} });
