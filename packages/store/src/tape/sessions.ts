/** Sessions: forks of a tape with a separate agent that continues from an anchor of the tape; and the lineage of sessions. */
import {
  type AgentId,
  type BoxId,
  type NewCard,
  type ProfileId,
  type ProjectId,
  spellingsOf,
} from '@boxcar/kernel';
import type pg from 'pg';
import { type Queryable, run, statement, type Tx, transaction } from '../db/index.js';
import { CARD_COLUMNS, CARD_TARGET, CARD_VALUES, cardRecord } from '../rows/index.js';
import { takeAgentName } from '../submit/index.js';
import { entriesOf, hiddenContext, viewStartAt } from '../visible/index.js';
import { LINE, lastingNameOf, type NewFork } from './forks.js';

export interface Session {
  /** The name of its tape and its agent. */
  readonly name: string;
  /** Null for an imported tape. */
  readonly agentId: AgentId | null;
  /** The present tape of the session. */
  readonly boxId: BoxId;
  /** The parent's tape: its name, otherwise its agent, otherwise its box. */
  readonly parentSessionId: string;
  /** Null for an imported tape. */
  readonly parentBoxId: BoxId | null;
  /** The requested anchor; null when none was requested. */
  readonly fromAnchor: string | null;
  readonly status: string;
  /** The ends of its turns are reported on the parent's tape. */
  readonly notifies: boolean;
  readonly createdAt: Date;
}

// The name is locked by the caller (`takeAgentName`). The parent is not locked: the session begins at its head in this snapshot, or at the
// given position. When the name gets a tape in another way at the same moment, a unique index refuses the session (`isNameTaken`).
const MAKE = statement(`
  with /* sessions.make */
  x as (select * from json_to_recordset($9::json) as x(${CARD_COLUMNS})),
  p as materialized (
    select
      b.*, v.at, v.last, v.count,
      (select count(*)::int from x) as anchors,
      coalesce($7::uuid, o.profile_id) as profile_id,
      case when o.profile_id is not null then o.id end as source_id,
      case
        when $12 = 'full'
          then (select count(*)::int from ${entriesOf('b', { from: '1', to: '1', where: "o.kind = 'anchor'" })} e)
        when $12 = 'from_fork_point'
          then coalesce(
            $6::int,
            case
              when coalesce(b.view_anchor_position, b.last_anchor_position) <= v.at
                then coalesce(b.view_anchor_position, b.last_anchor_position)
            end,
            v.last
          )
        when exists (select from x) then v.at + 1
        else v.last
      end as begin
    from boxcar.boxes b
    left join boxcar.agents o on o.id = b.owner_agent_id
    cross join lateral (
      select
        coalesce($13::int, b.head_position) as at,
        coalesce($14::int, b.last_anchor_position) as last,
        coalesce($15::int, b.anchor_count, 1) as count
    ) v
    where b.id = $2 and b.project_id = $3 and b.kind = 'tape'
  ),
  ${LINE},
  start as materialized (
    select case when p.begin > p.at then p.begin else ${viewStartAt('p.id', 'p.begin')} end as position
    from p
  ),
  hidden as materialized (
    select h.id
    from p parent
    cross join start
    cross join lateral (
      select ${hiddenContext('parent', { from: 'start.position', to: 'parent.at', maker: '$8' })} as id
    ) h
    where h.id is not null
  ),
  new_card as (
    insert into ${CARD_TARGET}
    select ${CARD_VALUES}
    from x
    where exists (
      select from p
      where p.profile_id is not null and not exists (select from hidden)
    )
  ),
  made as (
    insert into boxcar.boxes (
      id, project_id, kind, owner_agent_id, maker_agent_id, tape_name, incarnation, head_position,
      last_anchor_position, anchor_count, view_anchor_position, view_position, parent_box_id, fork_position,
      line_boxes, line_ends
    )
    select
      $1, p.project_id, 'tape', $4, $4, $5,
      coalesce((select max(o.incarnation) from boxcar.boxes o where o.project_id = $3 and o.tape_name = $5), 0) + 1,
      p.at + 2 * p.anchors,
      case when p.anchors > 0 then p.at + 1 else p.last end,
      p.count + p.anchors,
      case when $12 <> 'last_anchor' then p.begin end,
      start.position, p.id, p.at, line.boxes, line.ends
    from p
    cross join line
    cross join start
    where p.profile_id is not null and not exists (select from hidden)
    returning id, fork_position
  ),
  new_agent as (
    insert into boxcar.agents (id, project_id, name, profile_id, owner_agent_id, derived_from, tape_box_id)
    select $4, $3, $5, p.profile_id, $8, p.source_id, made.id
    from made
    cross join p
  ),
  begun as (
    insert into boxcar.tape_entries (box_id, position, kind, card_id, tokens, payload, anchor_name, author_id)
    select
      made.id, made.fork_position + e.n, e.kind,
      case e.n when 1 then x.id end,
      case e.n when 1 then x.token_estimate else 0 end,
      e.payload::json, e.anchor_name, $8
    from made
    cross join x
    cross join (
      values (1, 'anchor', null, 'intention'), (2, 'event', '{"name":"handoff","data":{"name":"intention"}}', null)
    ) as e(n, kind, payload, anchor_name)
  ),
  granted as (
    insert into boxcar.grants (project_id, agent_id, box_id, mode, source)
    select $3, $8, made.id, m.mode, $8::text
    from made
    cross join (values ('read'), ('append')) as m(mode)
    where not exists (select from boxcar.projects j where j.id = $3 and j.operator_agent_id = $8)
  ),
  noted as (
    insert into boxcar.sessions (
      id, project_id, name, agent_id, parent_box_id, parent_session_id, from_anchor, from_position, notifies
    )
    select made.id, $3, $5, $4, p.id, ${lastingNameOf('p')}, $10, p.begin, $11
    from made
    cross join p
    returning id
  )
  select p.profile_id is not null as has_profile, (select h.id from hidden h) as hidden_id
  from p`);

export interface NewSession {
  readonly projectId: ProjectId;
  readonly name: string;
  readonly boxId: BoxId;
  readonly agentId: AgentId;
  /** Null: the profile of the agent that has the parent's tape. */
  readonly profileId: ProfileId | null;
  readonly parentBoxId: BoxId;
  readonly upto: NewFork['upto'];
  /** The agent that makes the session. */
  readonly ownerAgentId: AgentId;
  /** The beginning of its first views; null: the same as for the parent. */
  readonly from: { readonly anchor: string; readonly position: number } | null;
  /** Its first entry; null: it begins without an entry. */
  readonly intention: NewCard | null;
  readonly notifies: boolean;
  /** The beginning of its views until it writes an anchor: with `from`, with the intention, or with the first entry. */
  readonly view: 'from_fork_point' | 'last_anchor' | 'full';
}

const HAS = statement('select /* sessions.has */ from boxcar.sessions where id = $1');

const isNameTaken = (error: unknown): boolean =>
  error instanceof Error &&
  'constraint' in error &&
  [
    'boxes_tape_name',
    'boxes_tape_incarnation',
    'sessions_project_id_name_key',
    'agents_project_id_name_key',
  ].includes(String(error.constraint));

/** `hidden`: its views would show a context box that the maker may not read. */
export type MadeSession =
  | { readonly outcome: 'made' | 'name_taken' | 'name_of_profile' | 'no_profile' | 'not_found' }
  | { readonly outcome: 'hidden'; readonly contextBoxId: BoxId };

/** Makes a session in one transaction, by a constant number of statements. */
export async function makeSession(pool: pg.Pool, session: NewSession): Promise<MadeSession> {
  const { intention } = session;
  try {
    return await transaction(pool, async (tx) => {
      // An earlier attempt may have been committed, with its answer lost.
      if ((await run(tx, HAS, [session.boxId])).length > 0) return { outcome: 'made' };
      const { projectId, ownerAgentId: makerId } = session;
      const taking = await takeAgentName(tx, { projectId, makerId }, session.name);
      if (taking !== 'free') return { outcome: taking === 'taken' ? 'name_taken' : 'name_of_profile' };
      const [made] = await run<{ has_profile: boolean; hidden_id: BoxId | null }>(tx, MAKE, [
        session.boxId,
        session.parentBoxId,
        session.projectId,
        session.agentId,
        session.name,
        session.from?.position ?? null,
        session.profileId,
        session.ownerAgentId,
        JSON.stringify(intention === null ? [] : [cardRecord(intention)]),
        session.from?.anchor ?? null,
        session.notifies,
        session.view,
        session.upto?.position ?? null,
        session.upto?.lastAnchor ?? null,
        session.upto?.anchors ?? null,
      ]);
      if (made === undefined) return { outcome: 'not_found' };
      if (!made.has_profile) return { outcome: 'no_profile' };
      return made.hidden_id === null
        ? { outcome: 'made' }
        : { outcome: 'hidden', contextBoxId: made.hidden_id };
    });
  } catch (error) {
    if (isNameTaken(error)) return { outcome: 'name_taken' };
    throw error;
  }
}

const SESSION = `
  s.name, s.agent_id as "agentId",
  coalesce(
    a.tape_box_id,
    (
      select n.id
      from boxcar.boxes n
      where n.project_id = s.project_id and n.tape_name = s.name and n.archived_at is null
    ),
    s.id
  ) as "boxId",
  s.parent_session_id as "parentSessionId", s.parent_box_id as "parentBoxId", s.from_anchor as "fromAnchor", s.status,
  s.notifies, s.created_at as "createdAt"
  from boxcar.sessions s
  left join boxcar.agents a on a.id = s.agent_id`;

const BY_NAME = statement(`
  select /* sessions.by_name */ ${SESSION}
  where s.project_id = $1 and s.name = any ($2::text[])
  order by array_position($2::text[], s.name)
  limit 1`);
const LIST = statement(`
  select /* sessions.list */ ${SESSION}
  where s.project_id = $1 and ($2::text is null or s.status = $2)
  order by s.created_at, s.id
  limit $3`);
const CHILDREN = statement(`
  select /* sessions.children */ ${SESSION}
  where s.project_id = $1 and s.parent_session_id = any ($2::text[])
  order by s.created_at, s.id
  limit $3`);
// Takes no locks. `union` ends the recursion also when imported sessions name each other in a circle.
const LINEAGE = statement(`
  with recursive /* sessions.lineage */
  self as (
    select b.project_id, ${lastingNameOf('b')} as name
    from boxcar.boxes b
    where b.id = $1
  ),
  up as (
    select s.id, s.project_id, s.parent_session_id
    from self
    join boxcar.sessions s on s.project_id = self.project_id and s.name = self.name
    union
    select s.id, s.project_id, s.parent_session_id
    from up
    join boxcar.sessions s on s.project_id = up.project_id and s.name = up.parent_session_id
  ),
  down as (
    select s.id, s.project_id, s.name
    from self
    join boxcar.sessions s on s.project_id = self.project_id and s.parent_session_id = self.name
    union
    select s.id, s.project_id, s.name
    from down
    join boxcar.sessions s on s.project_id = down.project_id and s.parent_session_id = down.name
  )
  select ${SESSION}
  where s.id in (
    select id
    from up
    union all
    select id
    from down
  )
  order by s.created_at, s.id`);
const INSERT_IMPORTED = statement(`
  insert /* sessions.insert_imported */ into boxcar.sessions (
    id, project_id, name, parent_session_id, from_anchor, from_position, notifies, status, created_at
  )
  values ($1, $2, $3, $4, $5, 0, false, $6, coalesce($7::timestamptz, now()))
  on conflict do nothing`);
// A transaction that submits a turn to the agent holds its row, and sees the new status afterwards.
const LOCK_AGENT = statement(`
  select /* sessions.lock_agent */ a.id
  from boxcar.agents a
  where a.id = (select s.agent_id from boxcar.sessions s where s.project_id = $1 and s.name = $2)
  for no key update`);
// Two look-ups, each by a separate index.
const LOCK_TURNS = statement(`
  select /* sessions.lock_turns */ t.id
  from boxcar.turns t
  where t.id in (
    select a.id
    from boxcar.turns a
    where a.agent_id = $1 and a.status in ('dispatched', 'running', 'suspended')
    union all
    select q.id
    from boxcar.turns q
    where q.agent_id = $1 and q.status = 'queued'
  )
  order by t.id
  for update`);
const SET_STATUS = statement(`
  with /* sessions.set_status */
  s as (
    update boxcar.sessions
    set status = $3
    where project_id = $1 and name = $2
    returning notifies
  ),
  told as (
    update boxcar.turns t
    set notifies = case when $3 = 'active' then true end
    from s
    where t.id = any ($4::uuid[]) and t.ended_at is null and s.notifies
  )
  select true as is_set
  from s`);
const TAPE_SESSION = statement(
  `select /* sessions.tape_session */ ${lastingNameOf('b')} as id from boxcar.boxes b where b.id = $1`,
);

/** The parent id that sessions forked from this tape contain, in any incarnation of the tape. */
export async function sessionIdOfTape(db: Queryable, boxId: BoxId): Promise<string | undefined> {
  const [row] = await run<{ id: string }>(db, TAPE_SESSION, [boxId]);
  return row?.id;
}

export async function findSession(
  db: Queryable,
  projectId: ProjectId,
  name: string,
): Promise<Session | undefined> {
  const [row] = await run<Session & pg.QueryResultRow>(db, BY_NAME, [projectId, spellingsOf(name)]);
  return row;
}

/** Sessions of a project, the oldest first. */
export const listSessions = (
  db: Queryable,
  of: { readonly projectId: ProjectId; readonly status: string | null; readonly limit: number },
): Promise<readonly Session[]> =>
  run<Session & pg.QueryResultRow>(db, LIST, [of.projectId, of.status, of.limit]);

/** Sessions forked from this session, or from a tape with this lasting name. */
export const listChildSessions = (
  db: Queryable,
  of: { readonly projectId: ProjectId; readonly parentSessionId: string; readonly limit: number },
): Promise<readonly Session[]> =>
  run<Session & pg.QueryResultRow>(db, CHILDREN, [of.projectId, spellingsOf(of.parentSessionId), of.limit]);

/** The session with this tape, with all of its ancestors and descendants, the oldest first. */
export const listLineage = (db: Queryable, boxId: BoxId): Promise<readonly Session[]> =>
  run<Session & pg.QueryResultRow>(db, LINEAGE, [boxId]);

/** Stores the origin of an imported tape: a session without an agent, unless a session of this name exists. */
export async function insertImportedSession(
  tx: Tx,
  session: Pick<Session, 'name' | 'boxId' | 'parentSessionId' | 'fromAnchor' | 'status'> & {
    readonly projectId: ProjectId;
    readonly createdAt: string | null;
  },
): Promise<void> {
  const { boxId, projectId, name, parentSessionId, fromAnchor, status, createdAt } = session;
  await run(tx, INSERT_IMPORTED, [boxId, projectId, name, parentSessionId, fromAnchor, status, createdAt]);
}

/**
 * Sets the status of a session, also for its turns in progress.
 *
 * @returns False when the session does not exist.
 */
export function setSessionStatus(
  pool: pg.Pool,
  projectId: ProjectId,
  session: { readonly name: string; readonly status: string },
): Promise<boolean> {
  return transaction(pool, async (tx) => {
    const { name, status } = session;
    // An imported session has no agent.
    const [agent] = await run<{ id: AgentId }>(tx, LOCK_AGENT, [projectId, name]);
    const turns = agent === undefined ? [] : await run<{ id: string }>(tx, LOCK_TURNS, [agent.id]);
    return (await run(tx, SET_STATUS, [projectId, name, status, turns.map(({ id }) => id)])).length > 0;
  });
}
