/** A request for a handoff as it was received: its source agent, its key and its parent handoff. Nothing is decided here. */
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

/** The tools and rules with which a request is carried out, in one try of its submission. */
export interface RequestScope {
  readonly runtime: RuntimeCore;
  readonly parts: HandoffParts;
  /** The gate of the tool that makes the request, or else the gate of the runtime. */
  readonly gate: CallGateOptions;
  readonly tools: KernelTools;
  /** Set when another platform calls a public agent. */
  readonly origin?: TaskOrigin | undefined;
  /** Set when a session is handed on. */
  readonly session?: HandedSession | undefined;
}

/** The mode of a request, and its place in a chain. */
export interface MadeAs {
  readonly mode: HandoffMode;
  /** Counts from 1. Null outside chains, and for the chain itself. */
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
  /** The hash of the arguments. A second request under the same key must have the same hash. */
  readonly hash: string;
}

/** A hop acts for the agent that began its chain. The rights of that agent were checked when the chain began. */
export const isOfChain = ({ hop }: Pick<Asked, 'hop'>): boolean => hop !== null;

/** @throws KernelError `bad_request` for a source agent that the caller may not name, and for a key that is too long. */
export function readRequest({ tools, origin }: RequestScope, input: HandoffArguments, as: MadeAs): Asked {
  const sourceAgent = as.sourceAgent ?? sourceOf(input, tools);
  return {
    ...as,
    handoffId: newId<'handoff'>(),
    sourceAgent,
    input,
    // A key in the context of a hop is meant for the target of the hop. Each hop is a handoff of its own.
    key: isOfChain(as) ? input.idempotency_key : keyOf(input),
    hash: hashOf(input, sourceAgent, origin),
  };
}

const badSource = (name: string): KernelError =>
  new KernelError('bad_request', {
    message: `arguments.source_agent: ${name}.`,
    details: { field: 'arguments.source_agent' },
  });

/** An agent makes requests in its own name; a caller outside may use any name. A function makes requests in the name of the operator. */
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

/** @throws KernelError `bad_request` for a key in the context that is longer than a key in the arguments may be. */
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
  // Requests that use different names of the same platform are the same request.
  const first = platform && (normalizePlatform(platform) ?? platform.toLowerCase());
  return argsHash({
    ...rest,
    ...(first === undefined ? {} : { platform: first }),
    source_agent: sourceAgent,
    ...(origin === undefined ? {} : { conversation: origin.conversation }),
  });
}

/**
 * The answer to a request whose key was used before. Undefined: the key is new.
 *
 * @throws KernelError `idempotency_conflict` when the first request had other arguments.
 */
export async function findFirst(
  { tools }: Pick<RequestScope, 'tools'>,
  { key, hash }: Asked,
): Promise<JsonValue | undefined> {
  const { db, tx, ctx } = tools;
  if (key === undefined) return undefined;
  // The second of two simultaneous requests waits for the first request, and then finds it.
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
 * The parent of the new handoff: the handoff that the calling turn serves, or the handoff that a caller outside names.
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
