/** The present views of agents, for packing them. */
import type { AgentId, BoxId, CardId, JsonObject } from '@boxcar/kernel';
import type pg from 'pg';
import { type Queryable, run, statement } from '../db/index.js';
import { ACCESS } from '../rows/index.js';
import {
  entriesOf,
  hiddenContext,
  isHidden,
  isLent,
  lastAnchorOf,
  viewAnchorOf,
  viewPositionOf,
  viewStartAt,
} from '../visible/index.js';
import type { LoadBoxesOptions } from './boxes.js';

// Takes no locks: the view of an agent is read while its turn goes on. All parts are of one snapshot, so entries, anchor and open turn fit
// together; a step in progress is marked as open.
const SNAPSHOTS = statement(`
  select /* snapshots.snapshots */ w.n::int as n, s.*
  from unnest($1::uuid[], $4::boolean[]) with ordinality as w(agent_id, is_full, n)
  cross join lateral (
    with want_boxes as materialized (
      select
        a.id as agent_id, a.owner_agent_id as maker_id, a.owner_agent_id = $3 as is_ward,
        case when $3 = a.id then coalesce(a.owner_agent_id, a.id) else $3 end as reader_id,
        b.*, ${ACCESS}
      from boxcar.agents a
      join boxcar.boxes b on b.id = a.tape_box_id
      join boxcar.projects p on p.id = b.project_id
      where a.id = w.agent_id and a.project_id = $2
    ),
    tape as (
      select
        *, reads <> '{}' as is_readable,
        least(head_position, coalesce(upper(reads) - 1, head_position)) as last_position
      from (select *, case when is_ward then '{[1,)}' else readable end as reads from want_boxes) w
    ),
    open_turn as (
      select t.id, t.step_count, t.start_position, t.context_box_id, t.own_view_anchor, t.own_view_position
      from boxcar.turns t
      join tape b on b.agent_id = t.agent_id
      where t.status in ('running', 'suspended', 'dispatched')
    ),
    -- who may read a part of it sees what its agent saw there, but for what was before that part
    begun as (
      select
        b.*, v.anchor_position,
        case
          when v.anchor_position = v.at_head then ${viewPositionOf('o', 'b')}
          else ${viewStartAt('b.id', 'v.anchor_position')}
        end as from_position
      from tape b
      left join open_turn o on o.start_position is not null
      cross join lateral (
        select
          a.at_head,
          case
            when a.at_head <= b.last_position then a.at_head
            else ${lastAnchorOf('b', 'b.last_position')}
          end as anchor_position
        from (select ${viewAnchorOf('o', 'b')} as at_head) a
      ) v
    ),
    entries as (
      select
        e.position, e.kind, e.card_id, e.tokens, e.payload, e.turn_id,
        exists (
          select from open_turn o
          join boxcar.tool_calls k on k.turn_id = o.id and k.step = o.step_count
          where e.turn_id = o.id
            and e.step = o.step_count
            and not exists (
              select from boxcar.tape_entries done
              where done.box_id = e.box_id
                and done.turn_id = o.id
                and done.step = o.step_count
                and done.kind = 'tool_result'
            )
        ) as is_open,
        case
          when e.kind = 'event' and e.payload->>'name' = 'turn.started' then ${isHidden('held', 'e', '$3')}
        end as is_hidden,
        case
          when e.kind = 'event' and e.payload->>'name' = 'turn.started'
            then ${isLent('held.id', 'e', 'held.reader_id')}
        end as is_lent
      from begun held
      cross join lateral ${entriesOf('held', {
        from: 'case when w.is_full then 1 else held.from_position end',
        to: 'held.last_position',
      })} e
      where e.position <@ held.reads
    )
    select
      b.id as tape_id, b.is_readable, b.is_ward, b.anchor_position as last_anchor_position, e.position, e.kind,
      e.card_id, e.tokens, e.is_open, e.is_lent,
      case
        when e.kind = 'event' and e.payload->>'name' = 'turn.started' and not e.is_hidden
          then (e.payload->'data'->>'context_box_id')::uuid
      end as context_box_id,
      (
        select o.context_box_id
        from open_turn o
        where o.start_position < b.anchor_position and o.start_position <@ b.reads
      ) as early_context_box_id,
      a.compaction
    from begun b
    left join entries e on true
    left join lateral (
      select json_build_object(
        'metadata', json_build_object('compaction', c.metadata->'compaction'),
        'is_by_kernel', c.author_id = 'kernel',
        'is_hidden', held.anchor_position <= held.fork_position
          and ${hiddenContext('held', { from: '1', to: 'held.fork_position', maker: 'held.reader_id' })} is not null,
        'is_of_open_turn', e.turn_id in (select o.id from open_turn o)
      ) as compaction
      from boxcar.cards c
      cross join begun held
      where c.id = e.card_id
        and e.kind = 'anchor'
        and e.position = b.anchor_position
        and c.metadata ? 'compaction'
        and not w.is_full
    ) a on true
    offset 0
  ) s
  order by w.n, s.position`);

export interface SnapshotEntry extends pg.QueryResultRow {
  readonly tape_id: BoxId;
  /** False: the actor may not see the view of this agent, so the result has no entries. */
  readonly is_readable: boolean;
  /** The actor launched this agent. */
  readonly is_ward: boolean | null;
  /** The anchor at which the view begins. */
  readonly last_anchor_position: number;
  readonly position: number | null;
  readonly kind: string;
  readonly card_id: CardId | null;
  readonly tokens: number;
  readonly is_open: boolean;
  readonly context_box_id: BoxId | null;
  readonly early_context_box_id: BoxId | null;
  /** For a session: the context belongs to a turn before the fork, and the agent that forked the session did not make it. */
  readonly is_lent?: boolean | null;
  /** The anchor at which the view begins, when it is a compaction. */
  readonly compaction?: {
    readonly metadata: JsonObject;
    readonly is_by_kernel: boolean;
    /** For a session: the anchor may replace a context that the agent which forked the session may not read. */
    readonly is_hidden: boolean;
    /** The turn in progress wrote the anchor, so it also says which parts of the turn's context are shown. */
    readonly is_of_open_turn: boolean;
  } | null;
}

/** A request for the snapshot of an agent. */
export interface SnapshotRequest {
  readonly agentId: AgentId;
  /** The whole tape, not only the part since the last anchor. */
  readonly isFull: boolean;
}

/**
 * The present views of agents, as entries of their tapes: since the last anchor, or all. Entries of an open step (calls without results)
 * are marked, and the start of each turn names its context box. A view is visible to the agent itself, the agent that launched it, holders
 * of a grant on its tape (up to its last position), and the operator. One statement for any number of agents.
 *
 * @returns The entries of each request, in order.
 */
export async function loadSnapshots(
  db: Queryable,
  requests: readonly SnapshotRequest[],
  options: LoadBoxesOptions,
): Promise<readonly SnapshotEntry[][]> {
  const snapshots: SnapshotEntry[][] = requests.map(() => []);
  if (requests.length === 0) return snapshots;
  const rows = await run<SnapshotEntry & { n: number }>(db, SNAPSHOTS, [
    requests.map((request) => request.agentId),
    options.projectId,
    options.actorId,
    requests.map((request) => request.isFull),
  ]);
  for (const { n, ...entry } of rows) snapshots[n - 1]?.push(entry as SnapshotEntry);
  return snapshots;
}
