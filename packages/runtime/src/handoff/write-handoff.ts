/**
 * The rows of a handoff: its cards, its ticket or its turn, its own row and the beginning of its log, all in the transaction of the
 * request. A turn serves the handoff on other platforms too: only processes with the adapter or the function take such a turn.
 */
import {
  DEFAULT_HANDOFF_RETRY,
  DEFAULT_HANDOFF_SECONDS,
  type ErrorBody,
  type HandoffPhase,
  handoffStatusOf,
  type JsonObject,
  type JsonValue,
} from '@boxcar/kernel';
import type { HandoffPlace, NewHandoff, NewHandoffEvent } from '@boxcar/store';
import type { KernelTools, TurnRef } from '../handler/index.js';
import { cacheKeyOf, type Decided } from './decide-handoff.js';
import { priorityOf } from './handed-session.js';
import { type Asked, isOfChain, type RequestScope } from './handoff-request.js';
import { type PackedCards, packHandoff } from './pack-handoff.js';
import { requestTicket, type TicketRequest } from './request-ticket.js';
import { QUEUE_ROOM_MS, turnOf } from './serving-turn.js';
import type { WantedEnds } from './wanted-ends.js';

/** The request and the decision about it. */
interface Settled {
  readonly asked: Asked;
  readonly place: HandoffPlace | undefined;
  readonly decided: Decided;
  readonly wanted: WantedEnds;
}

/** The rows that were made for the request. */
interface Made {
  readonly packed: PackedCards;
  /** Set for a handoff that waits for an approval. */
  readonly ticket: TicketRequest | undefined;
  /** Set for a handoff that may run. */
  readonly turn: TurnRef | undefined;
  /** The error of a refused handoff; it contains the id of the handoff. */
  readonly error: ErrorBody | null;
  readonly events: readonly NewHandoffEvent[];
}

const timeoutOf = ({ input }: Asked): number => Math.ceil((input.timeout ?? DEFAULT_HANDOFF_SECONDS) * 1000);

/** A waiting call of a turn gets the result of the handoff as its own result. */
const isAwaitedBy = ({ toolCallId }: KernelTools, { input }: Asked): boolean =>
  toolCallId !== undefined && input.wait !== false;

export async function writeHandoff(scope: RequestScope, settled: Settled): Promise<JsonValue> {
  const { tools } = scope;
  const { asked, decided } = settled;
  const packed = await packHandoff(tools, asked, {
    workerTarget: decided.route.workerTarget,
    // A client that fetches the session reads its entries in the session itself.
    session: decided.route.isFetched === true ? undefined : scope.session,
  });
  const ticket = await askForApproval(tools, settled);
  const turn = await serve(scope, settled, packed);
  const error =
    decided.kind === 'refused'
      ? { ...decided.error, details: { ...decided.error.details, handoff_id: asked.handoffId } }
      : null;
  const made: Made = { packed, ticket, turn, error, events: eventsOf(settled, ticket) };
  tools.addHandoff(rowOf(scope, settled, made));
  for (const { type, data } of made.events) tools.logLater(type, { handoff_id: asked.handoffId, ...data });
  return answerOf(settled, made);
}

async function askForApproval(
  tools: KernelTools,
  { asked, decided, wanted }: Settled,
): Promise<TicketRequest | undefined> {
  if (decided.kind !== 'park') return undefined;
  const { route, policy, approvalMs } = decided;
  const isAwaited = isAwaitedBy(tools, asked);
  const ticket = await requestTicket(
    { tools, approvalMs },
    {
      asked,
      platform: route.platform,
      targetAgent: route.targetAgent,
      callbackUrl: wanted.callbackUrl,
      policy,
      isAwaited,
      toolCallId: tools.toolCallId ?? null,
    },
  );
  if (isAwaited) tools.waitElsewhere(approvalMs + timeoutOf(asked) + QUEUE_ROOM_MS);
  return ticket;
}

async function serve(
  { tools, session }: RequestScope,
  { asked, decided }: Settled,
  { contextBoxId }: PackedCards,
): Promise<TurnRef | undefined> {
  if (decided.kind !== 'run') return undefined;
  const turn = await turnOf(tools, {
    route: decided.route,
    contextBoxId,
    timeoutMs: timeoutOf(asked),
    wait: asked.input.wait !== false,
    isTrusted: isOfChain(asked),
    priority: session === undefined ? undefined : priorityOf(asked.input.context),
  });
  return tools.submitTurn(turn);
}

/** The first phase of a row. */
function phaseOf(decided: Decided): HandoffPhase {
  switch (decided.kind) {
    case 'run':
    case 'fetch':
      return 'pending';
    case 'cached':
      return 'completed';
    case 'park':
      return 'awaiting_approval';
    case 'refused':
      return decided.phase;
    default:
      return decided satisfies never;
  }
}

function eventsOf(
  { asked, decided }: Settled,
  ticket: TicketRequest | undefined,
): readonly NewHandoffEvent[] {
  const { route } = decided;
  const phase = phaseOf(decided);
  const requested: NewHandoffEvent = {
    type: 'handoff.requested',
    data: { source_agent: asked.sourceAgent, target_agent: route.targetAgent, platform: route.platform },
  };
  if (ticket !== undefined) {
    const timeout_minutes = ticket.timeoutMs / 60_000;
    return [requested, { type: 'approval.required', data: { ticket_id: ticket.id, timeout_minutes } }];
  }
  if (decided.kind === 'cached')
    return [
      requested,
      { type: 'handoff.cached', data: { cached_from: decided.cached.handoff_id } },
      { type: 'handoff.completed', data: { status: phase, phase } },
    ];
  if (decided.kind === 'refused')
    return [requested, { type: `handoff.${phase}`, data: { status: phase, code: decided.error.code } }];
  return [requested];
}

function rowOf({ tools, origin, session }: RequestScope, settled: Settled, made: Made): NewHandoff {
  const { asked, place, decided, wanted } = settled;
  const { ctx, toolCallId } = tools;
  const { handoffId, input } = asked;
  const { route, policy } = decided;
  const { packed, ticket, turn, error, events } = made;
  const { retry = DEFAULT_HANDOFF_RETRY } = input;
  const cachedFrom = decided.kind === 'cached' ? decided.cached.handoff_id : null;
  return {
    id: handoffId,
    projectId: ctx.projectId,
    phase: phaseOf(decided),
    isEnded: decided.kind === 'refused' || decided.kind === 'cached',
    sourceAgent: asked.sourceAgent,
    sourceAgentId: ctx.source.agentId,
    targetAgent: route.targetAgent,
    platform: route.platform,
    runId: input.run_id ?? null,
    parentTurnId: ctx.parent?.turnId ?? null,
    toolCallId: toolCallId ?? null,
    isAwaited: isAwaitedBy(tools, asked),
    ...packed,
    workerTarget: route.workerTarget,
    turnId: turn?.turnId ?? null,
    ticketId: ticket?.id ?? null,
    rootHandoffId: place?.root_handoff_id ?? handoffId,
    parentHandoffId: place?.handoff_id ?? null,
    depth: place === undefined ? 0 : place.depth + 1,
    mode: asked.mode,
    hop: asked.hop,
    compensates: asked.compensates,
    cachedFrom,
    cacheKey: input.cache === undefined || cachedFrom !== null ? null : cacheKeyOf(asked, route),
    cacheSeconds: input.cache?.ttl_seconds ?? null,
    decision: policy === undefined ? null : (policy as unknown as JsonObject),
    error,
    timeoutMs: timeoutOf(asked),
    retry: {
      max_attempts: retry.max_attempts,
      base_ms: retry.base_seconds * 1000,
      max_ms: retry.max_seconds * 1000,
    },
    idempotencyKey: asked.key ?? null,
    requestHash: asked.hash,
    callbackUrl: wanted.callbackUrl,
    toldAgentId: wanted.toldAgentId,
    notifies: wanted.toldAgentId === null ? null : true,
    publicAgent: origin?.publicAgent ?? null,
    conversation: origin?.conversation ?? null,
    messageId: origin?.messageId ?? null,
    servingAgentId: origin?.servingAgentId ?? null,
    sessionId: session?.id ?? null,
    sessionRequest: session?.requestType ?? null,
    sessionHead: null,
    events,
  };
}

function answerOf({ asked, decided }: Settled, { packed, ticket, turn, error }: Made): JsonValue {
  const { workerTarget } = decided.route;
  const isToBeServed = decided.kind === 'run' || decided.kind === 'park';
  return {
    handoff_id: asked.handoffId,
    status: handoffStatusOf(phaseOf(decided)),
    context_box_id: packed.contextBoxId,
    ...(turn === undefined
      ? {}
      : { turn_id: turn.turnId, agent_id: turn.agentId, output_box_id: turn.outputBoxId }),
    ...(decided.kind === 'cached'
      ? { result: decided.cached.result, cached: true, cached_from: decided.cached.handoff_id }
      : {}),
    ...(isToBeServed && workerTarget !== null ? { served_by: workerTarget } : {}),
    ...(ticket === undefined ? {} : { ticket_id: ticket.id }),
    ...(error === null ? {} : { error: error as unknown as JsonObject }),
  };
}
