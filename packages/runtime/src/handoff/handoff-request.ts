/** A request for a handoff as it was asked: who asks, under which key, and as a part of what. Nothing is decided here. */
import {
  argsHash,
  type HandoffArguments,
  type HandoffId,
  type HandoffMode,
  type JsonObject,
  type JsonValue,
  KernelError,
  MAX_HANDOFF_KEY,
  normalizePlatform,
  parseId,
} from '@boxcar/kernel';
import {
  findHandoff,
  findHandoffPlace,
  findKeyedHandoff,
  type HandoffPlace,
  lockHandoffKey,
} from '@boxcar/store';
import type { CallGateOptions, RuntimeCore } from '../core/index.js';
import type { KernelTools } from '../handler/index.js';
import { newId } from '../lib/index.js';
import type { TaskOrigin } from './conversation-agent.js';
import type { HandedSession } from './handed-session.js';
import type { HandoffParts } from './parts.js';

/** What a request is carried out with, in one try of its submission. */
export interface RequestScope {
  readonly runtime: RuntimeCore;
  readonly parts: HandoffParts;
  /** That of the tool that asks, else that of the runtime. */
  readonly gate: CallGateOptions;
  readonly tools: KernelTools;
  /** Set when another platform calls a public agent. */
  readonly origin?: TaskOrigin | undefined;
  /** Set when a session is handed on. */
  readonly session?: HandedSession | undefined;
}

/** In whose place a request is made, and where in a chain. */
export interface MadeAs {
  readonly mode: HandoffMode;
  /** From 1; null outside chains, and for the chain itself. */
  readonly hop: number | null;
  readonly compensates: HandoffId | null;
  /** The agent that began the chain, for the chain and its hops. Default: the caller. */
  readonly sourceAgent?: string | undefined;
}

/** A request with its defaults. */
export interface Asked extends MadeAs {
  readonly handoffId: HandoffId;
  readonly sourceAgent: string;
  readonly input: HandoffArguments;
  readonly key: string | undefined;
  /** Of the arguments that a second request under the same key must have, too. */
  readonly hash: string;
}

/** A hop acts for the agent that began its chain, whose rights were checked there. */
export const isOfChain = ({ hop }: Pick<Asked, 'hop'>): boolean => hop !== null;

/** @throws KernelError `bad_request` for a source agent that the caller may not name, and for a key that is too long. */
export function readRequest({ tools, origin }: RequestScope, input: HandoffArguments, as: MadeAs): Asked {
  const sourceAgent = as.sourceAgent ?? sourceOf(input, tools);
  return {
    ...as,
    handoffId: newId<'handoff'>(),
    sourceAgent,
    input,
    // The key in the context of a hop is meant for its target: each hop is a handoff of its own.
    key: isOfChain(as) ? input.idempotency_key : keyOf(input),
    hash: hashOf(input, sourceAgent, origin),
  };
}

const badSource = (name: string): KernelError =>
  new KernelError('bad_request', {
    message: `arguments.source_agent: ${name}.`,
    details: { field: 'arguments.source_agent' },
  });

/** An agent asks in its own name, a caller outside in any name. A function asks in the name of the operator. */
function sourceOf(input: HandoffArguments, { ctx }: KernelTools): string {
  const { source, parent } = ctx;
  const given = input.source_agent;
  if (parent === undefined || source.isOperator) {
    if (given === undefined) throw badSource('is required from outside');
    return given;
  }
  if (given !== undefined && given !== source.name && given !== source.agentId)
    throw badSource(`is the calling agent, ${source.name}; leave it out`);
  return source.name;
}

/** @throws KernelError `bad_request` for a key in the context that is longer than one of the arguments may be. */
function keyOf({ idempotency_key, context }: HandoffArguments): string | undefined {
  if (idempotency_key !== undefined) return idempotency_key;
  const key = context?.idempotency_key;
  if (typeof key !== 'string' || key.trim() === '') return undefined;
  if (key.length > MAX_HANDOFF_KEY)
    throw new KernelError('bad_request', {
      message: `arguments.context.idempotency_key: has ${key.length} characters; a key has at most ${MAX_HANDOFF_KEY}.`,
      details: { field: 'arguments.context.idempotency_key' },
    });
  return key;
}

function hashOf(input: HandoffArguments, sourceAgent: string, origin: TaskOrigin | undefined): string {
  const { wait: _wait, idempotency_key: _key, platform, ...rest } = input;
  // The same platform under another of its names is the same request.
  const first = platform && (normalizePlatform(platform) ?? platform.toLowerCase());
  return argsHash({
    ...rest,
    ...(first === undefined ? {} : { platform: first }),
    source_agent: sourceAgent,
    ...(origin === undefined ? {} : { conversation: origin.conversation }),
  });
}

/**
 * The answer to a request whose key was used before. Undefined: this is the first one.
 *
 * @throws KernelError `idempotency_conflict` when the first one had other arguments.
 */
export async function findFirst(
  { tools }: Pick<RequestScope, 'tools'>,
  { key, hash }: Asked,
): Promise<JsonValue | undefined> {
  const { db, tx, ctx } = tools;
  if (key === undefined) return undefined;
  // Of two at the same moment the second waits for the first, and finds it then.
  await lockHandoffKey(tx, ctx.projectId, key);
  const first = await findKeyedHandoff(tx, ctx.projectId, key);
  if (first === undefined) return undefined;
  const handoffId = first.handoff_id;
  if (first.request_hash !== hash)
    throw new KernelError('idempotency_conflict', {
      message: `Key '${key}' was used with other arguments.`,
      details: { idempotency_key: key, handoff_id: handoffId },
    });
  const handoff = await findHandoff(db, { handoffId, projectId: ctx.projectId });
  if (handoff === undefined) return undefined;
  const { status, result, error, ticket_id, turn_id } = handoff;
  return {
    handoff_id: handoffId,
    status,
    ...(turn_id === null ? {} : { turn_id }),
    ...(status === 'completed' ? { result } : {}),
    ...(status === 'pending' && ticket_id !== null ? { ticket_id } : {}),
    ...(error === null
      ? {}
      : { error: { ...error, details: { ...error.details, handoff_id: handoffId } } as JsonObject }),
  };
}

/**
 * The handoff that the new one is a part of: the one that the calling turn serves, or the one that a caller outside names.
 *
 * @throws KernelError `bad_request`, `not_found`.
 */
export async function findPlace(
  { tools }: Pick<RequestScope, 'tools'>,
  { parent_handoff_id }: HandoffArguments,
): Promise<HandoffPlace | undefined> {
  const { db, ctx } = tools;
  if (parent_handoff_id !== undefined && ctx.parent !== undefined)
    throw new KernelError('bad_request', {
      message: 'arguments.parent_handoff_id: follows from the turn that calls; leave it out.',
      details: { field: 'arguments.parent_handoff_id' },
    });
  const handoffId =
    parent_handoff_id === undefined
      ? undefined
      : parseId<'handoff'>(parent_handoff_id, 'arguments.parent_handoff_id');
  const chain = ctx.parent?.chain.map(({ turn_id }) => turn_id) ?? [];
  if (handoffId === undefined && chain.length === 0) return undefined;
  const place = await findHandoffPlace(db, { projectId: ctx.projectId, handoffId, chain });
  if (place === undefined && handoffId !== undefined)
    throw new KernelError('not_found', {
      message: `arguments.parent_handoff_id: no handoff ${handoffId} in this project.`,
      details: { field: 'arguments.parent_handoff_id', handoff_id: handoffId },
    });
  return place;
}
