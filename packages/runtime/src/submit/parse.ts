/** Checks whether a submission is well-formed. */
import {
  isJsonObject,
  type JsonObject,
  KernelError,
  meant,
  parseJsonValue,
  toBadRequest,
} from '@boxcar/kernel';
import type { ParsedSubmission, RuntimeCore } from '../core/index.js';
import type { Handler } from '../handler/index.js';
import { newId, type RunningCode } from '../lib/index.js';
import { parseGiven } from '../tool/index.js';
import { type CallerOptions, findCaller } from './caller.js';
import { checkText } from './check-text.js';
import { codeOf, outside } from './plugin-code.js';

/** Parses the arguments with the handler's schema. */
function parseInput<I>(
  primitive: string,
  handler: Handler<I>,
  { args, code }: { readonly args: unknown; readonly code: RunningCode | undefined },
): { readonly input: I; readonly plain: JsonObject } {
  const plain = parseJsonValue(args, 'arguments');
  if (!isJsonObject(plain))
    throw new KernelError('bad_request', {
      message: `${primitive}: arguments must be an object.`,
      details: { primitive },
    });
  const { parsed, given } = outside(code, () => parseGiven(handler.input, plain));
  if (!parsed.success) throw toBadRequest(parsed.error, 'arguments');
  return { input: parsed.data, plain: given };
}

/** The input of a handler: a separate object that the handler may change. */
export function readInput<I>(
  handler: Pick<Handler<I>, 'input'>,
  plain: JsonObject,
  code: RunningCode | undefined,
): I {
  const { parsed } = outside(code, () => parseGiven(handler.input, plain));
  if (!parsed.success) throw toBadRequest(parsed.error, 'arguments');
  return parsed.data;
}

/** Only the kernel makes keys with these prefixes. */
const KERNEL_KEYS = /^(agent|auto|call|fork-result|handoff-begin|handoff-result|unseen):/;

/** Undefined when the primitive does not exist, or only turns may call it. */
function findHandler(runtime: RuntimeCore, primitive: string, { call }: CallerOptions): Handler | undefined {
  const found = runtime.handlers.get(primitive);
  return found?.isInternal === true && call === undefined ? undefined : found;
}

/**
 * Begins to accept a primitive. For a call of a turn this may run in parallel with the commit of the call: the write decides
 * again about everything that is looked up here, under the fence of the turn.
 *
 * @throws KernelError for an unknown primitive, or for arguments that are not valid.
 */
export function parseSubmission(
  runtime: RuntimeCore,
  primitive: string,
  args: unknown,
  options: CallerOptions,
): ParsedSubmission {
  const handler = options.handler ?? findHandler(runtime, primitive, options);
  if (handler === undefined) {
    const name = String(primitive).slice(0, 80);
    const known = [...runtime.handlers]
      .flatMap(([one, { isInternal }]) => (isInternal === true ? [] : [one]))
      .sort();
    throw new KernelError('unknown_primitive', {
      message: `No primitive '${name}'${meant(name, known) || '.'} Known are ${known.join(', ')}.`,
      details: { primitive },
    });
  }
  const code = codeOf(runtime, { primitive, handler }, options);
  const { input, plain } = parseInput(primitive, handler, { args, code });
  checkText(options.idempotencyKey, 'idempotency_key', 500);
  if (
    options.idempotencyKey !== undefined &&
    options.wokenBy === undefined &&
    options.begins === undefined &&
    options.isKernelKey !== true &&
    KERNEL_KEYS.test(options.idempotencyKey)
  )
    throw new KernelError('bad_request', {
      message:
        'idempotency_key: keys that begin with agent:, auto:, call:, fork-result:, handoff-begin:, handoff-result: or unseen: are made by the kernel only.',
      details: { field: 'idempotency_key' },
    });
  const key =
    options.call === undefined
      ? (options.idempotencyKey ?? `auto:${newId()}`)
      : `call:${options.call.toolCallId}`;
  const isOwnKey =
    options.idempotencyKey !== undefined &&
    options.call === undefined &&
    options.wokenBy === undefined &&
    options.isKernelKey !== true &&
    options.isJobKey !== true;
  const profileNames = outside(code, () => handler.profileNames?.(input) ?? []);
  const request = { key, isOwnKey, profileNames };
  // A handler of the kernel can run again after its answer was refused, so cached facts may be used.
  const mayBeKept = runtime.ownHandlers.has(handler);
  const caller = findCaller(runtime, options, request, { mayBeKept });
  // The submission that awaits the caller reports the failure. A call that is never committed has no such submission.
  caller.catch(() => undefined);
  return { primitive, handler, input, plain, request, caller };
}
