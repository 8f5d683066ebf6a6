/**
 * Whether the ends of a session's turns may be reported on a tape, and give the tape's agent turns. Waking an agent gives it a turn. So
 * the maker of the session needs the rights for giving turns, each time. Rule: docs/explanation/security.md, "Turns that nobody asked
 * for".
 */
import {
  type AgentId,
  type BoxId,
  checkDelegation,
  checkReuse,
  type DelegationPolicy,
  KernelError,
  type ProjectId,
  type TurnId,
} from '@boxcar/kernel';
import { type Queryable, run, statement } from '../db/index.js';
import type { Outer, Row } from '../schema/index.js';
import { grantOf, OWNS } from './rights.js';

/** The maker of a session, and a tape on which its ends are reported. */
export interface NotifyRight {
  readonly projectId: ProjectId;
  readonly boxId: BoxId;
  readonly makerId: AgentId;
}

const FACTS = statement(`
  select /* notify-rights.facts */
    p.operator_agent_id = m.id as is_operator,
    c.content->'data'->'delegation_policy' as policy,
    ${OWNS} or ${grantOf('append')} is not null as may_append,
    a.id as agent_id, a.name as agent_name, a.owner_agent_id, a.is_shared is true as is_shared,
    (${grantOf('append')}->>'until') is null and ${grantOf('append')} is not null as may_append_always,
    t.name as target_profile, t.tags as target_tags
  from boxcar.boxes b
  join boxcar.projects p on p.id = b.project_id
  join boxcar.agents m on m.id = $3 and m.project_id = p.id
  left join boxcar.profiles f on f.id = m.profile_id
  left join boxcar.cards c on c.id = f.card_id
  left join boxcar.agents a on a.id = b.owner_agent_id and a.tape_box_id = b.id
  left join boxcar.profiles t on t.id = a.profile_id
  where b.id = $1 and b.project_id = $2`);

type FactsRow = Outer<Row<'agents', 'owner_agent_id', { agent_id: 'id' }>> &
  Row<'agents', never, { agent_name: 'name' }> &
  Outer<Row<'profiles', never, { target_profile: 'name'; target_tags: 'tags' }>> & {
    readonly is_operator: boolean;
    readonly policy: DelegationPolicy | null;
    readonly may_append: boolean;
    readonly is_shared: boolean;
    readonly may_append_always: boolean;
  };

/**
 * The reason why the ends of a maker's session may not be reported on the tape; undefined when they may. The maker must be allowed to
 * append to the tape and, if it is the tape of another agent, to give this agent turns.
 */
export async function findNotifyRefusal(
  db: Queryable,
  { projectId, boxId, makerId }: NotifyRight,
): Promise<KernelError | undefined> {
  const [row] = await run<FactsRow>(db, FACTS, [boxId, projectId, makerId]);
  if (row?.may_append !== true)
    return new KernelError('box_not_authorized', {
      message: `Agent ${makerId} may not append to tape ${boxId}.`,
      details: { box_id: boxId, source_agent_id: makerId },
    });
  if (row.agent_id === null || row.agent_id === makerId) return undefined;
  const maker = { agentId: makerId, isOperator: row.is_operator, policy: row.policy ?? undefined };
  try {
    checkDelegation(maker, { profileName: row.target_profile ?? '', tags: row.target_tags ?? [] });
    checkReuse(maker, {
      agentId: row.agent_id,
      name: row.agent_name,
      ownerAgentId: row.owner_agent_id,
      isShared: row.is_shared,
      mayAppend: row.may_append_always,
    });
  } catch (error) {
    if (error instanceof KernelError && error.code === 'delegation_denied') return error;
    throw error;
  }
  return undefined;
}

const MAKER = statement(`
  select /* notify-rights.maker */ m.id
  from (
    select a.owner_agent_id as id, 1 as rank
    from boxcar.turns t
    join boxcar.agents a on a.id = t.agent_id
    where t.id = $1 and exists (select from boxcar.sessions s where s.agent_id = a.id)
    union all
    select h.source_agent_id, 2
    from boxcar.handoffs h
    where h.turn_id = $1 and h.notifies
  ) m
  order by m.rank
  limit 1`);

/**
 * The maker of the session that a turn belongs to, or of the handoff that the turn served and whose end must be reported; undefined for
 * other turns.
 */
export async function findSessionMaker(db: Queryable, turnId: TurnId): Promise<AgentId | undefined> {
  const [row] = await run<{ id: AgentId | null }>(db, MAKER, [turnId]);
  return row?.id ?? undefined;
}
