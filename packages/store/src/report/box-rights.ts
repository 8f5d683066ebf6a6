/** The boxes on the way of a card, and the rights by which they were read (`explain.ts`). */
import type { AgentId, BoxId } from '@boxcar/kernel';
import { type Queryable, run, statement } from '../db/index.js';
import { wroteFor } from '../rows/index.js';
import type { Outer, Row } from '../schema/index.js';
import type { BoxRight, BoxRow } from './turn-rows.js';

/**
 * Follows the boxes that callers named, from one to the next, and adds the leaf boxes that contain the cards. Takes no locks: the segments
 * of a box never change.
 */
const BOXES = statement(`
  with recursive /* box-rights.boxes */
  named(id) as (
    select unnest($1::uuid[])
    union
    select x.via
    from named n
    cross join lateral (
      select b.segments
      from boxcar.boxes b
      where b.id = n.id and b.kind = 'context'
      offset 0
    ) b, jsonb_array_elements(b.segments) s, jsonb_to_record(s) as x(via uuid)
    where x.via is not null
  ),
  wanted as (
    select id
    from named
    union
    select x.source
    from named n
    cross join lateral (
      select b.segments
      from boxcar.boxes b
      where b.id = n.id and b.kind = 'context'
      offset 0
    ) b, jsonb_array_elements(b.segments) s, jsonb_to_record(s) as x(source uuid)
    where x.source is not null
  )
  select b.id as "boxId", b.kind, b.owner_agent_id as "ownerAgentId", b.maker_agent_id as "makerAgentId",
    coalesce(b.segments, '[]') as segments
  from wanted w
  cross join lateral (select * from boxcar.boxes x where x.id = w.id offset 0) b`);

type BoxDbRow = Row<
  'boxes',
  'kind',
  { boxId: 'id'; ownerAgentId: 'owner_agent_id'; makerAgentId: 'maker_agent_id' }
> &
  Pick<BoxRow, 'segments'>;

export async function loadBoxRows(
  db: Queryable,
  boxIds: readonly BoxId[],
): Promise<ReadonlyMap<BoxId, BoxRow>> {
  const rows = await run<BoxDbRow>(db, BOXES, [boxIds]);
  return new Map(rows.map((row) => [row.boxId, row]));
}

// Takes no locks. The rights are those of this moment: a grant that was widened or removed since a box was packed shows its present state.
const RIGHTS = statement(`
  select /* box-rights.rights */
    w.actor_id, w.box_id,
    p.operator_agent_id = w.actor_id as is_operator,
    coalesce(b.owner_agent_id = w.actor_id, false) as is_owner,
    coalesce(b.maker_agent_id = w.actor_id, false) as is_maker,
    coalesce(o.owner_agent_id = w.actor_id, false) as is_launcher,
    exists (
      select from boxcar.agents a
      join boxcar.profiles f on f.id = a.profile_id
      where a.id = w.actor_id and f.box_id = b.id
    ) as is_profile,
    exists (
      select from boxcar.turns c
      where c.output_box_id = b.id
        and (c.parent_turn_id is not null or c.told_agent_id is not null)
        and ${wroteFor('w.actor_id')}
    ) as is_parent,
    g.source, g.upto_position, g.expires_at, g.created_at
  from unnest($1::uuid[], $2::uuid[]) as w(actor_id, box_id)
  cross join lateral (select * from boxcar.boxes x where x.id = w.box_id offset 0) b
  join boxcar.projects p on p.id = b.project_id
  left join lateral (select a.owner_agent_id from boxcar.agents a where a.id = b.owner_agent_id offset 0) o on true
  left join lateral (
    select *
    from boxcar.grants x
    where x.agent_id = w.actor_id
      and x.box_id = w.box_id
      and x.mode = 'read'
      and x.source not like 'turn:%'
    offset 0
  ) g on true`);

type RightDbRow = Outer<Row<'grants', 'source' | 'upto_position' | 'expires_at' | 'created_at'>> & {
  readonly actor_id: AgentId;
  readonly box_id: BoxId;
  readonly is_operator: boolean;
  readonly is_owner: boolean;
  readonly is_maker: boolean;
  readonly is_launcher: boolean;
  readonly is_profile: boolean;
  readonly is_parent: boolean;
};

export const rightKey = (actorId: AgentId, boxId: BoxId): string => `${actorId} ${boxId}`;

/**
 * The agent and the source box of each packing: the maker of each box on the way, with the boxes that its segments name and the boxes that
 * contain its cards.
 */
function readersOf(boxes: ReadonlyMap<BoxId, BoxRow>): readonly (readonly [AgentId, BoxId])[] {
  const pairs = new Map<string, readonly [AgentId, BoxId]>();
  for (const { makerAgentId, segments } of boxes.values()) {
    if (makerAgentId === null) continue;
    for (const { via, source } of segments) {
      for (const boxId of [via, source]) {
        if (boxId !== undefined) pairs.set(rightKey(makerAgentId, boxId), [makerAgentId, boxId]);
      }
    }
  }
  return [...pairs.values()];
}

export async function loadRights(
  db: Queryable,
  boxes: ReadonlyMap<BoxId, BoxRow>,
): Promise<ReadonlyMap<string, BoxRight>> {
  const pairs = readersOf(boxes);
  const rows = await run<RightDbRow>(db, RIGHTS, [
    pairs.map(([actorId]) => actorId),
    pairs.map(([, boxId]) => boxId),
  ]);
  return new Map(
    rows.map((row) => [
      rightKey(row.actor_id, row.box_id),
      {
        isOperator: row.is_operator,
        isOwner: row.is_owner,
        isMaker: row.is_maker,
        isProfile: row.is_profile,
        isLauncher: row.is_launcher,
        isParent: row.is_parent,
        grant:
          row.source === null || row.created_at === null
            ? null
            : {
                source: row.source,
                uptoPosition: row.upto_position,
                expiresAt: row.expires_at,
                createdAt: row.created_at,
              },
      },
    ]),
  );
}
