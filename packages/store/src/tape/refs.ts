/** Places on tapes: finds them by reference, reads up to a frozen head, and moves the right to append. Rule: docs/reference/tape.md, "References". */
import { type AgentId, type BoxId, type ProjectId, spellingsOf } from '@boxcar/kernel';
import type pg from 'pg';
import type { BoxGrant, LoadBoxesOptions, SnapshotEntry } from '../box/index.js';
import { type Queryable, run, statement, type Tx } from '../db/index.js';
import { ACCESS, grantOf } from '../rows/index.js';
import { entriesOf, lastAnchorOf, viewStartAt } from '../visible/index.js';

// The last anchor of a name in any of its spellings, $6: each spelling is found by the index of names.
const lastNamed = (): string => {
  const lastOf = (name: string): string =>
    lastAnchorOf(
      'b',
      'least($7, b.last_readable)',
      `
        hashtextextended(o.anchor_name, 0) = hashtextextended(${name}, 0)
        and o.anchor_name = ${name}
        and o.position <@ b.readable`,
    );
  return `greatest(${[1, 2, 3].map((n) => lastOf(`($6::text[])[${n}]`)).join(', ')})`;
};

// An id finds a tape in any incarnation, or the tape of an agent; a name finds the present tape. Takes no locks: entries up to the head of
// this snapshot never change. Rights and owner are those of this moment.
const FIND_PLACE = statement(`
  with /* refs.find_place */
  named as (
    select coalesce(
      (select b.id from boxcar.boxes b where b.id = $1 and b.project_id = $2 and b.kind = 'tape'),
      (select a.tape_box_id from boxcar.agents a where a.id = $1 and a.project_id = $2),
      (
        select x.id
        from unnest($4::text[]) with ordinality as s(name, n)
        cross join lateral (
          select b.id
          from boxcar.boxes b
          where b.project_id = $2 and b.tape_name = s.name and b.archived_at is null
        ) x
        order by s.n
        limit 1
      ),
      (
        select x.tape_box_id
        from unnest($4::text[]) with ordinality as s(name, n)
        cross join lateral (select a.tape_box_id from boxcar.agents a where a.project_id = $2 and a.name = s.name) x
        order by s.n
        limit 1
      )
    ) as id
  ),
  tape as materialized (
    select
      b.*, p.name as workspace, p.operator_agent_id, ${ACCESS}, ${grantOf('append')} as append_grant,
      exists (select from boxcar.agents a where a.id = b.owner_agent_id and a.tape_box_id = b.id) as is_rolling
    from named n
    join boxcar.boxes b on b.id = n.id
    join boxcar.projects p on p.id = b.project_id
  ),
  bounded as (
    select t.*, least(t.head_position, upper(t.readable) - 1) as last_readable
    from tape t
  ),
  placed as (
    select
      b.*,
      case
        when $5::int is not null then $5
        when $6::text[] is null then least($7, b.last_readable)
        else ${lastNamed()}
      end as position
    from bounded b
  ),
  -- an imported tape may be without any anchor
  begun as (
    select
      b.*,
      nullif(
        case
          when $6::text[] is null and b.position >= b.last_anchor_position
            then coalesce(b.view_anchor_position, b.last_anchor_position)
          else ${lastAnchorOf('b', 'b.position')}
        end,
        0
      ) as start_position
    from placed b
  )
  select
    b.id as box_id, b.workspace, b.operator_agent_id, b.owner_agent_id, b.maker_agent_id, b.is_rolling,
    b.head_position, b.last_readable, b.archived_at is not null as is_archived, b.fork_status <> 'open' as is_closed,
    b.is_own, b.granted, b.append_grant, b.readable::text as readable, b.position <@ b.readable as is_readable,
    b.position, b.start_position,
    case
      when b.start_position = coalesce(b.view_anchor_position, b.last_anchor_position) then b.view_position
      else ${viewStartAt('b.id', 'b.start_position')}
    end as from_position
  from begun b`);

/** A place on a tape, with the rights of the requesting actor. */
export interface TapePlace extends pg.QueryResultRow {
  readonly box_id: BoxId;
  /** The name of the project. */
  readonly workspace: string;
  readonly operator_agent_id: AgentId;
  readonly owner_agent_id: AgentId | null;
  readonly maker_agent_id: AgentId | null;
  /** True for the tape to which its owner's turns write. */
  readonly is_rolling: boolean;
  readonly is_archived: boolean;
  /** The tape is a fork that was merged or discarded; null: not a fork. */
  readonly is_closed: boolean | null;
  readonly head_position: number;
  /** The last position that the actor may read. */
  readonly last_readable: number;
  readonly is_own: boolean;
  readonly granted: BoxGrant | null;
  readonly append_grant: BoxGrant | null;
  /** An int4multirange: the positions that the actor may read. */
  readonly readable: string;
  /** The actor may read the place itself; null when `position` is null. */
  readonly is_readable: boolean | null;
  /** The requested position, even after the end of the tape; null for a missing anchor. */
  readonly position: number | null;
  /**
   * The anchor with which a view begins there: the last anchor up to the place. A fork that continues in its parent's view is an
   * exception. Null without an anchor.
   */
  readonly start_position: number | null;
  /** The first position of that view: the anchor, or an earlier entry that the view still shows; null without an anchor. */
  readonly from_position: number | null;
}

export interface PlaceRequest {
  readonly tape: { readonly id: string | undefined; readonly name: string };
  /** Without `position` and `anchor`, the place is the head. */
  readonly position?: number | undefined;
  readonly anchor?: string | undefined;
  /** Anchors after this position are ignored. */
  readonly head?: number | undefined;
}

/** Finds a tape by id or name, and a place on it; undefined when the project has no such tape. */
export async function findTapePlace(
  db: Queryable,
  { tape, position, anchor, head }: PlaceRequest,
  { projectId, actorId }: LoadBoxesOptions,
): Promise<TapePlace | undefined> {
  const [place] = await run<TapePlace>(db, FIND_PLACE, [
    tape.id ?? null,
    projectId,
    actorId,
    spellingsOf(tape.name),
    position ?? null,
    anchor === undefined ? null : spellingsOf(anchor),
    head ?? null,
  ]);
  return place;
}

// A call is shown only together with its result: a call whose result is after the head or on the other side of an anchor is marked as
// open. Results are in the order of their calls. Takes no locks: $3 is a head that was read before, and entries up to there never change.
const LOAD_SLICE = statement(`
  with /* refs.load_slice */
  slice as (
    select
      e.position, e.kind, e.card_id, e.tokens, e.payload, e.turn_id, e.step,
      bool_or(e.kind = 'tool_call') over same_step as has_calls,
      count(*) filter (where e.kind = 'tool_result') over same_step as results,
      bool_or(e.kind = 'tool_result' and e.position = $3::int) over same_step as is_cut,
      row_number() over (partition by e.turn_id, e.step, e.kind order by e.position) as rank
    from boxcar.boxes b
    cross join lateral ${entriesOf('b', {
      from: '$4::int',
      to: '$3::int',
      where: 'o.position <@ $5::int4multirange',
    })} e
    where b.id = $1
    window same_step as (partition by e.turn_id, e.step)
  ),
  -- who was at work when the anchor was written: its turn has begun before, on this tape
  early_context as (
    select (e.payload->'data'->>'context_box_id')::uuid as id
    from (
      select s.turn_id
      from slice s
      where s.turn_id is not null
      order by s.position
      limit 1
    ) s
    join boxcar.turns t on t.id = s.turn_id and t.start_position < $2 and t.start_position <@ $5::int4multirange
    cross join boxcar.boxes b
    cross join lateral ${entriesOf('b', {
      from: 't.start_position',
      to: 't.start_position',
      where: "o.kind = 'event' and o.turn_id = t.id",
    })} e
    where b.id = $1
  )
  select
    $1::uuid as tape_id, true as is_readable, null::boolean as is_ward, $2::int as last_anchor_position, s.position,
    s.kind, s.card_id, s.tokens,
    s.step is not null
    and case s.kind
      when 'tool_result' then not s.has_calls
      when 'tool_call' then s.results = 0 or s.is_cut and s.rank > s.results
      when 'message' then s.has_calls and s.results = 0
      else false
    end as is_open,
    case
      when s.kind = 'event' and s.payload->>'name' = 'turn.started' then (s.payload->'data'->>'context_box_id')::uuid
    end as context_box_id,
    (select c.id from early_context c) as early_context_box_id
  from slice s
  order by s.position`);

/**
 * The entries of a tape from one position to another that the actor may read, as a snapshot for the agent that worked there when the
 * anchor was written.
 */
export function loadTapeSlice(
  db: Queryable,
  slice: { readonly anchor: number; readonly from: number; readonly to: number },
  { box_id, readable }: Pick<TapePlace, 'box_id' | 'readable'>,
): Promise<readonly SnapshotEntry[]> {
  return run<SnapshotEntry>(db, LOAD_SLICE, [box_id, slice.anchor, slice.to, slice.from, readable]);
}

const LOCK_TAPE = statement(
  "select /* refs.lock_tape */ id from boxcar.boxes where id = $1 and kind = 'tape' for no key update",
);

/** Locks a tape, so that its owner and its head do not change until the transaction ends. */
export async function lockTape(tx: Tx, boxId: BoxId): Promise<void> {
  await run(tx, LOCK_TAPE, [boxId]);
}

const LOCK_GRANTS = statement(`
  select /* refs.lock_grants */
  from boxcar.grants
  where agent_id = $2 and box_id = any ($1::uuid[])
  order by box_id, mode
  for update`);

/**
 * Locks the grants of an agent on tapes, so that they do not change until the transaction ends. Must be taken before locks of runs and
 * agents.
 */
export async function lockGrants(tx: Tx, boxIds: readonly BoxId[], agentId: AgentId): Promise<void> {
  await run(tx, LOCK_GRANTS, [boxIds, agentId]);
}

const MOVE_TAPE = statement(
  'update /* refs.move_tape */ boxcar.boxes set owner_agent_id = $2, maker_agent_id = $2 where id = $1',
);
const END_APPENDING = statement(`
  delete /* refs.end_appending */ from boxcar.grants
  where project_id = $1
    and box_id = $2
    and agent_id = any ($3::uuid[])
    and mode = 'append'`);

/** Ends the granted rights of agents to append; with `newOwnerId`, makes that agent the owner of the tape. */
export async function handOverTape(
  tx: Tx,
  move: {
    readonly projectId: ProjectId;
    readonly boxId: BoxId;
    readonly fromAgentIds: readonly AgentId[];
    readonly newOwnerId: AgentId | undefined;
  },
): Promise<void> {
  if (move.newOwnerId !== undefined) await run(tx, MOVE_TAPE, [move.boxId, move.newOwnerId]);
  await run(tx, END_APPENDING, [move.projectId, move.boxId, move.fromAgentIds]);
}
