/** Handoffs from code: the request uses the primitive, as at every other door, and the end is read from the rows. */
import {
  checkWait,
  type ErrorCode,
  errorText,
  type Handoff,
  type HandoffId,
  type HandoffOutline,
  KernelError,
  type ProjectId,
  type TurnId,
} from '@boxcar/kernel';
import { findHandoff, findWaitedHandoffs, loadChain } from '@boxcar/store';
import type { RuntimeCore } from '../core/index.js';
import { closeHandoffs } from '../end/index.js';
import type { Handler } from '../handler/index.js';
import type { ChainInput, HandoffAnswer, HandoffInput } from './handoff-types.js';
import { HandoffWaits } from './handoff-waits.js';

export interface HandOffOptions {
  /** Default `handoff`. */
  readonly primitive?: 'handoff' | 'handoff_chain';
  readonly projectId: ProjectId | string;
  /** Replaces the runtime's own handler: the handler of a tool with its own parts. */
  readonly handler?: Handler | undefined;
  /** The turn of the function that makes the handoff. */
  readonly parentTurnId?: TurnId | undefined;
  readonly signal?: AbortSignal | undefined;
  /** Called when the handoff has a row, before waiting for its end. */
  readonly onMade?: ((handoffId: HandoffId) => void) | undefined;
  /** Starts a server in this process if it can serve the target. */
  readonly parts: { ensureServed(workerTarget: string): Promise<void> };
}

/**
 * The result of a handoff in the form for programs. @throws KernelError the error of a failed handoff; `details.handoff_id` names the
 * handoff.
 */
function toAnswer(handoff: Handoff): HandoffAnswer {
  const { handoff_id, status, result, error, ticket_id } = handoff;
  if (status === 'failed' || status === 'rejected') {
    const { code, message, details } = error ?? { code: 'internal_error', message: `The handoff ${status}.` };
    throw new KernelError(code as ErrorCode, {
      message,
      next: '',
      details: { ...details, handoff_id },
    });
  }
  return {
    handoff_id,
    status,
    result: status === 'completed' ? result : null,
    ...(status === 'pending' && ticket_id !== null ? { ticket_id } : {}),
  };
}

/** A name for a log line. The unchecked request may have any value there. */
const nameIn = (request: unknown, key: 'source_agent' | 'target_agent'): string | undefined => {
  const name: unknown = Object(request)[key];
  return typeof name === 'string' ? name.slice(0, 500) : undefined;
};

/** Logs a request that leaves no row. */
export function logRefused(runtime: Pick<RuntimeCore, 'log'>, request: unknown, error: unknown): void {
  if (error instanceof KernelError && error.details.handoff_id !== undefined) return;
  runtime.log('warn', 'handoff.refused', {
    source_agent: nameIn(request, 'source_agent'),
    target_agent: nameIn(request, 'target_agent'),
    error: errorText(error),
  });
}

/**
 * The arguments of the primitive, which never waits here. Its schema refuses a request that is not an object and a `wait` that is not a
 * boolean.
 */
function argumentsOf(request: unknown): unknown {
  if (typeof request !== 'object' || request === null || Array.isArray(request)) return request;
  const { wait } = request as { wait?: unknown };
  return typeof wait === 'boolean' || wait == null ? { ...request, wait: false } : request;
}

/** @throws KernelError the reason of a refusal, or the error of a failed handoff; `wait_timeout`; the signal's reason. */
export async function handOff(
  runtime: RuntimeCore,
  request: HandoffInput | ChainInput,
  { primitive = 'handoff', projectId, handler, parentTurnId, signal, onMade, parts }: HandOffOptions,
): Promise<HandoffAnswer> {
  signal?.throwIfAborted();
  let answer: unknown;
  try {
    const accepted = await runtime.accept(primitive, argumentsOf(request), {
      projectId,
      ...(handler === undefined ? {} : { handler }),
      ...(parentTurnId === undefined ? {} : { parentTurnId }),
    });
    answer = accepted.answer;
  } catch (error) {
    logRefused(runtime, request, error);
    throw error;
  }
  const { handoff_id: handoffId, served_by } = answer as { handoff_id: HandoffId; served_by?: string };
  onMade?.(handoffId);
  if (served_by !== undefined) await parts.ensureServed(served_by);
  return (request.wait ?? true)
    ? waitForAnswer(runtime, handoffId, { projectId, signal })
    : toAnswer(await loadHandoff(runtime, handoffId, projectId));
}

/** Waits for the end of an existing handoff. @throws KernelError the error of a failed handoff; the signal's reason. */
export async function waitForAnswer(
  runtime: RuntimeCore,
  handoffId: HandoffId,
  options: Pick<HandOffOptions, 'projectId' | 'signal'>,
): Promise<HandoffAnswer> {
  return toAnswer(await waitForHandoff(runtime, handoffId, options));
}

export async function loadHandoff(
  { pool }: Pick<RuntimeCore, 'pool'>,
  handoffId: HandoffId | string,
  projectId: ProjectId | string,
): Promise<Handoff> {
  const handoff = await findHandoff(pool, {
    handoffId: handoffId as HandoffId,
    projectId: projectId as ProjectId,
  });
  if (handoff === undefined)
    throw new KernelError('not_found', {
      message: `No handoff ${handoffId} in this project.`,
      details: { handoff_id: handoffId },
    });
  return handoff;
}

/** The most handoffs that are shown. */
const MAX_CHAIN = 1_000;

/** All handoffs of the same root, the oldest first, at most 1,000, without context, payload and result. @throws KernelError `not_found`. */
export async function handoffsOfRoot(
  runtime: Pick<RuntimeCore, 'pool'>,
  handoffId: HandoffId,
  projectId: ProjectId,
): Promise<readonly HandoffOutline[]> {
  const { root_handoff_id } = await loadHandoff(runtime, handoffId, projectId);
  return loadChain(runtime.pool, { rootId: root_handoff_id as HandoffId, projectId, limit: MAX_CHAIN });
}

const waits = new WeakMap<RuntimeCore, HandoffWaits>();

function waitsOf(runtime: RuntimeCore): HandoffWaits {
  const known =
    waits.get(runtime) ??
    new HandoffWaits({
      read: (ids) => findWaitedHandoffs(runtime.pool, ids),
      isClosed: () => runtime.isClosed,
    });
  waits.set(runtime, known);
  return known;
}

/**
 * Resolves when a turn serves a handoff, or when the handoff has ended without a turn. @throws KernelError `not_found`; the signal's
 * reason.
 */
export async function waitForTurnOf(
  runtime: RuntimeCore,
  handoffId: Handoff['handoff_id'],
  { projectId, signal }: { readonly projectId: ProjectId; readonly signal?: AbortSignal | undefined },
): Promise<Handoff> {
  for (;;) {
    signal?.throwIfAborted();
    const handoff = await loadHandoff(runtime, handoffId, projectId);
    if (handoff.turn_id !== null || handoff.ended_at !== null) return handoff;
    await waitsOf(runtime).wait(handoffId as HandoffId, { signal });
  }
}

/**
 * Resolves when a handoff has ended, with success or without.
 *
 * @param options.timeoutMs - At most 30 days; `Infinity`, the default, means no limit.
 * @throws KernelError `not_found`, `wait_timeout`, `bad_request`, `internal_error` when the runtime is closed, or the signal's reason.
 */
export async function waitForHandoff(
  runtime: RuntimeCore,
  handoffId: HandoffId,
  {
    projectId,
    timeoutMs,
    signal,
  }: {
    readonly projectId: ProjectId | string;
    readonly timeoutMs?: number | undefined;
    readonly signal?: AbortSignal | undefined;
  },
): Promise<Handoff> {
  if (timeoutMs !== undefined) checkWait(timeoutMs, 'timeoutMs');
  const until = timeoutMs === undefined ? undefined : performance.now() + timeoutMs;
  const leftMs = (): number | undefined =>
    until === undefined ? undefined : Math.max(until - performance.now(), 0);
  let handoff = await loadHandoff(runtime, handoffId, projectId);
  while (handoff.ended_at === null) {
    signal?.throwIfAborted();
    const left = leftMs();
    if (left === 0)
      throw new KernelError('wait_timeout', { details: { handoff_id: handoffId, timeout_ms: timeoutMs } });
    if (handoff.turn_id === null) await waitsOf(runtime).wait(handoffId, { signal, timeoutMs: left });
    else
      await runtime.watcher.wait(handoff.turn_id as TurnId, {
        project: projectId,
        ...(left === undefined ? {} : { timeoutMs: left }),
        ...(signal === undefined ? {} : { signal }),
      });
    handoff = await loadHandoff(runtime, handoffId, projectId);
  }
  // The log of the handoff is completed before its end is returned to the caller.
  if (handoff.turn_id !== null) await closeHandoffs(runtime, handoff.turn_id as TurnId);
  return handoff;
}
