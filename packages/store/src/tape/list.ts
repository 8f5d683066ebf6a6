/** The tapes of a project, newest first. */
import type { AgentId, BoxId, ProjectId } from '@boxcar/kernel';
import type pg from 'pg';
import { type Queryable, run, statement } from '../db/index.js';
import { entriesOf } from '../visible/index.js';

export interface ListedTape extends pg.QueryResultRow {
  readonly box_id: BoxId;
  /** Null for the tape of an agent. */
  readonly name: string | null;
  /** The agent whose output it is, or was before a reset; null for a tape that only has a name. */
  readonly agent_id: AgentId | null;
  readonly agent: string | null;
  readonly incarnation: number;
  readonly entries: number;
  readonly anchors: number;
  readonly last_anchor: string | null;
  readonly created_at: Date;
  readonly archived_at: Date | null;
}

const LINE = `
  select /* list.line */
    b.id as box_id, b.tape_name as name, a.id as agent_id, a.name as agent, b.incarnation, b.head_position as entries,
    coalesce(b.anchor_count, 1) as anchors,
    (
      select e.anchor_name
      from ${entriesOf('b', { from: 'b.last_anchor_position', to: 'b.last_anchor_position' })} e
    ) as last_anchor,
    b.created_at, b.archived_at
  from boxcar.boxes b
  left join boxcar.agents a on a.id = b.owner_agent_id and (a.tape_box_id = b.id or b.tape_name is null)
  where b.project_id = $1 and b.kind = 'tape'`;

// Read by the key of boxes, from the end: ids are in order of time.
const LIST = statement(`${LINE} and ($2 or b.archived_at is null) order by b.id desc limit $3`);
const FIND = statement(`${LINE} and b.id = $2`);

/** @param options.isAll - Includes archived tapes. */
export const listTapes = (
  db: Queryable,
  projectId: ProjectId,
  options: { readonly isAll: boolean; readonly limit: number },
): Promise<readonly ListedTape[]> => run<ListedTape>(db, LIST, [projectId, options.isAll, options.limit]);

const OF_WORKSPACE = statement(`
  with recursive /* list.of_workspace */
  found (name) as (
    select b.tape_name
    from boxcar.boxes b
    where b.project_id = $1
      and b.kind = 'tape'
      and b.archived_at is null
      and starts_with(b.tape_name, $2)
    union
    select s.name
    from found f
    join boxcar.sessions s on s.project_id = $1 and s.parent_session_id = f.name
  )
  select b.id as box_id
  from found f
  join boxcar.boxes b
    on b.project_id = $1
    and b.tape_name = f.name
    and b.kind = 'tape'
    and b.archived_at is null
  order by b.id`);

/** Tapes whose names begin with `prefix`, and tapes of the sessions that were forked from them; the oldest first. */
export const listWorkspaceTapes = async (
  db: Queryable,
  projectId: ProjectId,
  prefix: string,
): Promise<readonly BoxId[]> =>
  (await run<{ box_id: BoxId }>(db, OF_WORKSPACE, [projectId, prefix])).map(({ box_id: id }) => id);

/** The list row of one tape; undefined when it does not exist. */
export const findListedTape = async (
  db: Queryable,
  projectId: ProjectId,
  boxId: BoxId,
): Promise<ListedTape | undefined> => (await run<ListedTape>(db, FIND, [projectId, boxId]))[0];
