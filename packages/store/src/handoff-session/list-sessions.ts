/** Sessions of a project, the newest first. Contains only sessions of which the actor may know. */
import type { SessionStatus } from '@boxcar/kernel';
import { type Queryable, run, statement } from '../db/index.js';
import { grantOf, readsAll, sessionExpiry } from '../rows/index.js';
import type { TapeActor } from '../tape/index.js';
import {
  type HandoffSession,
  SESSION,
  SESSION_FROM,
  type SessionDbRow,
  toSession,
} from './handoff-sessions.js';

export interface SessionFilters extends TapeActor {
  /** The agent of the session, or the agent to which it was handed. */
  readonly agent?: string | undefined;
  readonly status?: SessionStatus | undefined;
}

export interface SessionPlace {
  readonly at: string;
  readonly id: string;
}

const STATUS = `
  case when s.status = 'active' and ${sessionExpiry('s')} <= statement_timestamp() then 'expired' else s.status end`;
// Two look-ups for an agent, each by a separate index; the operator knows all sessions.
const KNOWS = `
  (
    exists (select from boxcar.projects o where o.id = $1 and o.operator_agent_id = $3)
    or s.id in (
      select m.id
      from boxcar.handoff_sessions m
      where m.maker_agent_id = $3
      union all
      select m.id
      from boxcar.grants g
      join boxcar.handoff_sessions m on m.tape_box_id = g.box_id
      where g.agent_id = $3
    )
  )`;
const WANTED = `
  s.project_id = $1
  and ${KNOWS}
  and (
    $2::text is null
    or s.id in (
      select f.id
      from boxcar.handoff_sessions f
      where f.project_id = $1 and f.agent_from = $2
      union all
      select f.id
      from boxcar.handoff_sessions f
      where f.project_id = $1 and f.agent_to = $2
    )
  )
  and ($4::text is null or ${STATUS} = $4)`;

const LIST = statement(`
  select /* list-sessions.list */
    ${SESSION},
    to_char(s.created_at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"') as place_at
  from ${SESSION_FROM}
  where ${WANTED}
    and (r.reads_all or r.granted is not null)
    and ($5::timestamptz is null or (s.created_at, s.id) < ($5, $6::uuid))
  order by s.created_at desc, s.id desc
  limit $7`);

const valuesOf = ({ projectId, actorId, agent, status }: SessionFilters): unknown[] => [
  projectId,
  agent ?? null,
  actorId,
  status ?? null,
];

export async function listHandoffSessions(
  db: Queryable,
  filters: SessionFilters,
  { limit, after }: { readonly limit: number; readonly after?: SessionPlace | undefined },
): Promise<readonly (HandoffSession & { readonly placeAt: string })[]> {
  const values = [...valuesOf(filters), after?.at ?? null, after?.id ?? null, limit];
  const rows = await run<SessionDbRow & { readonly place_at: string }>(db, LIST, values);
  return rows.map((row) => ({ ...toSession(row), placeAt: row.place_at }));
}

/** Sessions of a list are counted up to this number. */
const MAX_COUNTED = 10_000;

const COUNT = statement(`
  select /* list-sessions.count */ count(*)::int as n
  from (
    select from boxcar.handoff_sessions s
    join boxcar.boxes b on b.id = s.tape_box_id
    join boxcar.projects p on p.id = s.project_id
    where ${WANTED} and (${readsAll('$3')} or ${grantOf('read')} is not null)
    limit ${MAX_COUNTED}
  ) x`);

/** Counted up to 10,000. */
export async function countHandoffSessions(db: Queryable, filters: SessionFilters): Promise<number> {
  const [row] = await run<{ n: number }>(db, COUNT, valuesOf(filters));
  return row?.n ?? 0;
}
