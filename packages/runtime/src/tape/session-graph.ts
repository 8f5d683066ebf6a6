/** The lineage of forked sessions. Source: docs/reference/tape.md, "Sessions". */
import {
  isPlainName,
  KernelError,
  MAX_STATUS_LENGTH,
  PLAIN_NAME,
  type ProjectId,
  parseJsonValue,
} from '@boxcar/kernel';
import {
  findSession,
  listChildSessions,
  listSessions,
  type Session,
  sessionIdOfTape,
  setSessionStatus,
} from '@boxcar/store';
import type pg from 'pg';
import { findProject } from '../profile/index.js';

/** A session in the format of the original, with its agent and tape. */
export interface SessionMetadata {
  /** The name of the session, its tape and its agent. */
  readonly session_id: string;
  /** The parent's tape: its name, or else its agent, or else its box. */
  readonly parent_session_id: string;
  readonly from_anchor: string | null;
  readonly created_at: string;
  /** Initially `active`; the embedder chooses other values. Only an active session notifies its parent. */
  readonly status: string;
  /** Null for an imported tape, which has no agent here. */
  readonly agent_id: string | null;
  readonly box_id: string;
  readonly notifies_parent: boolean;
}

export interface SessionScope {
  /** Id or name; default `default`. */
  readonly projectId?: string;
}

const DEFAULT_SESSIONS = 100;
const MAX_SESSIONS = 1_000;

const toMetadata = (session: Session): SessionMetadata => ({
  session_id: session.name,
  parent_session_id: session.parentSessionId,
  from_anchor: session.fromAnchor,
  created_at: session.createdAt.toISOString(),
  status: session.status,
  agent_id: session.agentId,
  box_id: session.boxId,
  notifies_parent: session.notifies,
});

const notFound = (name: string, projectId: ProjectId): KernelError =>
  new KernelError('not_found', {
    message: `No session '${name}' in this project.`,
    details: { session_id: name, project_id: projectId },
  });

function checkLimit(limit: number): number {
  if (Number.isInteger(limit) && limit >= 0 && limit <= MAX_SESSIONS) return limit;
  throw new KernelError('bad_request', {
    message: `limit: must be a whole number from 0 to ${MAX_SESSIONS}.`,
    details: { field: 'limit' },
  });
}

export class SessionGraph {
  readonly #pool: pg.Pool;

  constructor(pool: pg.Pool) {
    this.#pool = pool;
  }

  /** Sessions of a project, the oldest first. Default 100, at most 1,000. */
  async list(
    options: SessionScope & { readonly status?: string; readonly limit?: number } = {},
  ): Promise<readonly SessionMetadata[]> {
    const limit = checkLimit(options.limit ?? DEFAULT_SESSIONS);
    const { projectId } = await findProject(this.#pool, options.projectId);
    const status = options.status ?? null;
    return (await listSessions(this.#pool, { projectId, status, limit })).map(toMetadata);
  }

  /** @throws KernelError `not_found`. */
  async get(name: string, options: SessionScope = {}): Promise<SessionMetadata> {
    return toMetadata((await this.#find(name, options)).session);
  }

  /** The session from which this session was forked. Null when the parent tape is not a session. @throws KernelError `not_found`. */
  async getParent(name: string, options: SessionScope = {}): Promise<SessionMetadata | null> {
    const { session, projectId } = await this.#find(name, options);
    const parent = await findSession(this.#pool, projectId, session.parentSessionId);
    return parent === undefined ? null : toMetadata(parent);
  }

  /**
   * The sessions that were forked from this session or tape. A tape is named by its name, or else the id of its agent, or else the id of
   * its box.
   */
  async getChildren(name: string, options: SessionScope = {}): Promise<readonly SessionMetadata[]> {
    const { projectId } = await findProject(this.#pool, options.projectId);
    const of = { projectId, parentSessionId: name, limit: MAX_SESSIONS };
    return (await listChildSessions(this.#pool, of)).map(toMetadata);
  }

  /** The sessions that were forked from any incarnation of the tape of this box. */
  async getChildrenOf(
    boxId: Session['boxId'],
    options: SessionScope = {},
  ): Promise<readonly SessionMetadata[]> {
    const id = await sessionIdOfTape(this.#pool, boxId);
    return id === undefined ? [] : this.getChildren(id, options);
  }

  /**
   * Sets the status of a session. A session that is not `active` no longer notifies its parent. @throws KernelError `not_found`,
   * `bad_request`.
   */
  async setStatus(name: string, status: string, options: SessionScope = {}): Promise<void> {
    if (
      typeof status !== 'string' ||
      status.trim() === '' ||
      status.length > MAX_STATUS_LENGTH ||
      !isPlainName(status)
    )
      throw new KernelError('bad_request', {
        message: `status: must have 1 to ${MAX_STATUS_LENGTH} characters, and ${PLAIN_NAME}.`,
        details: { field: 'status' },
      });
    parseJsonValue(status, 'status');
    const { session, projectId } = await this.#find(name, options);
    if (!(await setSessionStatus(this.#pool, projectId, { name: session.name, status })))
      throw notFound(name, projectId);
  }

  async #find(
    name: string,
    options: SessionScope,
  ): Promise<{ readonly session: Session; readonly projectId: ProjectId }> {
    const { projectId } = await findProject(this.#pool, options.projectId);
    const session = await findSession(this.#pool, projectId, name);
    if (session === undefined) throw notFound(name, projectId);
    return { session, projectId };
  }
}
