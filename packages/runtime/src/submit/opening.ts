/** Whether a submission is well-formed, who it comes from, and what has been answered under its key. */
import {
  isFinal,
  isJsonObject,
  isPlainName,
  type JsonValue,
  KernelError,
  PLAIN_NAME,
  parseId,
  parseJsonValue,
  toBadRequest,
  tryParseId,
} from '@boxcar/kernel';
import type { Opening } from '@boxcar/store';
import type { Handler } from '../handler.js';
import { newId } from '../packer.js';
import type { RuntimeCore } from '../runtime.js';
import { parseArguments } from '../tool.js';
import type { Accepted, DoorOptions, SubmitOptions } from './options.js';

function parseInput<I>(
  primitive: string,
  handler: Handler<I>,
  args: unknown,
): { input: I; plain: JsonValue } {
  const plain = parseJsonValue(args, 'arguments');
  if (!isJsonObject(plain))
    throw new KernelError('bad_request', {
      message: `${primitive}: arguments must be an object.`,
      details: { primitive },
    });
  const parsed = parseArguments(handler.input, plain);
  if (!parsed.success) throw toBadRequest(parsed.error, 'arguments');
  return { input: parsed.data, plain };
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

export type Opened = Opening & { readonly source: NonNullable<Opening['source']> };

/** @throws KernelError `not_found` for project, source agent or calling turn. */
export async function open(
  runtime: RuntimeCore,
  options: Caller,
  { key, profileNames }: { readonly key: string; readonly profileNames: readonly string[] },
): Promise<Opened> {
  checkText(options.projectId, 'project_id', 200);
  checkText(options.sourceAgentId, 'source_agent_id', 200);
  checkText(options.channelId, 'channel_id', 200);
  checkText(options.traceparent, 'traceparent', 200);
  const project = options.projectId ?? 'default';
  const opening = await runtime.open({
    project: tryParseId(project) ?? project,
    sourceAgentId:
      options.sourceAgentId === undefined ? undefined : tryParseId<'agent'>(options.sourceAgentId),
    sourceAgentName: options.sourceAgentId,
    idempotencyKey: key,
    profileNames,
    parentTurnId:
      options.call?.turnId ??
      (options.parentTurnId === undefined
        ? undefined
        : parseId<'turn'>(options.parentTurnId, 'parent_turn_id')),
  });
  if (opening === undefined)
    throw new KernelError('not_found', {
      message: `No project '${project}'.`,
      details: { project_id: project },
    });
  const { source } = opening;
  if (source === undefined) {
    throw new KernelError('not_found', {
      message: `No agent '${options.sourceAgentId ?? ''}' in project '${project}'.`,
      details: { source_agent_id: options.sourceAgentId, project_id: opening.projectId },
    });
  }
  const parentTurnId = options.call?.turnId ?? options.parentTurnId;
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
export function checkParent({ parent, source }: Opening): void {
  if (parent === undefined) return;
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

export function replay(opening: Opening, key: string, requestHash: string): Accepted | undefined {
  const { operation } = opening;
  if (operation === undefined) return undefined;
  if (operation.requestHash !== requestHash) {
    throw new KernelError('idempotency_conflict', {
      message: `Key '${key}' was used with other arguments.`,
      details: { idempotency_key: key, project_id: opening.projectId },
    });
  }
  return {
    projectId: opening.projectId,
    answer: operation.response,
    awaitedTurnId: operation.awaitedTurnId,
    awaitedBatchId: operation.awaitedBatchId,
    isReplay: true,
    ending: null,
  };
}

type Caller = SubmitOptions & {
  readonly call?: Pick<NonNullable<DoorOptions['call']>, 'turnId' | 'toolCallId'>;
};

/** A primitive whose arguments are valid, and whose caller is being looked up. */
export interface Begun {
  readonly primitive: string;
  readonly handler: Handler;
  readonly input: unknown;
  readonly plain: JsonValue;
  readonly request: { readonly key: string; readonly profileNames: readonly string[] };
  readonly opening: Promise<Opened>;
}

/**
 * Begins to accept a primitive. For a call it may be done beside the commit of the call: what is looked up is decided again by the
 * write, under the fence of the turn.
 *
 * @throws KernelError for an unknown primitive and arguments that do not fit.
 */
export function begin(runtime: RuntimeCore, primitive: string, args: unknown, options: Caller): Begun {
  const handler = runtime.handlers.get(primitive);
  if (handler === undefined) {
    throw new KernelError('unknown_primitive', {
      message: `No primitive '${String(primitive).slice(0, 80)}'; known are ${[...runtime.handlers.keys()].sort().join(', ')}.`,
      details: { primitive },
    });
  }
  const { input, plain } = parseInput(primitive, handler, args);
  checkText(options.idempotencyKey, 'idempotency_key', 500);
  if (options.idempotencyKey !== undefined && /^(auto|call):/.test(options.idempotencyKey))
    throw new KernelError('bad_request', {
      message: 'idempotency_key: keys that begin with auto: or call: are the kernel’s own.',
      details: { field: 'idempotency_key' },
    });
  const key =
    options.call === undefined
      ? (options.idempotencyKey ?? `auto:${newId()}`)
      : `call:${options.call.toolCallId}`;
  const request = { key, profileNames: handler.profileNames?.(input) ?? [] };
  const opening = open(runtime, options, request);
  // Whoever accepts it hears of the failure; a call that is never committed nobody accepts.
  opening.catch(() => undefined);
  return { primitive, handler, input, plain, request, opening };
}
