/**
 * Sessions of clients that hand their context on, as a reader may see them.
 *
 * H1  A session is a tape. Its context entries are entries of that tape. They are numbered in the row of the session, under its lock, in
 *     the transaction that appends them. So the numbers have no gaps, even with concurrent writers.
 * H2  The texts of users are only in cards. The rows contain keys, names, types and numbers.
 * H3  The rights are those on the tape. An agent that may read the tape up to a position sees the session up to there: entries, counts and
 *     last message.
 * H4  Each operation is a constant number of statements, however long the session is.
 * Rule: docs/reference/handoff-sessions.md.
 */
import type {
  AgentId,
  BoxId,
  ContextCounts,
  HandoffSessionId,
  RetentionPolicy,
  StoredSessionStatus,
} from '@boxcar/kernel';
import type pg from 'pg';
import { type Queryable, run, statement, type Tx } from '../db/index.js';
import { grantOf, OWNS, readsAll } from '../rows/index.js';
import type { TapeActor } from '../tape/index.js';

/** A session, as far as the actor may read it. */
export interface HandoffSession {
  readonly id: HandoffSessionId;
  readonly sessionKey: string;
  readonly boxId: BoxId;
  readonly makerAgentId: AgentId;
  readonly agentFrom: string;
  readonly agentTo: string | null;
  readonly status: StoredSessionStatus;
  readonly retentionPolicy: RetentionPolicy;
  /** Up to the last position that the actor may read; the same is true of `lastSequence`. */
  readonly counts: ContextCounts;
  readonly lastSequence: number;
  readonly createdAt: Date;
  readonly lastWriteAt: Date;
  readonly endedAt: Date | null;
  /** The last position of its tape that counts, after the session was completed. */
  readonly frozenHead: number | null;
  /** The key of the session that it continues. */
  readonly continues: string | null;
  readonly lineSessions: readonly HandoffSessionId[];
  /** The actor owns or made its tape, or is the operator. */
  readonly isOwn: boolean;
  /** The actor may read the session up to `upto` (null: all of it). */
  readonly isReadable: boolean;
  readonly upto: number | null;
  readonly mayAppend: boolean;
  /** The time of this read, by the clock of Postgres. */
  readonly now: Date;
}

export interface SessionDbRow extends pg.QueryResultRow {
  readonly id: HandoffSessionId;
  readonly session_key: string;
  readonly tape_box_id: BoxId;
  readonly maker_agent_id: AgentId;
  readonly agent_from: string;
  readonly agent_to: string | null;
  readonly status: StoredSessionStatus;
  readonly retention_policy: RetentionPolicy;
  readonly message_count: number | null;
  readonly file_count: number | null;
  readonly tool_call_count: number | null;
  readonly system_count: number | null;
  readonly sequence_number: number | null;
  readonly created_at: Date;
  readonly last_write_at: Date;
  readonly ended_at: Date | null;
  readonly frozen_head: number | null;
  readonly continues_key: string | null;
  readonly line_sessions: readonly HandoffSessionId[];
  readonly is_own: boolean;
  readonly is_readable: boolean;
  readonly upto: number | null;
  readonly may_append: boolean;
  readonly now: Date;
}

/** SQL of the sessions of which `s` is the continuation, followed by `s` itself: `l.id`. */
export const LINE_OF_SESSION = 'unnest(array_append(s.line_sessions, s.id)) as l(id)';

/** SQL of a session `s` with its tape `b`, its project `p`, the right `r` of agent $3, and `v`, the last entry that the agent may read. */
export const SESSION_FROM = `
  boxcar.handoff_sessions s
  join boxcar.boxes b on b.id = s.tape_box_id
  join boxcar.projects p on p.id = s.project_id
  cross join lateral (
    select ${OWNS} as is_own, ${readsAll('$3')} as reads_all, ${grantOf('read')} as granted,
      ${grantOf('append')} as append_grant
  ) r
  left join lateral (
    select e.*
    from ${LINE_OF_SESSION}
    cross join lateral (
      select o.*
      from boxcar.handoff_session_entries o
      where o.session_id = l.id
        and o.position <= case when r.reads_all then ${2 ** 31 - 1} else (r.granted->>'upto')::int end
      order by o.position desc
      limit 1
    ) e
    order by e.sequence_number desc
    limit 1
  ) v on true`;

/** The columns of these that make a `HandoffSession`. */
export const SESSION = `
  s.id, s.session_key, s.tape_box_id, s.maker_agent_id, s.agent_from, s.agent_to, s.status, s.retention_policy,
  v.message_count, v.file_count, v.tool_call_count, v.system_count, v.sequence_number, s.created_at, s.last_write_at,
  s.ended_at, s.frozen_head,
  (select q.session_key from boxcar.handoff_sessions q where q.id = s.continues) as continues_key,
  s.line_sessions, r.is_own,
  r.reads_all or r.granted is not null as is_readable,
  case when not r.reads_all then (r.granted->>'upto')::int end as upto,
  r.is_own or r.append_grant is not null as may_append,
  statement_timestamp() as now`;

export const toSession = (row: SessionDbRow): HandoffSession => ({
  id: row.id,
  sessionKey: row.session_key,
  boxId: row.tape_box_id,
  makerAgentId: row.maker_agent_id,
  agentFrom: row.agent_from,
  agentTo: row.agent_to,
  status: row.status,
  retentionPolicy: row.retention_policy,
  counts: {
    message: row.message_count ?? 0,
    file: row.file_count ?? 0,
    tool_call: row.tool_call_count ?? 0,
    system: row.system_count ?? 0,
  },
  lastSequence: row.sequence_number ?? 0,
  createdAt: row.created_at,
  lastWriteAt: row.last_write_at,
  endedAt: row.ended_at,
  frozenHead: row.frozen_head,
  continues: row.continues_key,
  lineSessions: row.line_sessions,
  isOwn: row.is_own,
  isReadable: row.is_readable,
  upto: row.upto,
  mayAppend: row.may_append,
  now: row.now,
});

const FIND = statement(
  `select /* handoff-sessions.find */ ${SESSION} from ${SESSION_FROM} where s.project_id = $1 and s.session_key = $2`,
);

/**
 * Finds a session by the client's key; undefined when it does not exist. The caller must check whether the actor may read it
 * (`isReadable`).
 */
export async function findHandoffSession(
  db: Queryable,
  { projectId, actorId }: TapeActor,
  sessionKey: string,
): Promise<HandoffSession | undefined> {
  const [row] = await run<SessionDbRow>(db, FIND, [projectId, sessionKey, actorId]);
  return row && toSession(row);
}

const LOCK = statement(`
  select /* handoff-sessions.lock */ s.id
  from boxcar.handoff_sessions s
  where s.project_id = $1 and s.session_key = $2
  for no key update`);

/**
 * Locks the session for a write, before its tape, and reads it under the lock. Both statements are sent together: the second begins after
 * the first has its lock.
 */
export async function lockHandoffSession(
  tx: Tx,
  actor: TapeActor,
  sessionKey: string,
): Promise<HandoffSession | undefined> {
  const locked = run(tx, LOCK, [actor.projectId, sessionKey]);
  const [, session] = await Promise.all([locked, findHandoffSession(tx, actor, sessionKey)]);
  return session;
}
