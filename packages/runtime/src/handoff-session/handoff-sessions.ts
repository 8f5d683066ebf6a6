/**
 * Sessions of clients that hand their context on, in the name of one client: the operator, or an agent.
 *
 * C1  An agent knows the sessions that it registered and, up to the position of the grant, the sessions that were handed to it. All other
 *     sessions are reported as not existing. The operator knows all sessions of the project.
 * C2  Requests with the same idempotency key are the same write: the answer is repeated, even if the session has ended since.
 * C3  Nothing is cached here: each answer is read from rows, in any process.
 * C4  A problem that the client can solve in its conversation (no such session, ended, already registered) is an answer. Input that is not
 *     valid is an error.
 * Rule: docs/reference/handoff-sessions.md.
 */
import {
  type ContextEntryInput,
  closeSessionSchema,
  contextEntriesOf,
  getContextSchema,
  getSummarySchema,
  type JsonObject,
  KernelError,
  listSessionsSchema,
  MAX_SESSION_PAGE,
  parseInput,
  RETENTION_POLICIES,
  registerSessionSchema,
  retentionPolicyOf,
  sessionStateOf,
  summarizeSession,
  updateContextSchema,
} from '@boxcar/kernel';
import {
  countHandoffSessions,
  findHandoffSession,
  type HandoffSession,
  listHandoffSessions,
  loadContext,
  loadSessionEdges,
  type RegisterResult,
  registerSession,
  type SessionWrite,
  type SessionWriteResult,
  type Written,
  writeSession,
} from '@boxcar/store';
import type pg from 'pg';
import { type Actor, findActor, newId, type PagePlace, readCursor } from '../lib/index.js';
import { systemEntry, toAppendError, toContextEntries } from '../tape/index.js';
import {
  type CloseAnswer,
  type ContextPageAnswer,
  type RegisterAnswer,
  type SessionListAnswer,
  type SessionRefusal,
  type SummaryAnswer,
  toSessionAnswer,
  type UpdateAnswer,
  type WrittenAnswer,
} from './session-answers.js';

export interface SessionClient {
  /** Id or name; default `default`. */
  readonly projectId?: string | undefined;
  /** The id or name of the agent in whose name the sessions are used. Default: the operator. */
  readonly as?: string | undefined;
}

/** The part of a runtime that sessions need. */
export interface SessionRuntime {
  readonly pool: pg.Pool;
  readonly limits: { readonly maxCardBytes?: number | undefined };
}

const CURSOR = 'sessions';
const DEFAULT_LIST = 50;

const badRequest = (field: string, message: string): KernelError =>
  new KernelError('bad_request', { message: `${field}: ${message}.`, details: { field } });

const tapeNameOf = (sessionKey: string): string => `session/${sessionKey}`;

export class HandoffSessions {
  readonly #runtime: SessionRuntime;
  readonly #actor: Actor;

  /** @internal Use `openHandoffSessions`. */
  constructor(runtime: SessionRuntime, actor: Actor) {
    this.#runtime = runtime;
    this.#actor = actor;
  }

  /**
   * Makes a session. Its first entry records the registration.
   *
   * @throws KernelError `bad_request`, `payload_too_large`, `idempotency_conflict`; `conflict` when another tape has its name.
   */
  async register(input: unknown): Promise<RegisterAnswer> {
    const asked = parseInput(registerSessionSchema, input, 'arguments');
    const { session_key: sessionKey, metadata, continues, idempotency_key: key } = asked;
    const agentFrom = this.#agentFrom(asked.agent_from);
    const retentionPolicy = retentionPolicyOf(asked);
    if (retentionPolicy === undefined)
      throw badRequest('metadata.retention_policy', `must be ${RETENTION_POLICIES.join(', ')}`);
    const said = systemEntry(`Session registered by agent: ${agentFrom}`, {
      action: 'session_registered',
      retention_policy: retentionPolicy,
      ...(continues === undefined ? {} : { continues }),
      ...(metadata === undefined ? {} : { metadata }),
    });
    const result = await registerSession(this.#runtime.pool, {
      ...this.#write(sessionKey, [said], key),
      id: newId<'handoff_session'>(),
      boxId: newId<'box'>(),
      tapeName: tapeNameOf(sessionKey),
      agentFrom,
      retentionPolicy,
      continues: continues ?? null,
    });
    return this.#toRegistered(result, { sessionKey, said, continues: continues ?? '' });
  }

  /** An agent registers in its own name; a client outside may give any name. */
  #agentFrom(asked: string | undefined): string {
    const { agentId, operatorId, agentName } = this.#actor;
    if (agentId === operatorId) {
      if (asked !== undefined) return asked;
      throw badRequest('agent_from', 'is required');
    }
    if (asked === undefined || asked === agentName || asked === agentId) return agentName;
    throw badRequest('agent_from', 'must be the name of the agent that calls, or be left out');
  }

  #write(sessionKey: string, inputs: readonly ContextEntryInput[], key: string | undefined): SessionWrite {
    const { projectId, agentId: actorId } = this.#actor;
    const actor = { projectId, actorId };
    return {
      ...actor,
      sessionKey,
      entries: toContextEntries(inputs, actor, this.#runtime.limits.maxCardBytes),
      dedupKey: key === undefined ? newId() : `session:${actorId}:${key}`,
      isNamed: key !== undefined,
    };
  }

  #toRegistered(
    result: RegisterResult,
    {
      sessionKey,
      said,
      continues,
    }: { readonly sessionKey: string; readonly said: ContextEntryInput; readonly continues: string },
  ): RegisterAnswer {
    switch (result.outcome) {
      case 'exists':
        return { outcome: 'exists', session: result.session && toSessionAnswer(result.session) };
      case 'tape_taken':
        throw new KernelError('conflict', {
          message: `There is a tape named '${tapeNameOf(sessionKey)}' in this project.`,
          next: 'Choose another session_key.',
          details: { session_key: sessionKey },
        });
      case 'parent_not_found':
        throw new KernelError('not_found', {
          message: `continues: there is no session '${continues}' that you may read to its end.`,
          next: 'Name a session that was handed to you completely.',
          details: { field: 'continues', session_key: continues },
        });
      case 'parent_not_completed':
        throw badRequest('continues', `session '${continues}' is ${result.status}, and must be completed`);
      default: {
        const written = this.#judge(result, sessionKey);
        if (written.outcome !== 'written') return written;
        const [entry] = toWritten(written, [said]);
        if (entry === undefined)
          throw new KernelError('internal_error', { message: 'A session has no entry.' });
        const { session, isRepeated } = written;
        return { outcome: 'registered', session: toSessionAnswer(session), entry, is_repeated: isRepeated };
      }
    }
  }

  /** @throws KernelError when the tape of the session refuses the write. */
  #judge(result: SessionWriteResult, sessionKey: string): Written | SessionRefusal {
    switch (result.outcome) {
      case 'written':
        return result;
      case 'not_found':
        return { outcome: 'not_found', session_key: sessionKey };
      case 'not_active':
        return { outcome: 'not_active', session: toSessionAnswer(result.session) };
      case 'refused':
        throw toAppendError(result.append, result.boxId, this.#actor.agentId);
      default:
        return result satisfies never;
    }
  }

  /**
   * Adds one entry, or several at once: all of them or none.
   *
   * @throws KernelError `bad_request`, `payload_too_large`, `idempotency_conflict`, `box_not_authorized`; `tape_conflict` after a reset of
   *   its tape.
   */
  async update(input: unknown): Promise<UpdateAnswer> {
    const asked = parseInput(updateContextSchema, input, 'arguments');
    const inputs = contextEntriesOf(asked);
    const write = this.#write(asked.session_key, inputs, asked.idempotency_key);
    const written = this.#judge(await writeSession(this.#runtime.pool, write), asked.session_key);
    if (written.outcome !== 'written') return written;
    const { session, isRepeated } = written;
    return {
      outcome: 'updated',
      session: toSessionAnswer(session),
      entries: toWritten(written, inputs),
      is_repeated: isRepeated,
    };
  }

  /**
   * Ends a session, by default as completed. Only its maker and the operator may end it.
   *
   * @throws KernelError as `update`.
   */
  async close(input: unknown): Promise<CloseAnswer> {
    const asked = parseInput(closeSessionSchema, input, 'arguments');
    const { session_key: sessionKey, status = 'completed', reason, idempotency_key: key } = asked;
    const metadata: JsonObject = {
      action: `session_${status}`,
      ...(reason === undefined ? {} : { reason }),
    };
    const said = systemEntry(`Session ${status} by agent: ${this.#actor.agentName}`, metadata);
    const write = { ...this.#write(sessionKey, [said], key), end: status };
    const written = this.#judge(await writeSession(this.#runtime.pool, write), sessionKey);
    if (written.outcome !== 'written') return written;
    const { session, isRepeated } = written;
    return { outcome: 'closed', session: toSessionAnswer(session), is_repeated: isRepeated };
  }

  /** Undefined: there is no such session that the client may read. */
  async #find(sessionKey: string): Promise<HandoffSession | undefined> {
    const { projectId, agentId: actorId } = this.#actor;
    const found = await findHandoffSession(this.#runtime.pool, { projectId, actorId }, sessionKey);
    return found?.isReadable === true ? found : undefined;
  }

  /**
   * The current state of a session. Undefined when there is no such session that the client may read. @throws KernelError `bad_request`.
   */
  async get(input: unknown): Promise<ReturnType<typeof toSessionAnswer> | undefined> {
    const found = await this.#find(parseInput(getSummarySchema, input, 'arguments').session_key);
    return found && toSessionAnswer(found);
  }

  /** One page of its entries, up to 500 entries or 256 KiB, or one entry. @throws KernelError `bad_request`. */
  async context(input: unknown): Promise<ContextPageAnswer> {
    const {
      session_key: sessionKey,
      cursor = 0,
      limit = MAX_SESSION_PAGE,
    } = parseInput(getContextSchema, input, 'arguments');
    const session = await this.#find(sessionKey);
    if (session === undefined) return { outcome: 'not_found', session_key: sessionKey };
    const { entries, next } = await loadContext(this.#runtime.pool, session, { after: cursor, limit });
    return {
      outcome: 'found',
      session: toSessionAnswer(session),
      entries: entries.map((entry) => ({
        sequence_number: entry.sequenceNumber,
        context_type: entry.type,
        content: entry.content,
        metadata: entry.metadata,
        created_at: entry.createdAt,
      })),
      has_more: next !== null,
      next_cursor: next,
    };
  }

  /** A summary of a session from counts and its first and last entries. @throws KernelError `bad_request`. */
  async summary(input: unknown): Promise<SummaryAnswer> {
    const { session_key: sessionKey } = parseInput(getSummarySchema, input, 'arguments');
    const session = await this.#find(sessionKey);
    if (session === undefined) return { outcome: 'not_found', session_key: sessionKey };
    const edges = await loadSessionEdges(this.#runtime.pool, session);
    const { status } = sessionStateOf(session, session.now);
    const { summary, keyPoints, participants } = summarizeSession({ ...session, ...edges, status });
    return {
      outcome: 'found',
      session: toSessionAnswer(session),
      summary,
      key_points: keyPoints,
      participants,
      generated_at: session.now.toISOString(),
    };
  }

  /**
   * Sessions, the newest first: all, those that an agent registered or received, or those with a status. @throws KernelError `bad_request`.
   */
  async list(input: unknown = {}): Promise<SessionListAnswer> {
    const {
      agent,
      status,
      cursor,
      limit = DEFAULT_LIST,
    } = parseInput(listSessionsSchema, input, 'arguments');
    const after: PagePlace | undefined = cursor === undefined ? undefined : readCursor(CURSOR, cursor);
    if (cursor !== undefined && after === undefined)
      throw badRequest('cursor', 'must be the next_cursor of a page of sessions');
    const { projectId, agentId: actorId } = this.#actor;
    const filters = { projectId, actorId, agent, status };
    const [rows, total] = await Promise.all([
      listHandoffSessions(this.#runtime.pool, filters, { limit: limit + 1, after }),
      countHandoffSessions(this.#runtime.pool, filters),
    ]);
    const shown = rows.slice(0, limit);
    const last = rows.length > limit ? shown.at(-1) : undefined;
    return {
      sessions: shown.map(toSessionAnswer),
      total,
      next_cursor: last === undefined ? null : `${CURSOR}:${last.placeAt}:${last.id}`,
    };
  }
}

const toWritten = (
  { session, entries }: Written,
  inputs: readonly ContextEntryInput[],
): readonly WrittenAnswer[] =>
  entries.map(({ sequenceNumber, type, createdAt }, index) => ({
    id: `${session.id}:${sequenceNumber}`,
    sequence_number: sequenceNumber,
    context_type: type,
    content_length: inputs[index]?.content.length ?? 0,
    created_at: createdAt.toISOString(),
  }));

/** Opens sessions in the name of one client. @throws KernelError `not_found` for project or agent. */
export async function openHandoffSessions(
  runtime: SessionRuntime,
  { projectId = 'default', as = 'operator' }: SessionClient = {},
): Promise<HandoffSessions> {
  return new HandoffSessions(runtime, await findActor(runtime.pool, projectId, as));
}
