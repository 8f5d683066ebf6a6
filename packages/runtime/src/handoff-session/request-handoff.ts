/**
 * A session is handed to an agent: the handoff with its turn, the anchor and the note on the tape of the session, the right of the target,
 * and the session itself, in one transaction.
 *
 * Q1  What the policy forbids leaves a handoff that says so, and the session as it is. So does a handoff that waits for an approval.
 * Q2  The target reads the session up to the handoff. It shares all of it in a collaboration.
 * Q3  After a full handoff nobody writes to the session.
 * Rule: docs/handoff-sessions.md, "Handing on".
 */
import { createHash } from 'node:crypto';
import {
  type AgentId,
  DEFAULT_HANDOFF_INSTRUCTION,
  type HandoffRequestType,
  isJsonObject,
  type JsonObject,
  KernelError,
  requestHandoffSchema,
  type SessionStatus,
  sessionStateOf,
  summarizeSession,
} from '@boxcar/kernel';
import {
  findHandoffSession,
  type HandoffSession,
  loadSessionEdges,
  type NewContextEntry,
  type Queryable,
  type TapeActor,
  writeSessionWithin,
} from '@boxcar/store';
import type { z } from 'zod';
import type { Handler, HandlerTools, KernelTools } from '../handler/index.js';
import { failureOf, type HandoffRuntime, makeHandoff } from '../handoff/index.js';
import { type Actor, findActor, newId } from '../lib/index.js';
import { toAppendError, toNewHandoff } from '../tape/index.js';
import { systemEntry, toContextEntries } from './context-entries.js';
import type { SessionClient } from './handoff-sessions.js';
import type { HandoffRequestAnswer } from './session-answers.js';

type Request = z.output<typeof requestHandoffSchema>;

/** What was read of the session before it is handed on. */
interface Package {
  readonly session: HandoffSession;
  readonly requestType: HandoffRequestType;
  readonly summary: string;
  /** Before the entry of the handoff itself. */
  readonly contextEntries: number;
}

async function packageOf(db: Queryable, session: HandoffSession, request: Request): Promise<Package> {
  const edges = await loadSessionEdges(db, session);
  const { status } = sessionStateOf(session, session.now);
  return {
    session,
    requestType: request.request_type ?? 'context_transfer',
    summary: summarizeSession({ ...session, ...edges, status }).summary,
    contextEntries: session.lastSequence,
  };
}

/** The summary and pointers; a full handoff takes the entries along, as they are on the tape. */
const argumentsOf = (request: Request, { session, requestType, summary, contextEntries }: Package) => {
  const { instructions } = request.request_data ?? {};
  return {
    target_agent: request.target_agent,
    task:
      typeof instructions === 'string' && instructions.trim() !== ''
        ? instructions
        : DEFAULT_HANDOFF_INSTRUCTION,
    context: {
      session_key: session.sessionKey,
      request_type: requestType,
      context_summary: summary,
      context_entries: contextEntries,
      ...(request.request_data === undefined ? {} : { request_data: request.request_data }),
    },
    ...(requestType === 'full_handoff' ? { context_box_id: session.boxId } : {}),
    platform: 'agdd',
    wait: false,
  };
};

/** The anchor with its event, and the entry that clients see. */
function entriesOf(request: Request, { requestType, summary, contextEntries }: Package, actor: TapeActor) {
  const { target_agent: target, request_data: data } = request;
  const state = { target_agent: target, request_type: requestType, summary, context_entries: contextEntries };
  const said = systemEntry(`Handoff requested to agent: ${target}`, {
    action: 'handoff_requested',
    target_agent: target,
    request_type: requestType,
    ...(data === undefined ? {} : { request_data: data }),
  });
  const anchors: NewContextEntry[] = toNewHandoff(`handoff/${target}`, { state }, actor).map((entry) => ({
    type: null,
    entry,
  }));
  return [...anchors, ...toContextEntries([said], actor)];
}

async function handSession(
  runtime: HandoffRuntime,
  tools: KernelTools,
  request: Request,
): Promise<JsonObject> {
  const { projectId, source } = tools.ctx;
  const actor = { projectId, actorId: source.agentId };
  const session = await findHandoffSession(tools.db, actor, request.session_key);
  if (session?.isReadable !== true) return { outcome: 'not_found' };
  const { status } = sessionStateOf(session, session.now);
  if (status !== 'active') return { outcome: 'not_active', status };
  if (!session.isOwn) throw toAppendError({ outcome: 'forbidden' }, session.boxId, source.agentId);
  const made = await packageOf(tools.db, session, request);
  const scope = { runtime, parts: runtime.handoffs, gate: runtime.gate, tools };
  const sourceAgent = source.isOperator ? { source_agent: session.agentFrom } : {};
  const handoff = await makeHandoff(scope, { ...argumentsOf(request, made), ...sourceAgent });
  if (!isJsonObject(handoff))
    throw new KernelError('internal_error', { message: 'A handoff has no answer.' });
  const answer = { ...handoff, context_summary: made.summary, context_entries: made.contextEntries };
  const { agent_id: agentId } = handoff;
  if (typeof agentId !== 'string') return { outcome: 'waits', ...answer };
  return finishHandoff(tools, { request, made, agentId: agentId as AgentId, answer });
}

/** What becomes of the session, in the transaction of the handoff: what was gathered for it is written first. */
async function finishHandoff(
  tools: HandlerTools,
  of: {
    readonly request: Request;
    readonly made: Package;
    readonly agentId: AgentId;
    readonly answer: JsonObject;
  },
): Promise<JsonObject> {
  const { request, made, agentId, answer } = of;
  const { projectId, source } = tools.ctx;
  const actor = { projectId, actorId: source.agentId };
  const isFull = made.requestType === 'full_handoff';
  const written = await writeSessionWithin(tools.tx, {
    ...actor,
    sessionKey: request.session_key,
    entries: entriesOf(request, made, actor),
    dedupKey: newId(),
    isNamed: false,
    end: isFull ? 'completed' : undefined,
    handsTo: {
      agentTo: request.target_agent,
      agentId,
      isShared: made.requestType === 'collaboration',
    },
  });
  switch (written.outcome) {
    case 'written':
      return { outcome: 'handed_on', ...answer };
    // It has ended since it was read: nothing of the handoff is kept.
    case 'not_active':
    case 'not_found':
      throw new KernelError('conflict', {
        message: `Session '${request.session_key}' has ended meanwhile.`,
        next: 'Read the session again.',
        details: { session_key: request.session_key },
      });
    case 'refused':
      throw toAppendError(written.append, written.boxId, source.agentId);
    default:
      return written satisfies never;
  }
}

const handlerOf = (runtime: HandoffRuntime): Handler<Request> => ({
  description: 'Hands a session to an agent.',
  input: requestHandoffSchema,
  failureOf,
  handle: (request, tools) => handSession(runtime, tools as KernelTools, request),
});

/** Of a client: the same key of another one is another key. */
const keyOf = ({ agentId }: Actor, key: string): string =>
  `session:${createHash('sha256')
    .update(JSON.stringify([agentId, key]))
    .digest('hex')}`;

const toAnswer = (answer: JsonObject): HandoffRequestAnswer => {
  switch (answer.outcome) {
    case 'not_found':
      return { outcome: 'not_found' };
    case 'not_active':
      return { outcome: 'not_active', status: answer.status as SessionStatus };
    default:
      return {
        outcome: answer.outcome === 'waits' ? 'waits' : 'handed_on',
        handoff_id: String(answer.handoff_id),
        turn_id: typeof answer.turn_id === 'string' ? answer.turn_id : null,
        ticket_id: typeof answer.ticket_id === 'string' ? answer.ticket_id : null,
        context_summary: String(answer.context_summary),
        context_entries: Number(answer.context_entries),
      };
  }
};

/**
 * Hands a session to an agent or a profile of this project.
 *
 * @throws KernelError `bad_request`; `not_found` for a target that there is not; what the policy says; `conflict` when the session ends at
 *   the same moment; `idempotency_conflict`.
 */
export async function requestHandoff(
  runtime: HandoffRuntime,
  input: unknown,
  { projectId: project = 'default', as = 'operator' }: SessionClient = {},
): Promise<HandoffRequestAnswer> {
  const actor = await findActor(runtime.pool, project, as);
  const { idempotency_key: key } = Object(input) as { readonly idempotency_key?: unknown };
  const { answer } = await runtime.accept('handoff', input, {
    projectId: actor.projectId,
    ...(actor.agentId === actor.operatorId ? {} : { sourceAgentId: actor.agentId }),
    ...(typeof key === 'string' ? { idempotencyKey: keyOf(actor, key) } : {}),
    handler: handlerOf(runtime) as Handler,
  });
  if (!isJsonObject(answer)) throw new KernelError('internal_error', { message: 'A handoff has no answer.' });
  return toAnswer(answer);
}
