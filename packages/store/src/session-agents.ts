/** The agent of a session by name, made on first use with its tape, or with the tape that the name has already. */
import type { AgentId, ProfileId, ProjectId } from '@boxcar/kernel';
import type pg from 'pg';
import { type Queryable, run, statement } from './db.js';

// A tape that was made or imported by name before belongs to whoever did that, and whoever makes the agent may read all of it afterwards: what
// somebody else holds, the operator included, or an agent writes already, is not given away.
const ADOPT = statement(`
  with tape as materialized (
    select b.id, b.archived_at is null and b.fork_status is null and coalesce(b.owner_agent_id = $3, p.operator_agent_id = $3)
      and not exists (select from boxcar.agents a where a.id = b.owner_agent_id and a.tape_box_id = b.id) as is_free
    from boxcar.boxes b join boxcar.projects p on p.id = b.project_id where b.id = $1 for no key update of b
  ),
  moved as (update boxcar.boxes b set owner_agent_id = $2, maker_agent_id = case when $7 then $2 else b.maker_agent_id end from tape where b.id = tape.id and tape.is_free returning b.id)
  insert into boxcar.agents (id, project_id, name, profile_id, owner_agent_id, tape_box_id)
  select $2, $4, $5, $6, $3, moved.id from moved returning id`);

export interface SessionAgent {
  readonly agentId: AgentId;
  readonly projectId: ProjectId;
  readonly name: string;
  readonly profileId: ProfileId;
  /** Who makes it. */
  readonly makerId: AgentId;
  /** Its tape was made for it, just now. */
  readonly isFresh: boolean;
}

/** Makes an agent that writes this tape from now on, under the lock of its name. False: the tape is somebody else's. */
export async function giveTape(tx: Queryable, boxId: string, agent: SessionAgent): Promise<boolean> {
  const { agentId, projectId, name, profileId, makerId, isFresh } = agent;
  return (
    (await run<pg.QueryResultRow>(tx, ADOPT, [boxId, agentId, makerId, projectId, name, profileId, isFresh]))
      .length > 0
  );
}
