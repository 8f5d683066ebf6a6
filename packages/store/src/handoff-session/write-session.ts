/** Registers, writes and ends sessions. Each operation is one transaction, which locks the session before its tape. */
import type {
  AgentId,
  BoxId,
  ContextType,
  HandoffId,
  HandoffSessionId,
  RetentionPolicy,
  SessionStatus,
  StoredSessionStatus,
} from '@boxcar/kernel';
import { sessionStateOf } from '@boxcar/kernel';
import type pg from 'pg';
import { run, statement, type Tx, transaction } from '../db/index.js';
import { bootstrapEntries } from '../rows/index.js';
import { type AppendResult, appendWithin, LINE, type NewTapeEntry, type TapeActor } from '../tape/index.js';
import { entriesOf, viewStartAt } from '../visible/index.js';
import { findHandoffSession, type HandoffSession, lockHandoffSession } from './handoff-sessions.js';

export interface NewContextEntry {
  /** Null: the entry is only on the tape, and is not counted. */
  readonly type: ContextType | null;
  readonly entry: NewTapeEntry;
}

export interface SessionWrite extends TapeActor {
  readonly sessionKey: string;
  /** The id of the session. Another session with this key does not match. */
  readonly sessionId?: HandoffSessionId | undefined;
  readonly entries: readonly NewContextEntry[];
  /** The key of this write: a repeated write has no effect and returns the first answer. */
  readonly dedupKey: string;
  /** True: the caller chose the key. */
  readonly isNamed: boolean;
  /** The status with which this write ends the session. Absent: the session continues. */
  readonly end?: Exclude<StoredSessionStatus, 'active'> | undefined;
  /** The receivers to which this write hands the session. The session shows the first one. */
  readonly handsTo?: readonly HandedTo[] | undefined;
}

export interface HandedTo {
  /** The handoff, when its row exists. Null: the handoff is written later, with the head of this write. */
  readonly handoffId: HandoffId | null;
  readonly agentTo: string;
  /** The agent that may read the session from then on. Null: no agent may read it before the package is fetched. */
  readonly agentId: AgentId | null;
  /** False: the receiver reads the session up to this write. True: it reads all of the session, and may append to it. */
  readonly isShared: boolean;
}

export interface WrittenEntry {
  readonly sequenceNumber: number;
  readonly type: ContextType;
  readonly createdAt: Date;
}

export interface Written {
  readonly outcome: 'written';
  /** The session after the write. */
  readonly session: HandoffSession;
  /** The position of the last entry. */
  readonly head: number;
  readonly entries: readonly WrittenEntry[];
  /** True: an earlier write used the same key. */
  readonly isRepeated: boolean;
}

export type SessionWriteResult =
  | Written
  | { readonly outcome: 'not_active'; readonly session: HandoffSession; readonly status: SessionStatus }
  | { readonly outcome: 'not_found' }
  | {
      readonly outcome: 'refused';
      readonly boxId: BoxId;
      readonly append: Exclude<AppendResult, { outcome: 'appended' }>;
    };

const KNOWN = statement(
  'select /* write-session.known */ e.position from boxcar.tape_entries e where e.box_id = $1 and e.dedup_key = $2',
);

const COUNTS = ['message', 'file', 'tool_call', 'system'] as const satisfies readonly ContextType[];
const countsOf = (text: (type: ContextType) => string): string => COUNTS.map(text).join(', ');

// The caller has locked the session, and then its tape for the append. The numbers continue from the locked row. A repeated append finds
// its entries and writes nothing.
const RECORD = statement(`
  with /* write-session.record */
  x as materialized (select * from json_to_recordset($2::json) as x(n int, type text)),
  added as (
    select count(*)::int as n, ${countsOf((type) => `count(*) filter (where x.type = '${type}')::int as ${type}`)}
    from x
  ),
  moved as (
    update boxcar.handoff_sessions s
    set ${countsOf((type) => `${type}_count = s.${type}_count + a.${type}`)},
      last_write_at = greatest(s.last_write_at, statement_timestamp()),
      status = coalesce($4, s.status),
      ended_at = case when $4 is not null then statement_timestamp() end,
      frozen_head = case when $4 = 'completed' then $3 + a.n - 1 end,
      agent_to = coalesce($5, s.agent_to)
    from added a
    where s.id = $1
      and not exists (
        select from boxcar.handoff_session_entries e
        where e.session_id = $1 and e.position between $3 and $3 + a.n - 1
      )
    returning s.id, ${countsOf((type) => `s.${type}_count - a.${type} as ${type}`)}
  ),
  numbered as (
    select
      m.id, x.n, x.type,
      ${countsOf((type) => `m.${type} + (count(*) filter (where x.type = '${type}') over w)::int as ${type}`)}
    from moved m
    cross join x
    where x.type is not null
    window w as (order by x.n)
  )
  insert into boxcar.handoff_session_entries (
    session_id, sequence_number, position, type, ${countsOf((type) => `${type}_count`)}
  )
  select
    n.id,
    ${COUNTS.map((type) => `n.${type}`).join(' + ')},
    $3 + n.n - 1, n.type, ${countsOf((type) => `n.${type}`)}
  from numbered n`);

// An unlimited right that has not ended stays, and keeps its source.
const GRANT = statement(`
  insert /* write-session.grant */ into boxcar.grants as g (project_id, agent_id, box_id, mode, upto_position, source)
  select $1, a.id, $3, m.mode, $5::int, $6
  from unnest($2::uuid[]) as a(id)
  cross join unnest($4::text[]) as m(mode)
  order by a.id, m.mode
  on conflict (agent_id, box_id, mode) do update
    set
      expires_at = null,
      source = case when g.upto_position is null and g.expires_at is null then g.source else excluded.source end,
      upto_position = case
        when excluded.upto_position is null or (g.upto_position is null and g.expires_at is null) then null
        else excluded.upto_position
      end`);

const MARK = statement(
  'update /* write-session.mark */ boxcar.handoffs set session_head = $2 where id = any ($1::uuid[])',
);

const WRITTEN = statement(`
  select /* write-session.written */ e.sequence_number, e.type, t.created_at
  from boxcar.handoff_session_entries e
  join boxcar.tape_entries t on t.box_id = $2 and t.position = e.position
  where e.session_id = $1 and e.position between $3 and $3 + $4::int - 1
  order by e.position`);

interface WrittenRow extends pg.QueryResultRow {
  readonly sequence_number: number;
  readonly type: ContextType;
  readonly created_at: Date;
}

async function isKnown(tx: Tx, boxId: BoxId, dedupKey: string): Promise<boolean> {
  return (await run(tx, KNOWN, [boxId, dedupKey])).length > 0;
}

/** The reason that prevents a write, other than missing rights on the tape; undefined when the write is allowed. */
async function judgeWrite(
  tx: Tx,
  session: HandoffSession | undefined,
  { dedupKey, end, handsTo }: SessionWrite,
): Promise<Exclude<SessionWriteResult, Written> | undefined> {
  if (session === undefined || !(session.isReadable || session.mayAppend)) return { outcome: 'not_found' };
  const { boxId } = session;
  if (!session.mayAppend || ((end ?? handsTo) !== undefined && !session.isOwn))
    return { outcome: 'refused', boxId, append: { outcome: 'forbidden' } };
  const { status } = sessionStateOf(session, session.now);
  if (status === 'active' || (await isKnown(tx, boxId, dedupKey))) return undefined;
  return { outcome: 'not_active', session, status };
}

export interface SessionGrant {
  readonly boxId: BoxId;
  readonly agentIds: readonly AgentId[];
  /** The last position that the agents read; null: they read all of the session, and may append to it. */
  readonly upto: number | null;
}

/** Gives the receivers of a session the right to read it up to a position, or to share it. */
export async function grantSession(
  tx: Tx,
  { projectId, actorId }: TapeActor,
  { boxId, agentIds, upto }: SessionGrant,
): Promise<void> {
  const modes = upto === null ? ['read', 'append'] : ['read'];
  if (agentIds.length > 0) await run(tx, GRANT, [projectId, agentIds, boxId, modes, upto, actorId]);
}

/** The receivers of one request either all share the session, or none of them does. */
async function handOn(
  tx: Tx,
  actor: TapeActor,
  of: { readonly handsTo: readonly HandedTo[]; readonly boxId: BoxId; readonly head: number },
): Promise<void> {
  const { handsTo, boxId, head } = of;
  const agentIds = handsTo.flatMap(({ agentId }) => agentId ?? []);
  const isShared = handsTo.every((one) => one.isShared);
  await grantSession(tx, actor, { boxId, agentIds, upto: isShared ? null : head });
  const handoffIds = handsTo.flatMap(({ handoffId }) => handoffId ?? []);
  if (handoffIds.length > 0) await run(tx, MARK, [handoffIds, head]);
}

/** `writeSession` in the caller's transaction, which must have taken its other locks before (run → agent → turn → session → tape). */
export async function writeSessionWithin(tx: Tx, write: SessionWrite): Promise<SessionWriteResult> {
  const { projectId, actorId, sessionKey, entries, dedupKey, isNamed, end, handsTo } = write;
  const actor = { projectId, actorId };
  const locked = await lockHandoffSession(tx, actor, sessionKey);
  const session = locked?.id === (write.sessionId ?? locked?.id) ? locked : undefined;
  const refused = await judgeWrite(tx, session, write);
  if (session === undefined || refused !== undefined) return refused ?? { outcome: 'not_found' };
  const { id, boxId } = session;
  const append = await appendWithin(tx, {
    ...actor,
    boxId,
    entries: entries.map(({ entry }) => entry),
    dedupKey,
    isNamed,
  });
  if (append.outcome !== 'appended') return { outcome: 'refused', boxId, append };
  const types = entries.map(({ type }, index) => ({ n: index + 1, type }));
  const { first, isRepeated } = append;
  const head = first + entries.length - 1;
  if (handsTo !== undefined) await handOn(tx, actor, { handsTo, boxId, head });
  const [, rows, after] = await Promise.all([
    run(tx, RECORD, [id, JSON.stringify(types), first, end ?? null, handsTo?.[0]?.agentTo ?? null]),
    run<WrittenRow>(tx, WRITTEN, [id, boxId, first, entries.length]),
    findHandoffSession(tx, actor, sessionKey),
  ]);
  return {
    outcome: 'written',
    session: after ?? session,
    head,
    isRepeated,
    entries: rows.map((row) => ({
      sequenceNumber: row.sequence_number,
      type: row.type,
      createdAt: row.created_at,
    })),
  };
}

/** Appends context entries, all or none, and on request ends the session in the same transaction. A constant number of statements. */
export const writeSession = (pool: pg.Pool, write: SessionWrite): Promise<SessionWriteResult> =>
  transaction(pool, (tx) => writeSessionWithin(tx, write));

export interface NewHandoffSession extends Omit<SessionWrite, 'end' | 'handsTo'> {
  readonly id: HandoffSessionId;
  readonly boxId: BoxId;
  readonly tapeName: string;
  readonly agentFrom: string;
  readonly retentionPolicy: RetentionPolicy;
  /** The key of the session that it continues. */
  readonly continues: string | null;
}

export type RegisterResult =
  | Written
  /** `session` null: the actor may not read the session. */
  | { readonly outcome: 'exists'; readonly session: HandoffSession | null }
  /** A tape with its name exists. */
  | { readonly outcome: 'tape_taken' }
  /** Concerns the session that it would continue. */
  | { readonly outcome: 'parent_not_found' }
  | { readonly outcome: 'parent_not_completed'; readonly status: SessionStatus }
  | Exclude<SessionWriteResult, Written>;

/** The part that writes the session. `values`: its counts, the session that it continues, and the line of sessions before it. */
const madeOf = (values: string): string => `
  made as (
    insert into boxcar.handoff_sessions (
      id, project_id, session_key, tape_box_id, maker_agent_id, agent_from, retention_policy, message_count,
      file_count, tool_call_count, system_count, continues, line_sessions
    )
    select $1, $2, $3, $4, $5, $6, $7, ${values}
    on conflict (project_id, session_key) do nothing
    returning id
  )`;
const TAPE_COLUMNS = `
  id, project_id, kind, owner_agent_id, maker_agent_id, tape_name, incarnation, head_position, last_anchor_position,
  view_position, anchor_count`;
const INCARNATION =
  'coalesce((select max(o.incarnation) from boxcar.boxes o where o.project_id = $2 and o.tape_name = $8), 0) + 1';

const REGISTER = statement(`
  with /* write-session.register */
  ${madeOf("0, 0, 0, 0, null, '{}'")},
  tape as (
    insert into boxcar.boxes (${TAPE_COLUMNS})
    select $4, $2, 'tape', $5, $5, $8, ${INCARNATION}, 2, 1, 1, 1
    from made
    returning id
  ),
  begun as (
    insert into boxcar.tape_entries (box_id, position, kind, card_id, tokens, payload, anchor_name, author_id)
    select
      t.id, e.position, e.kind,
      case e.position when 1 then c.id end,
      case e.position when 1 then c.token_estimate else 0 end,
      e.payload::json, e.anchor_name, $5::text
    from tape t
    join boxcar.projects p on p.id = $2
    join boxcar.cards c on c.id = p.bootstrap_card_id
    cross join ${bootstrapEntries()}
  )
  select id
  from made`);

// A fork of the tape of session $9 at its frozen head. Anchors that were written after that head do not count. Takes no locks: the head of
// a completed session never changes. Of two sessions with one key, the index of keys lets the second make nothing.
const CONTINUE = statement(`
  with /* write-session.continue */
  f as materialized (
    select *
    from boxcar.handoff_sessions
    where id = $9 and project_id = $2 and frozen_head is not null
  ),
  p as materialized (
    select
      b.*, f.frozen_head as at,
      case when b.last_anchor_position <= f.frozen_head then b.last_anchor_position else a.last end as last,
      case when b.last_anchor_position <= f.frozen_head then coalesce(b.anchor_count, 1) else a.n end as anchors
    from f
    join boxcar.boxes b on b.id = f.tape_box_id
    cross join lateral (
      select coalesce(max(e.position), 0) as last, count(*)::int as n
      from ${entriesOf('b', { from: '1', to: 'f.frozen_head', where: "o.kind = 'anchor'" })} e
      where b.last_anchor_position > f.frozen_head
    ) a
  ),
  ${LINE},
  ${madeOf(`
    f.message_count, f.file_count, f.tool_call_count, f.system_count, f.id, array_append(f.line_sessions, f.id)
    from f`)},
  tape as (
    insert into boxcar.boxes (
      ${TAPE_COLUMNS}, view_anchor_position, parent_box_id, fork_position, line_boxes, line_ends
    )
    select
      $4, $2, 'tape', $5, $5, $8, ${INCARNATION}, p.at, p.last,
      case
        when p.view_position <= p.at and coalesce(p.view_anchor_position, p.last_anchor_position) <= p.at
          then p.view_position
        else ${viewStartAt('p.id', 'p.last')}
      end,
      p.anchors,
      case when p.view_anchor_position <= p.at then p.view_anchor_position end,
      p.id, p.at, line.boxes, line.ends
    from made
    cross join p
    cross join line
  )
  select id
  from made`);

const isTapeTaken = (error: unknown): boolean =>
  error instanceof Error &&
  'constraint' in error &&
  (error.constraint === 'boxes_tape_name' || error.constraint === 'boxes_tape_incarnation');

const register = (session: NewHandoffSession, parentId: HandoffSessionId | null) => {
  const { id, projectId, sessionKey, boxId, actorId, agentFrom, retentionPolicy, tapeName } = session;
  const values = [id, projectId, sessionKey, boxId, actorId, agentFrom, retentionPolicy, tapeName];
  return parentId === null
    ? { prepared: REGISTER, values }
    : { prepared: CONTINUE, values: [...values, parentId] };
};

/** The session that it continues, for an actor that may read the whole session up to its frozen head. */
async function findParent(
  tx: Tx,
  actor: TapeActor,
  sessionKey: string,
): Promise<HandoffSession | Exclude<RegisterResult, Written>> {
  const parent = await findHandoffSession(tx, actor, sessionKey);
  if (parent?.isReadable !== true) return { outcome: 'parent_not_found' };
  const { frozenHead, upto } = parent;
  if (frozenHead === null)
    return { outcome: 'parent_not_completed', status: sessionStateOf(parent, parent.now).status };
  return upto === null || upto >= frozenHead ? parent : { outcome: 'parent_not_found' };
}

async function registerWithin(tx: Tx, session: NewHandoffSession): Promise<RegisterResult> {
  const { projectId, actorId, sessionKey, continues } = session;
  const actor = { projectId, actorId };
  const parent = continues === null ? null : await findParent(tx, actor, continues);
  if (parent !== null && 'outcome' in parent) return parent;
  const { prepared, values } = register(session, parent?.id ?? null);
  const isMade = (await run(tx, prepared, values)).length > 0;
  if (isMade) return writeSessionWithin(tx, session);
  const found = await findHandoffSession(tx, actor, sessionKey);
  if (found === undefined || !(await isKnown(tx, found.boxId, session.dedupKey)))
    return { outcome: 'exists', session: found?.isReadable === true ? found : null };
  return writeSessionWithin(tx, session);
}

/**
 * Makes a session with its tape and its first entry, which records the registration. Continuing a session has the same cost for any length
 * of that session, because the new tape is a fork.
 */
export async function registerSession(pool: pg.Pool, session: NewHandoffSession): Promise<RegisterResult> {
  try {
    return await transaction(pool, (tx) => registerWithin(tx, session));
  } catch (error) {
    if (isTapeTaken(error)) return { outcome: 'tape_taken' };
    throw error;
  }
}
