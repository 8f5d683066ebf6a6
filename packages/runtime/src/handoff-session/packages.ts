/**
 * Packages: sessions that are handed to a client that is not an agent of this installation. The client fetches or rejects the package, and
 * later reports the result.
 *
 * K1  Calls can be repeated. Of two clients that fetch a package, the first gets it.
 * K2  A package has a summary and the place of the entries. The summary is stored with the handoff. After a day, or after an erasure, it is
 *     made again from the session with the rights of the reading client. So no copy can be lost or become outdated.
 * Rule: docs/reference/handoff-sessions.md, "Packages".
 */
import {
  acceptHandoffSchema,
  buildCard,
  completeHandoffSchema,
  handoffStatusOf,
  isJsonObject,
  type JsonObject,
  type JsonValue,
  KernelError,
  parseId,
  parseInput,
  rejectHandoffSchema,
  sessionStateOf,
  summarizeSession,
} from '@boxcar/kernel';
import {
  findHandoffSession,
  findNewestPackage,
  findSessionPackage,
  loadSessionEdges,
  movePackage,
  type PackageMove,
  retryTransient,
  type SessionPackage,
  type TapeActor,
} from '@boxcar/store';
import { z } from 'zod';
import { announceHandoffs } from '../end/index.js';
import type { HandoffRuntime } from '../handoff/index.js';
import { type Actor, findActor, newId } from '../lib/index.js';
import type { SessionClient } from './handoff-sessions.js';
import { cacheKeyOf } from './request-handoff.js';
import type { PackageAnswer, PackageMoveAnswer } from './session-answers.js';

/** How long a package shows the summary that was made at the request. */
const KEPT_MS = 86_400_000;

interface Said {
  readonly context_summary: string;
  readonly context_entries: number;
  readonly request_data: JsonObject;
}

/** The summary of a package: the stored one, or a new one (K2). */
async function saidOf(runtime: HandoffRuntime, actor: TapeActor, found: SessionPackage): Promise<Said> {
  const { context, session_key: sessionKey, created_at, now } = found;
  const request_data = isJsonObject(context?.request_data) ? context.request_data : {};
  const isKept = now.getTime() - created_at.getTime() < KEPT_MS;
  if (isKept && typeof context?.context_summary === 'string')
    return {
      context_summary: context.context_summary,
      context_entries: Number(context.context_entries),
      request_data,
    };
  const session = sessionKey === null ? undefined : await findHandoffSession(runtime.pool, actor, sessionKey);
  if (session?.isReadable !== true) return { context_summary: '', context_entries: 0, request_data };
  const edges = await loadSessionEdges(runtime.pool, session);
  const { status } = sessionStateOf(session, session.now);
  return {
    context_summary: summarizeSession({ ...session, ...edges, status }).summary,
    context_entries: session.lastSequence,
    request_data,
  };
}

async function toPackage(
  runtime: HandoffRuntime,
  actor: TapeActor,
  found: SessionPackage,
): Promise<PackageAnswer> {
  const sessionKey = found.session_key ?? '';
  return {
    handoff_id: found.handoff_id,
    phase: found.phase,
    session_key: sessionKey,
    source_agent: found.source_agent,
    target_agent: found.target_agent,
    request_type: found.session_request,
    ...(await saidOf(runtime, actor, found)),
    tape_box_id: found.tape_box_id,
    head: found.session_head,
    cache_key: cacheKeyOf(found.target_agent, sessionKey),
    created_at: found.created_at.toISOString(),
  };
}

/** Thrown out of the transaction, which is then rolled back. */
class NotPossible extends Error {}

const isKnown = (found: SessionPackage | undefined): found is SessionPackage =>
  found !== undefined &&
  // Without a session head, the handoff still waits for its approval or was forbidden, so the target must not see it.
  (found.is_operator || found.is_source || (found.is_target && found.session_head !== null));

/** Checks the obstacles that are the same for every client. */
function checkPackage(found: SessionPackage): void {
  if (found.is_served) throw new NotPossible('An agent of this installation serves it.');
  if (found.phase === 'awaiting_approval') throw new NotPossible('It waits for an approval.');
}

type Decide = (found: SessionPackage, actor: Actor) => PackageMove | undefined;

const mayFetch = ({ is_operator, is_target }: SessionPackage): boolean => is_operator || is_target;
const notYours = (): NotPossible => new NotPossible('It is for another agent.');

const accept: Decide = (found, { agentId, agentName }) => {
  if (!mayFetch(found)) throw notYours();
  if (found.phase === 'in_progress' && found.holder_id === agentId) return undefined;
  if (found.phase !== 'pending')
    throw new NotPossible(
      found.phase === 'in_progress' ? 'Another client has accepted it.' : 'It has ended.',
    );
  return { phase: 'in_progress', event: { type: 'handoff.accepted', data: { by: agentName } } };
};

/**
 * Before the package is accepted, its target refuses it; afterwards, its holder gives it up. The source and the operator may take it back
 * at any time.
 */
const reject =
  (reason: string | undefined): Decide =>
  (found, { agentId, agentName }) => {
    const { phase: before, holder_id, is_source, is_operator } = found;
    if ((before === 'rejected' || before === 'canceled') && holder_id === agentId) return undefined;
    if (before !== 'pending' && before !== 'in_progress') throw new NotPossible('It has ended.');
    const isRefusal = before === 'pending' && mayFetch(found);
    const isEnd = is_source || is_operator || (before === 'in_progress' && holder_id === agentId);
    if (!isRefusal && !isEnd)
      throw before === 'in_progress' && mayFetch(found)
        ? new NotPossible('Another client has accepted it.')
        : notYours();
    const phase = isRefusal ? 'rejected' : 'canceled';
    const said = `Handoff to ${found.target_agent} ${phase} by ${agentName}`;
    const error = new KernelError(isRefusal ? 'permission_denied' : 'canceled', {
      message: reason === undefined ? `${said}.` : `${said}: ${reason}`,
      next: '',
    });
    const status = handoffStatusOf(phase);
    return {
      phase,
      error: error.toJSON(),
      event: { type: `handoff.${status}`, data: { status, phase, code: error.code, by: agentName } },
    };
  };

const complete =
  (result: JsonValue | undefined, { maxCardBytes }: HandoffRuntime['limits']): Decide =>
  (found, { agentId, agentName, projectId }) => {
    if (!mayFetch(found)) throw notYours();
    if (found.phase === 'completed' && found.holder_id === agentId) return undefined;
    if (found.phase === 'pending') throw new NotPossible('It has not been accepted yet.');
    if (found.phase !== 'in_progress') throw new NotPossible('It has ended.');
    if (found.holder_id !== agentId) throw new NotPossible('Another client has accepted it.');
    const isText = typeof result === 'string';
    const card =
      result === undefined || result === null
        ? undefined
        : buildCard(
            {
              type: 'handoff_result',
              role: null,
              content: isText
                ? { kind: 'text', text: result }
                : { kind: 'json', data: typeof result === 'object' ? result : { result } },
              metadata: {},
              authorId: agentName,
            },
            { id: newId<'card'>(), projectId },
            maxCardBytes,
          );
    return {
      phase: 'completed',
      ...(card === undefined ? {} : { result: card }),
      event: { type: 'handoff.completed', data: { status: 'completed', phase: 'completed', by: agentName } },
    };
  };

async function moveOne(
  runtime: HandoffRuntime,
  {
    handoffId: given,
    outcome,
    decide,
  }: {
    readonly handoffId: string;
    readonly outcome: 'accepted' | 'rejected' | 'completed';
    readonly decide: Decide;
  },
  { projectId: project = 'default', as = 'operator' }: SessionClient,
): Promise<PackageMoveAnswer> {
  const actor = await findActor(runtime.pool, project, as);
  const tape = { projectId: actor.projectId, actorId: actor.agentId };
  const handoffId = parseId<'handoff'>(given, 'arguments.handoff_id');
  let why: string | undefined;
  try {
    const logged = await retryTransient(() =>
      movePackage(runtime.pool, tape, {
        handoffId,
        decide: (found) => {
          if (!isKnown(found)) return undefined;
          checkPackage(found);
          return decide(found, actor);
        },
      }),
    );
    announceHandoffs(runtime, logged);
  } catch (error) {
    if (!(error instanceof NotPossible)) throw error;
    why = error.message;
  }
  const found = await findSessionPackage(runtime.pool, tape, handoffId);
  if (!isKnown(found)) return { outcome: 'not_found', handoff_id: handoffId };
  const made = await toPackage(runtime, tape, found);
  return why === undefined ? { outcome, package: made } : { outcome: 'not_possible', package: made, why };
}

/** Fetches a package. An agent may then read the session up to the handoff. @throws KernelError `bad_request`. */
export async function acceptHandoff(
  runtime: HandoffRuntime,
  input: unknown,
  client: SessionClient = {},
): Promise<PackageMoveAnswer> {
  const { handoff_id: handoffId } = parseInput(acceptHandoffSchema, input, 'arguments');
  return moveOne(runtime, { handoffId, outcome: 'accepted', decide: accept }, client);
}

/** Refuses a package, gives it up after it was accepted, or takes it back. @throws KernelError `bad_request`. */
export async function rejectHandoff(
  runtime: HandoffRuntime,
  input: unknown,
  client: SessionClient = {},
): Promise<PackageMoveAnswer> {
  const { handoff_id: handoffId, reason } = parseInput(rejectHandoffSchema, input, 'arguments');
  return moveOne(runtime, { handoffId, outcome: 'rejected', decide: reject(reason) }, client);
}

/** Reports the result of a package that the client has accepted. @throws KernelError `bad_request`, `payload_too_large`. */
export async function completeHandoff(
  runtime: HandoffRuntime,
  input: unknown,
  client: SessionClient = {},
): Promise<PackageMoveAnswer> {
  const { handoff_id: handoffId, result } = parseInput(completeHandoffSchema, input, 'arguments');
  return moveOne(
    runtime,
    { handoffId, outcome: 'completed', decide: complete(result, runtime.limits) },
    client,
  );
}

const packageSchema = z.strictObject({ session_key: z.string().min(1), target_agent: z.string().min(1) });

/**
 * The newest package of a session for a target, which `cache_key` names. Undefined: no such package that the client may know. @throws
 * KernelError `bad_request`.
 */
export async function findPackage(
  runtime: HandoffRuntime,
  input: unknown,
  { projectId: project = 'default', as = 'operator' }: SessionClient = {},
): Promise<PackageAnswer | undefined> {
  const { session_key: sessionKey, target_agent: targetAgent } = parseInput(
    packageSchema,
    input,
    'arguments',
  );
  const { projectId, agentId: actorId } = await findActor(runtime.pool, project, as);
  const found = await findNewestPackage(runtime.pool, { projectId, actorId }, { sessionKey, targetAgent });
  return isKnown(found) ? toPackage(runtime, { projectId, actorId }, found) : undefined;
}
