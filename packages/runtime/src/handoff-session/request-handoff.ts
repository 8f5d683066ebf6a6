/**
 * Hands a session on: writes the handoff with its turn, the anchor and the note on the tape of the session, the grant of the target, and
 * the session itself, in one transaction.
 *
 * Q1  A request that the policy forbids leaves a rejected handoff, and the session does not change. While a handoff waits for its approval
 *     the session does not change either; all changes are made with the approval.
 * Q2  The target may read the session up to the handoff. In a collaboration, the target shares the whole session.
 * Q3  After a full handoff no client can write to the session.
 * Q4  A target that is not an agent of this installation fetches the package (`packages.ts`).
 * Q5  The cost does not grow with the session, except for a full handoff, which passes the entries on by reference.
 * Rule: docs/reference/handoff-sessions.md, "Handing on".
 */
import { createHash } from 'node:crypto';
import {
  type AgentId,
  DEFAULT_HANDOFF_INSTRUCTION,
  formatTapeRef,
  type HandoffId,
  type HandoffRequestType,
  type InheritedBox,
  isJsonObject,
  type JsonObject,
  KernelError,
  MAX_CONTEXT_CARDS,
  readHandoffTarget,
  requestHandoffSchema,
  type SessionHandoffRequest,
  sessionStateOf,
  summarizeSession,
  targetsOf,
} from '@boxcar/kernel';
import {
  findHandoffSession,
  findRecentEntries,
  findSessionPackage,
  type HandoffSession,
  loadSessionEdges,
  loadTapeSlice,
  lockAgents,
  type TapeActor,
} from '@boxcar/store';
import { assemble, type Handler, type KernelTools } from '../handler/index.js';
import {
  failureOf,
  type HandoffRuntime,
  handSessionOn,
  makeHandoff,
  type SessionContext,
  type SessionTarget,
} from '../handoff/index.js';
import { type Actor, findActor } from '../lib/index.js';
import { toAppendError } from '../tape/index.js';
import type { SessionClient } from './handoff-sessions.js';
import { summarizeByModel } from './model-summary.js';
import { type HandoffRequestAnswer, type RequestedTarget, toSessionAnswer } from './session-answers.js';

/** Limits of the part of a session that goes along, the newest entries first. The rest is read from its tape. */
const MAX_PACKED_TOKENS = 16_000;
const MAX_PACKED_ENTRIES = 200;
const MAX_WHOLE_ENTRIES = 5_000;
/** Space for the other cards of the context box. */
const ROOM = 10;
/** The session's own client may read the whole tape. */
const ALL_READABLE = '{[1,)}';

/** The request is refused and nothing is stored: it may be repeated under the same key. */
class Refused extends Error {
  readonly outcome: 'not_found' | 'not_active';

  constructor(outcome: Refused['outcome']) {
    super(outcome);
    this.outcome = outcome;
  }
}

/** Summarizes a session by a model, if one is configured. */
type Summarize = (session: HandoffSession) => Promise<string | undefined>;

/** The data of the session before it is handed on. */
interface Package {
  readonly session: HandoffSession;
  readonly context: SessionContext;
  /** The summary is made from counts, and contains no words of the client. */
  readonly isCounted: boolean;
  readonly inherited: readonly InheritedBox[];
}

async function packageOf(
  runtime: HandoffRuntime,
  { db }: KernelTools,
  {
    session,
    request,
    summary,
  }: {
    readonly session: HandoffSession;
    readonly request: SessionHandoffRequest;
    /** The summary of a model. Default: a summary from counts. */
    readonly summary: string | undefined;
  },
): Promise<Package> {
  const { request_type: requestType = 'context_transfer', request_data } = request;
  const isWhole = requestType === 'full_handoff';
  const room = (runtime.limits.maxContextCards ?? MAX_CONTEXT_CARDS) - ROOM;
  const [edges, stretch] = await Promise.all([
    loadSessionEdges(db, session),
    findRecentEntries(
      db,
      session,
      isWhole
        ? { isWhole, maxEntries: Math.max(Math.min(MAX_WHOLE_ENTRIES, room), 0) }
        : {
            isWhole,
            maxEntries: Math.max(Math.min(MAX_PACKED_ENTRIES, room), 0),
            maxTokens: MAX_PACKED_TOKENS,
          },
    ),
  ]);
  if (stretch === undefined)
    throw new KernelError('internal_error', { message: 'The tape of a session is gone.' });
  const { boxId, workspace, firstSequence: _first, ...slice } = stretch;
  const entries =
    slice.from > slice.to ? [] : await loadTapeSlice(db, slice, { box_id: boxId, readable: ALL_READABLE });
  const { status } = sessionStateOf(session, session.now);
  return {
    session,
    isCounted: summary === undefined,
    inherited: assemble(entries, new Map(), { argument: 'session_key', isFull: true, rule: 'inherit' }),
    context: {
      session_key: session.sessionKey,
      request_type: requestType,
      context_summary: summary ?? summarizeSession({ ...session, ...edges, status }).summary,
      context_entries: session.lastSequence,
      tape_ref: formatTapeRef({
        workspace,
        tape: boxId,
        target: { kind: 'entry', position: slice.to },
        head: null,
      }),
      ...(request_data === undefined ? {} : { request_data }),
    },
  };
}

const argumentsOf = (target: string, { session, context }: Package, { ctx }: KernelTools) => {
  const instructions = context.request_data?.instructions;
  return {
    target_agent: target,
    task: typeof instructions === 'string' ? instructions : DEFAULT_HANDOFF_INSTRUCTION,
    context: context as unknown as JsonObject,
    platform: 'agdd',
    wait: false,
    source_agent: ctx.source.isOperator ? session.agentFrom : ctx.source.name,
  };
};

/** When one of several targets is refused, the whole request is refused. */
function checkRefusal(answer: JsonObject, target: string): void {
  const error = failureOf(answer);
  if (error === undefined) return;
  throw new KernelError('permission_denied', {
    message: `${target}: ${error.message}`,
    details: { ...error.details, handoff_id: undefined, target_agent: target, code: error.code },
  });
}

interface Made extends RequestedTarget {
  readonly handoff_id: HandoffId;
  readonly agentId: AgentId | null;
}

async function makeOne(
  runtime: HandoffRuntime,
  tools: KernelTools,
  of: { readonly target: string; readonly made: Package; readonly isOnly: boolean },
): Promise<Made | JsonObject> {
  const { target, made, isOnly } = of;
  const session = {
    id: made.session.id,
    requestType: made.context.request_type,
    inherited: made.inherited,
  };
  const scope = { runtime, parts: runtime.handoffs, gate: runtime.gate, tools, session };
  const answer = await makeHandoff(scope, argumentsOf(target, made, tools));
  if (!isJsonObject(answer)) throw new KernelError('internal_error', { message: 'A handoff has no answer.' });
  if (!isOnly) checkRefusal(answer, target);
  if (failureOf(answer) !== undefined) return answer;
  const { handoff_id, turn_id = null, ticket_id = null, agent_id = null } = answer;
  return {
    target_agent: target,
    handoff_id: handoff_id as HandoffId,
    turn_id: turn_id as string | null,
    ticket_id: ticket_id as string | null,
    status:
      ticket_id !== null
        ? 'pending_approval'
        : made.context.request_type === 'full_handoff'
          ? 'completed'
          : 'active',
    agentId: agent_id as AgentId | null,
  };
}

/**
 * Locks all agents with one statement, in the order of their ids. If they were locked one after the other, two requests could wait for each
 * other.
 */
async function lockTargets(tools: KernelTools, targets: readonly string[]): Promise<void> {
  const found = await tools.findAgents(targets.map((target) => readHandoffTarget(target).name));
  const ids = found.flatMap((agent) => agent?.agentId ?? []);
  if (ids.length > 1) await lockAgents(tools.tx, ids);
}

async function handSession(
  runtime: HandoffRuntime,
  tools: KernelTools,
  { request, summarize }: { readonly request: SessionHandoffRequest; readonly summarize: Summarize },
): Promise<JsonObject> {
  const { projectId, source } = tools.ctx;
  const session = await findHandoffSession(
    tools.db,
    { projectId, actorId: source.agentId },
    request.session_key,
  );
  if (session?.isReadable !== true) throw new Refused('not_found');
  if (sessionStateOf(session, session.now).status !== 'active') throw new Refused('not_active');
  if (!session.isOwn) throw toAppendError({ outcome: 'forbidden' }, session.boxId, source.agentId);
  // Nothing has been written yet, so the wait for the summary holds no connection.
  const summary = await summarize(session);
  const made = await packageOf(runtime, tools, { session, request, summary });
  const targets = targetsOf(request);
  if (targets.length > 1) await lockTargets(tools, targets);
  const all: Made[] = [];
  for (const target of targets) {
    const one = await makeOne(runtime, tools, { target, made, isOnly: targets.length === 1 });
    // A refusal of the only target has a row. It is returned as an error, and the row stays.
    if (!('target_agent' in one)) return one as JsonObject;
    all.push(one as Made);
  }
  const handed = all.filter(({ ticket_id }) => ticket_id === null);
  if (handed.length > 0)
    await handSessionOn(tools, {
      sessionId: session.id,
      isNew: true,
      context: made.context,
      targets: handed.map(
        ({ handoff_id: handoffId, target_agent: name, agentId }): SessionTarget => ({
          handoffId,
          name,
          agentId,
        }),
      ),
    });
  return {
    outcome: handed.length > 0 ? 'handed_on' : 'waits',
    source_agent: session.agentFrom,
    targets: all.map(({ agentId: _agent, ...target }) => ({ ...target })),
    ...answerOf(made),
  };
}

/**
 * The summary part of the answer. Answers are stored unchanged, and words of the client may be stored only in cards. So a summary of a
 * model is left out here and read from its card.
 */
const answerOf = ({ context, isCounted }: Package) => {
  const { session_key, request_type, context_summary, context_entries } = context;
  return { session_key, request_type, context_entries, ...(isCounted ? { context_summary } : {}) };
};

function handlerOf(runtime: HandoffRuntime): Handler<SessionHandoffRequest> {
  const { summaryModel: model } = runtime;
  let summary: ReturnType<Summarize> | undefined;
  // The model is asked once, even if the handler runs several times.
  const summarize: Summarize = (session) => {
    summary ??=
      model === undefined ? Promise.resolve(undefined) : summarizeByModel(runtime, session, { model });
    return summary;
  };
  return {
    description: 'Hands a session to an agent.',
    input: requestHandoffSchema,
    failureOf,
    handle: (request, tools) => handSession(runtime, tools as KernelTools, { request, summarize }),
  };
}

/** Equal keys of different clients are different keys. */
const keyOf = ({ agentId }: Actor, key: string): string =>
  `session:${createHash('sha256')
    .update(JSON.stringify([agentId, key]))
    .digest('hex')}`;

/** The client's name for a package. */
export const cacheKeyOf = (target: string, sessionKey: string): string => `handoff:${target}:${sessionKey}`;

async function summaryIn(runtime: HandoffRuntime, actor: TapeActor, answer: JsonObject): Promise<string> {
  if (typeof answer.context_summary === 'string') return answer.context_summary;
  const [first] = answer.targets as unknown as readonly [RequestedTarget];
  const found = await findSessionPackage(runtime.pool, actor, first.handoff_id as HandoffId);
  const summary = found?.context?.context_summary;
  return typeof summary === 'string' ? summary : '';
}

async function toAnswer(
  runtime: HandoffRuntime,
  actor: TapeActor,
  { answer, session }: { readonly answer: JsonObject; readonly session: HandoffSession },
): Promise<HandoffRequestAnswer> {
  const targets = answer.targets as unknown as readonly [RequestedTarget, ...RequestedTarget[]];
  const [first] = targets;
  return {
    outcome: answer.outcome === 'waits' ? 'waits' : 'handed_on',
    session: toSessionAnswer(session),
    ...first,
    source_agent: String(answer.source_agent),
    request_type: answer.request_type as HandoffRequestType,
    context_summary: await summaryIn(runtime, actor, answer),
    context_entries: Number(answer.context_entries),
    cache_key: cacheKeyOf(first.target_agent, session.sessionKey),
    targets,
  };
}

/** The answer of the request, or a refusal if the request was not made. */
async function acceptRequest(
  runtime: HandoffRuntime,
  input: unknown,
  actor: Actor,
): Promise<JsonObject | Refused> {
  const { idempotency_key: key } = Object(input) as Readonly<Record<string, unknown>>;
  try {
    const { answer } = await runtime.accept('handoff', input, {
      projectId: actor.projectId,
      ...(actor.agentId === actor.operatorId ? {} : { sourceAgentId: actor.agentId }),
      ...(typeof key === 'string' ? { idempotencyKey: keyOf(actor, key) } : {}),
      handler: handlerOf(runtime) as Handler,
    });
    if (isJsonObject(answer)) return answer;
  } catch (error) {
    if (error instanceof Refused) return error;
    throw error;
  }
  throw new KernelError('internal_error', { message: 'A handoff has no answer.' });
}

/**
 * Hands a session to agents or profiles of this project, or leaves a package for a client to fetch.
 *
 * @throws KernelError `bad_request`; the error of the policy; `conflict` when the session ends at the same moment; `idempotency_conflict`.
 */
export async function requestHandoff(
  runtime: HandoffRuntime,
  input: unknown,
  { projectId: project = 'default', as = 'operator' }: SessionClient = {},
): Promise<HandoffRequestAnswer> {
  const actor = await findActor(runtime.pool, project, as);
  const answer = await acceptRequest(runtime, input, actor);
  const { session_key: given } = Object(input) as Readonly<Record<string, unknown>>;
  const isMade = !(answer instanceof Refused);
  const sessionKey = isMade && typeof answer.session_key === 'string' ? answer.session_key : String(given);
  const reader = { projectId: actor.projectId, actorId: actor.agentId };
  const session = await findHandoffSession(runtime.pool, reader, sessionKey);
  if (session?.isReadable !== true || (!isMade && answer.outcome === 'not_found'))
    return { outcome: 'not_found', session_key: sessionKey };
  if (!isMade) return { outcome: 'not_active', session: toSessionAnswer(session) };
  return toAnswer(runtime, reader, { answer, session });
}
