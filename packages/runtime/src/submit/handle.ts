/** Runs the handler of a try, which adds to its draft. */
import { type JsonValue, KernelError, maskSecrets, sanitizeJson } from '@boxcar/kernel';
import { asOutside, insideHandler, isTransient } from '@boxcar/store';
import type { Accepted, RuntimeCore } from '../core/index.js';
import type { CallerContext } from '../handler/index.js';
import { unlessAborted } from '../lib/index.js';
import { replay } from './admit.js';
import { findCaller } from './caller.js';
import type { SubmissionDraft } from './draft.js';
import { HandlerToolbox } from './handler-tools.js';
import { readInput } from './parse.js';
import { PendingCalls } from './pending-calls.js';
import { codeOf, inScopeOf } from './plugin-code.js';
import { withRun, withWarnings } from './receipt.js';
import type { Attempt } from './try-context.js';
import type { UnitOfWork } from './unit-of-work.js';

export type Handled =
  | { readonly outcome: 'answered'; readonly answer: JsonValue }
  /** The answer under the same key that was committed while the handler ran. */
  | { readonly outcome: 'known'; readonly known: Accepted };

export async function handle(
  runtime: RuntimeCore,
  of: Attempt,
  {
    ctx,
    isOwn,
    draft,
    unit,
    requestHash,
  }: {
    readonly ctx: CallerContext;
    readonly isOwn: boolean;
    readonly draft: SubmissionDraft;
    readonly unit: UnitOfWork;
    readonly requestHash: string;
  },
): Promise<Handled> {
  const { parsed, options, caller, signal } = of;
  const { primitive, handler, plain } = parsed;
  const calls = new PendingCalls();
  const tools = new HandlerToolbox(
    {
      runtime,
      caller,
      ctx,
      unit,
      call: options.call,
      begins: options.begins,
      isWoken: options.wokenBy !== undefined,
      signal,
      isOwn,
    },
    draft,
    calls,
  );
  // Handlers are outside code: rows and cards must be able to hold any answer.
  // Only outside handlers run in a scope: Node's hooks for it slow every promise of the process down.
  const code = isOwn ? undefined : codeOf(runtime, { primitive, handler }, options);
  const input = of.isAgain ? readInput(handler, plain, code) : parsed.input;
  const run = async (): Promise<JsonValue> => handler.handle(input, tools);
  const runOutside = async (): Promise<JsonValue> => {
    const answer = await run();
    await calls.settle();
    return answer;
  };
  const handling = isOwn
    ? run()
    : insideHandler(unit.scope, () => inScopeOf(code, runOutside)).catch((error: unknown) =>
        // An abort has a reason of the kernel, which must not count as an error of the handler.
        Promise.reject(signal.aborted ? error : asOutside(error)),
      );
  let given: JsonValue;
  try {
    given = await unlessAborted(handling, signal);
  } catch (error) {
    calls.close();
    // Does not wait for a connection whose statement is still running.
    await unit.abandon({ isCut: signal.aborted });
    // The first submission under this key may have caused the refusal while this submission waited for its locks.
    const known = await findFirst(runtime, of, { requestHash, error });
    if (known === undefined) throw error;
    return { outcome: 'known', known };
  }
  const clean = sanitizeJson(given).value;
  const receipt = withRun(isOwn ? clean : maskSecrets(clean), draft.runs, options);
  return { outcome: 'answered', answer: withWarnings(receipt, plain) };
}

async function findFirst(
  runtime: RuntimeCore,
  { parsed: { request }, options, isAgain }: Attempt,
  { requestHash, error }: { readonly requestHash: string; readonly error: unknown },
): Promise<Accepted | undefined> {
  // Only an earlier try of this submission can have used a generated key. Errors other than refusals say nothing about
  // the rows.
  if ((request.key.startsWith('auto:') && !isAgain) || !(error instanceof KernelError) || isTransient(error))
    return undefined;
  return replay(await findCaller(runtime, options, request), request.key, requestHash);
}
