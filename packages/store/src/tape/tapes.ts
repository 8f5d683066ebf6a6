/** Tapes as rows: finds them by name, agent or box, and makes them with their bootstrap. Source: docs/reference/tape.md. */

import { type AgentId, type BoxId, type ProjectId, spellingsOf } from '@boxcar/kernel';
import type { BoxGrant } from '../box/index.js';
import { type Queryable, run, statement } from '../db/index.js';
import { bootstrapEntries, grantOf, HELD, READS } from '../rows/index.js';
import type { Row } from '../schema/index.js';

/** The address of a tape. After a reset, the address of an agent or a name means another tape. */
export type TapeAddress =
  | { readonly kind: 'box'; readonly boxId: BoxId }
  | { readonly kind: 'agent'; readonly agentId: AgentId }
  /** `given`: the original spelling, when it is not NFC. An older build may have stored the name in that form. */
  | { readonly kind: 'name'; readonly name: string; readonly given?: string };

/** The requesting agent, and its project. */
export interface TapeActor {
  readonly projectId: ProjectId;
  readonly actorId: AgentId;
}

export interface TapeRow {
  readonly boxId: BoxId;
  /** Null for the tape of an agent. */
  readonly name: string | null;
  readonly incarnation: number;
  readonly ownerAgentId: AgentId | null;
  readonly headPosition: number;
  readonly lastAnchorPosition: number;
  readonly anchorCount: number;
  readonly parentBoxId: BoxId | null;
  readonly forkPosition: number | null;
  readonly forkStatus: 'open' | 'merged' | 'discarded' | null;
  readonly isArchived: boolean;
  /** The actor owns or made the tape, or is the operator. */
  readonly isOwn: boolean;
  readonly readGrant: BoxGrant | null;
  readonly appendGrant: BoxGrant | null;
  /**
   * `all`: the whole tape; `upto`: up to the limit of the read grant; `part`: the parts that the read grant and ended turns of its
   * children allow; `none`.
   */
  readonly reads: 'all' | 'upto' | 'part' | 'none';
}

const TAPE = `
  select /* tapes.tape */ b.id as box_id, b.tape_name, b.incarnation, b.owner_agent_id, b.head_position,
    b.last_anchor_position, coalesce(b.anchor_count, 1) as anchor_count, b.parent_box_id, b.fork_position,
    b.fork_status, b.archived_at is not null as is_archived, ${HELD}, ${READS} as reads,
    ${grantOf('append')} as append_grant
  from boxcar.boxes b
  join boxcar.projects p on p.id = b.project_id
  where b.project_id = $2 and b.kind = 'tape' and `;

const FIND = {
  box: statement(`${TAPE} b.id = $1`),
  agent: statement(
    `${TAPE} b.id = (select a.tape_box_id from boxcar.agents a where a.id = $1 and a.project_id = $2)`,
  ),
  name: statement(`
    ${TAPE} b.tape_name = any ($1::text[]) and b.archived_at is null
    order by array_position($1::text[], b.tape_name)
    limit 1`),
} as const;

type TapeDbRow = Row<
  'boxes',
  'tape_name' | 'owner_agent_id' | 'parent_box_id' | 'fork_position' | 'fork_status',
  { box_id: 'id' }
> & {
  readonly incarnation: number;
  readonly head_position: number;
  readonly last_anchor_position: number;
  readonly anchor_count: number;
  readonly is_archived: boolean;
  readonly is_own: boolean;
  readonly granted: BoxGrant | null;
  readonly append_grant: BoxGrant | null;
  readonly reads: TapeRow['reads'];
};

function keyOf(address: TapeAddress): string | readonly string[] {
  if (address.kind === 'name') return spellingsOf(address.given ?? address.name);
  return address.kind === 'box' ? address.boxId : address.agentId;
}

/** A tape with the rights of the actor; undefined when it does not exist. The caller must check the right to read. */
export async function findTape(
  db: Queryable,
  address: TapeAddress,
  { projectId, actorId }: TapeActor,
): Promise<TapeRow | undefined> {
  const [row] = await run<TapeDbRow>(db, FIND[address.kind], [keyOf(address), projectId, actorId]);
  if (row === undefined) return undefined;
  return {
    boxId: row.box_id,
    name: row.tape_name,
    incarnation: row.incarnation,
    ownerAgentId: row.owner_agent_id,
    headPosition: row.head_position,
    lastAnchorPosition: row.last_anchor_position,
    anchorCount: row.anchor_count,
    parentBoxId: row.parent_box_id,
    forkPosition: row.fork_position,
    forkStatus: row.fork_status,
    isArchived: row.is_archived,
    isOwn: row.is_own,
    readGrant: row.granted,
    appendGrant: row.append_grant,
    reads: row.reads,
  };
}

// Two makers of one name: the second waits for the commit of the first at the index of names, and then skips the name.
const CREATE = statement(`
  with /* tapes.create */
  made as (
    insert into boxcar.boxes (
      id, project_id, kind, owner_agent_id, maker_agent_id, tape_name, incarnation, head_position,
      last_anchor_position, view_position, anchor_count
    )
    select
      x.id, $1, 'tape', $2, $2, x.name,
      coalesce((select max(b.incarnation) from boxcar.boxes b where b.project_id = $1 and b.tape_name = x.name), 0)
        + 1,
      2, 1, 1, 1
    from json_to_recordset($3::json) as x(id uuid, name text)
    on conflict do nothing
    returning id, project_id, owner_agent_id
  )
  insert into boxcar.tape_entries (box_id, position, kind, card_id, tokens, payload, anchor_name, author_id)
  select
    n.id, e.position, e.kind,
    case e.position when 1 then c.id end,
    case e.position when 1 then c.token_estimate else 0 end,
    e.payload::json, e.anchor_name, n.owner_agent_id::text
  from made n
  join boxcar.projects p on p.id = n.project_id
  join boxcar.cards c on c.id = p.bootstrap_card_id
  cross join ${bootstrapEntries()}`);

/** Makes tapes of these names with their bootstrap, owned by the actor; skips names that already have a tape. */
export async function createTapes(
  db: Queryable,
  { projectId, actorId }: TapeActor,
  tapes: readonly { readonly boxId: BoxId; readonly name: string }[],
): Promise<void> {
  const records = tapes.map(({ boxId, name }) => ({ id: boxId, name }));
  await run(db, CREATE, [projectId, actorId, JSON.stringify(records)]);
}

/** `createTapes` for one tape. */
export function createTape(
  db: Queryable,
  { boxId, name, ...actor }: TapeActor & { readonly boxId: BoxId; readonly name: string },
): Promise<void> {
  return createTapes(db, actor, [{ boxId, name }]);
}
