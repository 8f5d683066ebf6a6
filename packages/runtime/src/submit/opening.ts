/** Whether a submission is well-formed, who it comes from, and what has been answered under its key. */
import {
  agentIdIn,
  isFinal,
  isJsonObject,
  isPlainName,
  type JsonObject,
  KernelError,
  meant,
  PLAIN_NAME,
  parseId,
  parseJsonValue,
  type TurnId,
  toBadRequest,
  tryParseId,
} from '@boxcar/kernel';
import { asOutside, type CallerTransaction, loadOpenings, type Opening } from '@boxcar/store';
import type { Accepted, Begun, DoorOptions, Opened, RuntimeCore, SubmitOptions } from '../core/index.js';
import type { Handler } from '../handler/index.js';
import { newId, type RunningCode, runInScope } from '../lib/index.js';
import { parseGiven } from '../tool/index.js';
import { nameOfSession } from './session-name.js';

function parseInput<I>(
  primitive: string,
  handler: Handler<I>,
  { args, code }: { readonly args: unknown; readonly code: RunningCode | undefined },
): { input: I; plain: JsonObject } {
  const plain = parseJsonValue(args, 'arguments');
  if (!isJsonObject(plain))
    throw new KernelError('bad_request', {
      message: `${primitive}: arguments must be an object.`,
      details: { primitive },
    });
  return readGiven(handler, plain, code);
}

function readGiven<I>(
  handler: Pick<Handler<I>, 'input'>,
  args: JsonObject,
  code: RunningCode | undefined,
): { input: I; plain: JsonObject } {
  const { parsed, given } = outside(code, () => parseGiven(handler.input, args));
  if (!parsed.success) throw toBadRequest(parsed.error, 'arguments');
  return { input: parsed.data, plain: given };
}

/** The input of a handler: an object of its own, which it may change. */
export const readInput = <I>(
  handler: Pick<Handler<I>, 'input'>,
  plain: JsonObject,
  code: RunningCode | undefined,
): I => readGiven(handler, plain, code).input;

/**
 * What a handler that a plugin has brought works for. Undefined for the kernel's own handlers, and for a submission without a turn or
 * job, which nothing repeats.
 */
export function codeOf(
  runtime: Pick<RuntimeCore, 'ownHandlers'>,
  { primitive, handler }: { readonly primitive: string; readonly handler: Handler },
  { call, doorJobId, doorNoteId }: Pick<Caller, 'call' | 'doorJobId' | 'doorNoteId'>,
): RunningCode | undefined {
  if (runtime.ownHandlers.has(handler)) return undefined;
  if (call !== undefined) {
    const { toolCallId, turnId, holderId } = call;
    return { kind: 'call', tool: primitive, toolCallId, turnId, holderId };
  }
  return doorJobId === undefined || doorNoteId === undefined
    ? undefined
    : { kind: 'job', primitive, jobId: doorJobId.slice(0, 100), noteId: doorNoteId };
}

/** Runs code of a handler, traced to what it works for. */
export const inScopeOf = <T>(code: RunningCode | undefined, work: () => T): T =>
  code === undefined ? work() : runInScope({ code }, work);

/** Runs code that a plugin has brought. */
function outside<T>(code: RunningCode | undefined, work: () => T): T {
  try {
    return inScopeOf(code, work);
  } catch (error) {
    throw asOutside(error);
  }
}

export const checkText = (value: string | undefined, field: string, maxLength: number): void => {
  if (value === undefined) return;
  parseJsonValue(value, field);
  if (!isPlainName(value)) {
    throw new KernelError('bad_request', {
      message: `${field}: ${PLAIN_NAME}.`,
      details: { field },
    });
  }
  if (value.trim() === '' || value.length > maxLength) {
    throw new KernelError('bad_request', {
      message: `${field}: must have 1 to ${maxLength} characters.`,
      details: { field },
    });
  }
};

/** @throws KernelError `not_found` for project, source agent or calling turn. */
export async function open(
  runtime: RuntimeCore,
  options: Caller,
  { key, isOwnKey, profileNames }: Begun['request'],
): Promise<Opened> {
  checkText(options.projectId, 'project_id', 200);
  const sourceAgent =
    typeof options.sourceAgentId === 'object'
      ? nameOfSession(options.sourceAgentId, 'source_agent_id')
      : options.sourceAgentId;
  checkText(sourceAgent, 'source_agent_id', 200);
  checkText(options.channelId, 'channel_id', 200);
  checkText(options.traceparent, 'traceparent', 200);
  const project = options.projectId ?? 'default';
  const request = {
    project: tryParseId(project) ?? project,
    sourceAgentId: sourceAgent === undefined ? undefined : agentIdIn(sourceAgent),
    sourceAgentName: sourceAgent,
    idempotencyKey: key,
    isOwnKey,
    profileNames,
    parentTurnId:
      options.call?.turnId ??
      options.wokenBy ??
      (options.parentTurnId === undefined
        ? undefined
        : parseId<'turn'>(options.parentTurnId, 'parent_turn_id')),
  };
  const { within } = options;
  const opening =
    within === undefined ? await runtime.open(request) : (await loadOpenings(within.db, [request]))[0];
  if (opening === undefined)
    throw new KernelError('not_found', {
      message: `No project '${project}'.`,
      details: { project_id: project },
    });
  const { source } = opening;
  if (source === undefined) {
    throw new KernelError('not_found', {
      message:
        typeof options.sourceAgentId === 'object'
          ? `source_agent_id: no session '${options.sourceAgentId.session}' of workspace '${options.sourceAgentId.workspace}' in project '${project}'.`
          : `No agent '${sourceAgent ?? ''}' in project '${project}'.`,
      details: { source_agent_id: sourceAgent, project_id: opening.projectId },
    });
  }
  const parentTurnId = options.call?.turnId ?? options.wokenBy ?? options.parentTurnId;
  if (parentTurnId !== undefined && opening.parent === undefined) {
    throw new KernelError('not_found', {
      message: `No turn '${parentTurnId}' in project '${project}'.`,
      details: { parent_turn_id: parentTurnId, project_id: opening.projectId },
    });
  }
  return { ...opening, source };
}

/**
 * Not asked of a replay, which changes nothing.
 *
 * @throws KernelError `turn_ended` for a calling turn that is gone, `bad_request` for filing under another agent's turn.
 */
export function checkParent({ parent, source }: Opening, { wokenBy }: Pick<Caller, 'wokenBy'>): void {
  if (parent === undefined || wokenBy !== undefined) return;
  if (source?.isOperator !== true && source?.agentId !== parent.agentId) {
    throw new KernelError('bad_request', {
      message: `parent_turn_id: turn ${parent.turnId} is not one of agent ${source?.agentId ?? ''}.`,
      details: { parent_turn_id: parent.turnId, source_agent_id: source?.agentId },
    });
  }
  if (!isFinal(parent.status)) return;
  throw new KernelError('turn_ended', {
    message: `Turn ${parent.turnId} has ended as ${parent.status}.`,
    details: { turn_id: parent.turnId },
  });
}

/** What ends or collects work, and starts none. */
const ENDS_WORK: ReadonlySet<string> = new Set(['cancel', 'collect', 'raise_budget']);

/** True for submissions that an archived project refuses: those of no turn, which may start work. */
export const isRefusedByArchive = (
  primitive: string,
  { call, wokenBy }: Pick<Caller, 'call' | 'wokenBy'>,
): boolean => call === undefined && wokenBy === undefined && !ENDS_WORK.has(primitive);

/**
 * Not asked of a replay, which changes nothing.
 *
 * @throws KernelError `project_archived`.
 */
export function checkProject(
  { isArchived, projectId }: Opening,
  primitive: string,
  caller: Pick<Caller, 'call' | 'wokenBy'>,
): void {
  if (isArchived && isRefusedByArchive(primitive, caller))
    throw new KernelError('project_archived', { details: { project_id: projectId, primitive } });
}

export function replay(opening: Opening, key: string, requestHash: string): Accepted | undefined {
  const { unnamed } = opening;
  const operation = opening.operation ?? (unnamed?.requestHash === requestHash ? unnamed : undefined);
  if (operation === undefined) return undefined;
  if (operation.requestHash !== requestHash) {
    throw new KernelError('idempotency_conflict', {
      message: `Key '${key}' was used with other arguments.`,
      details: { idempotency_key: key, project_id: opening.projectId },
    });
  }
  return {
    projectId: opening.projectId,
    key: operation === unnamed ? key : opening.key,
    answer: operation.response,
    awaitedTurnId: operation.awaitedTurnId,
    awaitedBatchId: operation.awaitedBatchId,
    isReplay: true,
    ending: null,
  };
}

type Caller = SubmitOptions & {
  readonly call?: Pick<NonNullable<DoorOptions['call']>, 'turnId' | 'toolCallId' | 'holderId'>;
  readonly wokenBy?: TurnId;
  readonly within?: CallerTransaction;
  readonly isJobKey?: boolean;
  readonly doorJobId?: string;
  readonly doorNoteId?: string;
};

/** Keys that begin like this are made by the kernel only. */
const KERNEL_KEYS = /^(agent|auto|call|fork-result|unseen):/;

/**
 * Begins to accept a primitive. For a call it may be done beside the commit of the call: what is looked up is decided again by the
 * write, under the fence of the turn.
 *
 * @throws KernelError for an unknown primitive and arguments that do not fit.
 */
export function begin(runtime: RuntimeCore, primitive: string, args: unknown, options: Caller): Begun {
  const handler = runtime.handlers.get(primitive);
  if (handler === undefined) {
    const name = String(primitive).slice(0, 80);
    const known = [...runtime.handlers.keys()].sort();
    throw new KernelError('unknown_primitive', {
      message: `No primitive '${name}'; known are ${known.join(', ')}${meant(name, known) || '.'}`,
      details: { primitive },
    });
  }
  const code = codeOf(runtime, { primitive, handler }, options);
  const { input, plain } = parseInput(primitive, handler, { args, code });
  checkText(options.idempotencyKey, 'idempotency_key', 500);
  if (
    options.idempotencyKey !== undefined &&
    options.wokenBy === undefined &&
    KERNEL_KEYS.test(options.idempotencyKey)
  )
    throw new KernelError('bad_request', {
      message:
        'idempotency_key: keys that begin with agent:, auto:, call:, fork-result: or unseen: are made by the kernel only.',
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
    options.isJobKey !== true;
  const request = { key, isOwnKey, profileNames: outside(code, () => handler.profileNames?.(input) ?? []) };
  const opening = open(runtime, options, request);
  // Whoever accepts it hears of the failure; a call that is never committed nobody accepts.
  opening.catch(() => undefined);
  return { primitive, handler, input, plain, request, opening };
}
