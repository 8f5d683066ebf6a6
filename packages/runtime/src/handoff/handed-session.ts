/**
 * Sessions that are handed on with a handoff: the entries on the tape, and the agents that may read it afterwards.
 * Rule: docs/reference/handoff-sessions.md, "Handing on".
 */
import {
  type AgentId,
  type HandoffId,
  type HandoffRequestType,
  type HandoffSessionId,
  type InheritedBox,
  isJsonObject,
  type JsonObject,
  KernelError,
  REQUEST_PRIORITIES,
} from '@boxcar/kernel';
import { type NewContextEntry, type Written, writeSessionWithin } from '@boxcar/store';
import type { KernelTools } from '../handler/index.js';
import { newId } from '../lib/index.js';
import { systemEntry, toAppendError, toContextEntries, toNewHandoff } from '../tape/index.js';

/** The state of a session when its handoff was requested. */
export interface HandedSession {
  readonly id: HandoffSessionId;
  readonly requestType: HandoffRequestType;
  /** Entries of its tape that go along. */
  readonly inherited: readonly InheritedBox[];
}

/** The context of the handoff of a session: the information for the target. */
export interface SessionContext {
  readonly session_key: string;
  readonly request_type: HandoffRequestType;
  readonly context_summary: string;
  /** The number of entries before the entry of the handoff itself. */
  readonly context_entries: number;
  /** A reference to the tape, up to the place where it was read. */
  readonly tape_ref: string;
  readonly request_data?: JsonObject | undefined;
}

/** The priority of the turn, from the client's word for it. */
export function priorityOf(context: JsonObject | null | undefined): number | undefined {
  const data = context?.request_data;
  const word = isJsonObject(data) ? data.priority : undefined;
  return typeof word === 'string' && Object.hasOwn(REQUEST_PRIORITIES, word)
    ? REQUEST_PRIORITIES[word as keyof typeof REQUEST_PRIORITIES]
    : undefined;
}

/** The receiver of the session: an agent, or any client that fetches the package. */
export interface SessionTarget {
  readonly handoffId: HandoffId;
  readonly name: string;
  readonly agentId: AgentId | null;
}

/** For each target an anchor with its event, and the entry that clients see. */
function entriesOf(
  context: SessionContext,
  targets: readonly SessionTarget[],
  { ctx }: KernelTools,
): readonly NewContextEntry[] {
  const actor = { projectId: ctx.projectId, actorId: ctx.source.agentId };
  const { request_type, context_summary: summary, context_entries, request_data } = context;
  return targets.flatMap(({ name, handoffId }) => {
    const about = { handoff_id: handoffId, target_agent: name, request_type };
    const state = { ...about, summary, context_entries };
    const said = systemEntry(`Handoff requested to agent: ${name}`, {
      action: 'handoff_requested',
      ...about,
      ...(request_data === undefined ? {} : { request_data }),
    });
    const anchor = toNewHandoff(`handoff/${name}`, { state }, actor);
    return [...anchor.map((entry) => ({ type: null, entry })), ...toContextEntries([said], actor)];
  });
}

/** A new request can be repeated (`conflict`); an approved handoff is over (`canceled`). */
const ended = (sessionKey: string, isNew: boolean): KernelError =>
  new KernelError(isNew ? 'conflict' : 'canceled', {
    message: `Session '${sessionKey}' has ended meanwhile.`,
    next: 'Read the session again.',
    details: { session_key: sessionKey },
  });

/**
 * Writes the entries of the handoff to the tape of the session and, for a full handoff, ends the session. Runs in the transaction of the
 * handoff; rows that the primitive has gathered so far are written first.
 *
 * @throws KernelError `conflict`, or `canceled` after an approval, when the session has ended in the meantime; then no part of the handoff
 *   is kept.
 */
export async function handSessionOn(
  tools: KernelTools,
  of: {
    /** Null: the session has been purged. */
    readonly sessionId: HandoffSessionId | null;
    readonly context: SessionContext;
    readonly targets: readonly SessionTarget[];
    /** The same primitive also adds the handoffs. */
    readonly isNew: boolean;
  },
): Promise<Written> {
  const { sessionId, context, targets, isNew } = of;
  const { projectId, source } = tools.ctx;
  const { session_key: sessionKey, request_type: requestType } = context;
  if (sessionId === null) throw ended(sessionKey, isNew);
  const written = await writeSessionWithin(tools.tx, {
    projectId,
    actorId: source.agentId,
    sessionKey,
    sessionId,
    entries: entriesOf(context, targets, tools),
    dedupKey: newId(),
    isNamed: false,
    end: requestType === 'full_handoff' ? 'completed' : undefined,
    handsTo: targets.map(({ handoffId, name, agentId }) => ({
      handoffId: isNew ? null : handoffId,
      agentTo: name,
      agentId,
      isShared: requestType === 'collaboration',
    })),
  });
  switch (written.outcome) {
    case 'written':
      if (isNew)
        tools.noteHead(
          targets.map(({ handoffId }) => handoffId),
          written.head,
        );
      return written;
    case 'not_active':
    case 'not_found':
      throw ended(sessionKey, isNew);
    case 'refused':
      throw toAppendError(written.append, written.boxId, source.agentId);
    default:
      return written satisfies never;
  }
}

/**
 * The context that the request packed for the handoff of a session.
 *
 * @throws KernelError `internal_error` for a handoff without a session.
 */
export function sessionContextOf(context: JsonObject | null): SessionContext {
  if (typeof context?.session_key !== 'string')
    throw new KernelError('internal_error', { message: 'The handoff of a session has lost its context.' });
  return context as unknown as SessionContext;
}
