import {
  commandFault,
  type ErrorBody,
  errorText,
  findingsOf,
  isJsonObject,
  type JsonValue,
  KernelError,
  type Profile,
  sanitizeJson,
  startTimer,
  toErrorBody,
} from '@boxcar/kernel';
import {
  type CallSettlement,
  isOutside,
  type NewToolCall,
  type PendingCall,
  settleCalls,
} from '@boxcar/store';
import { passGate } from '../approval/index.js';
import type { Accepted, ParsedSubmission, RuntimeCore, SubmitOptions } from '../core/index.js';
import type { CallOutcome } from '../end/index.js';
import { answeredMeanwhile, toFailure, toSettlement } from '../end/index.js';
import { type RunningCall, runInScope, unlessAborted } from '../lib/index.js';
import { parseSubmission } from '../submit/index.js';
import { onPool, openTape, untilAborted } from '../tape/index.js';
import { missingServed, parseGiven, type Tool } from '../tool/index.js';
import { findFunction, invalidArguments, refusal, type Toolbox } from '../toolbox/index.js';
import type { HeldTurn } from './held-turn.js';
import { keepLate, lateResult } from './late.js';

async function runFunction(
  runtime: RuntimeCore,
  tool: Tool,
  call: PendingCall,
  turn: HeldTurn,
): Promise<{ result: JsonValue; isSanitized: boolean }> {
  const { parsed } = parseGiven(tool.input, isJsonObject(call.arguments) ? call.arguments : {});
  if (!parsed.success) {
    const findings = findingsOf(parsed.error);
    throw invalidArguments(findings.map(({ path, message }) => `${path || 'arguments'}: ${message}`));
  }
  const { turnId, agentId, projectId } = turn.turn;
  const output = await runLimited(call, turn, async ({ signal, fail }) => {
    if (call.retry === 'never') turn.begunIds.add(call.id);
    const code: RunningCall = {
      kind: 'call',
      tool: call.name,
      toolCallId: call.id,
      turnId,
      holderId: turn.holderId,
    };
    const crash = (error: unknown): void => {
      const crashed = toolCrashed(call, error);
      runtime.log('error', 'tool.crashed', {
        tool: call.name,
        tool_call_id: call.id,
        turn_id: turnId,
        is_answered: !fail(crashed),
        error: crashed.message,
        stack: error instanceof Error ? error.stack : undefined,
      });
    };
    // A tool that ignores its signal may return a result after its turn was lost.
    const brought = await runInScope({ code, crash }, async () =>
      tool.run(parsed.data, {
        toolCallId: call.id,
        turnId,
        agentId,
        projectId,
        signal,
        tape: (target) =>
          openTape(untilAborted(onPool(runtime.pool, runtime.limits.maxCardBytes), signal), target, {
            projectId,
            as: agentId,
            create: false,
          }),
      }),
    );
    if (turn.signal.aborted)
      await keepLate(runtime, turn, [
        lateResult(call.id, call.step, { status: 'success', result: sanitizeJson(brought).value }),
      ]);
    return brought;
  });
  const { value, isChanged } = sanitizeJson(output);
  return { result: value, isSanitized: isChanged };
}

interface Limit {
  /** Fires at the call's deadline, and when the turn is lost. */
  readonly signal: AbortSignal;
  /**
   * Call before the effect is committed: from then on the deadline no longer ends the call. @throws when the deadline
   * has already passed.
   */
  readonly pass: () => void;
  /** Ends the call with this error. @returns False when the call has already ended. */
  readonly fail: (error: KernelError) => boolean;
}

const toolCrashed = (call: Pick<PendingCall, 'id' | 'name'>, error: unknown): KernelError =>
  new KernelError('tool_crashed', {
    message: `${call.name} left an error that nothing caught: ${toErrorBody(error).message}.`,
    details: { tool: call.name, tool_call_id: call.id },
    cause: error,
  });

/**
 * Runs outside code for a call until the call's deadline, or until its turn is lost, even if that code ignores its
 * signal.
 */
async function runLimited<T>(
  call: PendingCall,
  { signal: lost }: HeldTurn,
  work: (limit: Limit) => Promise<T>,
): Promise<T> {
  lost.throwIfAborted();
  const controller = new AbortController();
  const { signal } = controller;
  const onLost = (): void => controller.abort(lost.reason);
  lost.addEventListener('abort', onLost, { once: true });
  const timer = startTimer(Math.max(call.remaining_ms, 0), () =>
    controller.abort(
      new KernelError('tool_timeout', {
        message: `${call.name} did not answer in time.`,
        details: { tool: call.name, tool_call_id: call.id },
      }),
    ),
  );
  const pass = (): void => {
    signal.throwIfAborted();
    timer.clear();
  };
  let isOver = false;
  const fail = (error: KernelError): boolean => {
    const isFirst = !isOver && !signal.aborted;
    if (isFirst) controller.abort(error);
    return isFirst;
  };
  try {
    return await unlessAborted(work({ signal, pass, fail }), signal);
  } finally {
    isOver = true;
    timer.clear();
    lost.removeEventListener('abort', onLost);
  }
}

export type CallRun =
  | { readonly kind: 'result'; readonly settlement: CallSettlement }
  /** Answered in its own transaction, or waiting: for a turn, an approval or an external worker. */
  | { readonly kind: 'elsewhere' }
  /** `submit_result` and similar calls: the turn ends with this deliverable. */
  | ({ readonly kind: 'ending'; readonly settlement: CallSettlement } & NonNullable<Accepted['ending']>);

interface CallOptions {
  readonly profile: Profile;
  readonly isAlone: boolean;
  readonly parsed: ParsedSubmission | undefined;
  /** @throws KernelError unless the turn may end by this call with this deliverable. */
  readonly checkEnd: (name: string, deliverable: JsonValue) => Promise<void>;
}

/**
 * Runs one pending call. The model gets a readable result whatever the tool does. Only three errors are thrown: the
 * loss of the turn, the loss of the database, and a gate that could not be asked.
 */
export async function runCall(
  runtime: RuntimeCore,
  turn: HeldTurn,
  given: PendingCall,
  toolbox: Toolbox,
  options: CallOptions,
): Promise<CallRun> {
  const target = {
    toolCallId: given.id,
    turnId: given.turn_id,
    name: given.name,
    projectId: turn.turn.projectId,
  };
  const settle = (outcome: CallOutcome, isSanitized = false): CallSettlement =>
    toSettlement(target, outcome, {
      authorId: given.route === 'function' ? `tool:${given.name}` : turn.turn.agentId,
      isSanitized,
      maxBytes: runtime.limits.maxCardBytes,
    });
  if (given.is_awaiting) return { kind: 'elsewhere' };
  let call = given;
  try {
    if (call.route === 'none')
      return { kind: 'result', settlement: settle(toFailure(refusal(runtime, call, toolbox))) };
    // The arguments of queue calls already fit their schema. Others are checked before the approval gate, because text
    // cannot be masked.
    if (call.route !== 'queue' && !isJsonObject(call.arguments)) throw unreadable(call.arguments);
    const pass = await passGate(runtime, { call, ...callerFactsOf(turn), profile: options.profile }).catch(
      (error: unknown) => {
        throw error instanceof KernelError && error.code === 'permission_denied'
          ? error
          : new NotGated(error);
      },
    );
    if (pass.kind === 'wait') {
      turn.gatedIds.add(call.id);
      return { kind: 'elsewhere' };
    }
    // Its ticket proves that no holder of the turn has begun this call before.
    if (pass.kind === 'begin') call = { ...call, epoch: turn.turn.epoch, remaining_ms: pass.remainingMs };
    if (call.route === 'queue') {
      // After a takeover the job may already be out. The sweep finds out whether a call that must not be sent twice was
      // sent.
      if (call.retry === 'safe' || call.epoch === turn.turn.epoch) runtime.sendSoon(call);
      return { kind: 'elsewhere' };
    }
    if (call.route === 'primitive') return await runPrimitive(runtime, turn, call, { ...options, settle });
    // Also when the tool no longer exists: the call may have been run.
    if (call.epoch !== turn.turn.epoch && call.retry === 'never') {
      throw new KernelError('outcome_unknown', {
        message: `${call.name} was interrupted.`,
        details: { tool: call.name, tool_call_id: call.id },
      });
    }
    const tool = findFunction(runtime, toolbox, call.name);
    if (tool === undefined)
      throw (
        missingServed(runtime.toolServers, options.profile, call.name) ??
        new KernelError('tool_unknown', {
          message: `This worker has no tool '${call.name}'; load its plugin.`,
        })
      );
    const { result, isSanitized } = await runFunction(runtime, tool, call, turn);
    return { kind: 'result', settlement: settle({ status: 'success', result }, isSanitized) };
  } catch (error) {
    if (
      turn.signal.aborted ||
      (call.route === 'primitive' && isFatal(error, turn)) ||
      error instanceof NotGated
    )
      throw error;
    const body = toErrorBody(error, 'tool_failed');
    const clean = sanitizeJson(body).value as unknown as ErrorBody;
    return {
      kind: 'result',
      settlement: settle({ status: clean.code === 'tool_timeout' ? 'timeout' : 'failed', error: clean }),
    };
  }
}

const unreadable = (given: JsonValue): KernelError =>
  new KernelError('tool_arguments_invalid', {
    message: commandFault(given) ?? 'The arguments are not a JSON object.',
    details: { received: String(given).slice(0, 200) },
  });

/** The gate could not be asked whether the call may begin. The turn is handed back, and nothing was begun. */
class NotGated extends Error {
  constructor(cause: unknown) {
    super(errorText(cause), { cause });
  }
}

const callerFactsOf = ({ turn: { projectId, runId, agentId, epoch }, names }: HeldTurn) => ({
  projectId,
  runId,
  agentId,
  epoch,
  names,
});

/**
 * Errors that this worker must act on: the database is unavailable, or this worker no longer holds the turn. An error
 * that an outside handler throws never counts as such an error.
 */
const isFatal = (error: unknown, { turn }: HeldTurn): boolean =>
  error instanceof KernelError &&
  !isOutside(error) &&
  (error.code === 'database_unavailable' ||
    (error.code === 'turn_ended' && error.details.turn_id === turn.turnId));

const callerOf = ({ turn }: HeldTurn): SubmitOptions => ({
  projectId: turn.projectId,
  sourceAgentId: turn.agentId,
  channelId: turn.channelId,
  ...(turn.traceparent === null ? {} : { traceparent: turn.traceparent }),
});

/**
 * Parses the submission of a primitive and starts to read its caller while its call is being committed. Undefined when
 * the call is not a primitive, or when `runCall` will refuse it.
 */
export function beginCall(
  runtime: RuntimeCore,
  held: HeldTurn,
  call: Pick<NewToolCall, 'id' | 'name' | 'arguments' | 'route'>,
): ParsedSubmission | undefined {
  if (call.route !== 'primitive') return undefined;
  try {
    return parseSubmission(runtime, call.name, call.arguments, {
      ...callerOf(held),
      call: { turnId: held.turn.turnId, toolCallId: call.id, holderId: held.holderId },
    });
  } catch {
    return undefined;
  }
}

async function runPrimitive(
  runtime: RuntimeCore,
  held: HeldTurn,
  call: PendingCall,
  options: CallOptions & { readonly settle: (outcome: CallOutcome) => CallSettlement },
): Promise<CallRun> {
  const { turn, holderId } = held;
  let rings: Parameters<RuntimeCore['ring']>[0] = [];
  const accepted = await runLimited(call, held, ({ signal, pass }) =>
    runtime.accept(call.name, call.arguments, {
      ...callerOf(held),
      call: {
        parsed: options.parsed,
        turnId: turn.turnId,
        epoch: turn.epoch,
        holderId,
        toolCallId: call.id,
        signal,
        settle: async (tx, answer) => {
          pass();
          const failure = runtime.handlers.get(call.name)?.failureOf?.(answer);
          const outcome: CallOutcome =
            failure === undefined ? { status: 'success', result: answer } : toFailure(failure);
          const settled = await settleCalls(tx, [options.settle(outcome)]);
          if (settled.duplicates.length > 0) throw answeredMeanwhile(call.name, call.id);
          rings = settled.rings;
        },
        pass,
        ring: held.ring,
      },
    }),
  );
  runtime.ring(rings);
  if (accepted.ending === null) return { kind: 'elsewhere' };
  const { ending } = accepted;
  if (!options.isAlone)
    throw new KernelError('tool_arguments_invalid', {
      message: `${call.name} must be the only call of its message.`,
    });
  await options.checkEnd(call.name, ending.deliverable);
  return {
    kind: 'ending',
    settlement: options.settle({ status: 'success', result: accepted.answer }),
    ...ending,
  };
}
