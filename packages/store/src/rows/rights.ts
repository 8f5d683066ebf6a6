/**
 * The rights to read, as SQL: the only place that defines which agent may read which box. Rule: docs/explanation/security.md.
 *
 * Agent $3 may read a box `b` of project `p`
 *
 * R1  as a whole, when the agent owns or made it, is the operator, or it is the agent's own profile;
 * R2  as far as a grant allows that has not expired;
 * R3  when it is a tape, at the positions written by ended turns that turns of the agent have asked for, or whose end was reported to
 *     the agent. This follows from the rows of the turns: no grant is written, taken back or passed on for it.
 */

import { type AgentId, type BoxId, ENTRY_KINDS } from '@boxcar/kernel';

/**
 * The grant of `agent` on a box, expired or not, as a condition on the grant `g`. Ends of turns used to write grants, and older builds
 * still do: these grants are ignored.
 */
const wasGranted = (mode: 'read' | 'append', agent: string, box = 'b.id'): string =>
  `g.agent_id = ${agent} and g.box_id = ${box} and g.mode = '${mode}' and g.source not like 'turn:%'`;

/** The same, as it is when the statement begins: a transaction, especially a caller's, may be older than the end of a right. */
const isGranted = (mode: 'read' | 'append', agent: string, box = 'b.id'): string =>
  `${wasGranted(mode, agent, box)} and (g.expires_at is null or g.expires_at > statement_timestamp())`;

/** The right of `agent` to box `b` by a grant; null without one. */
export const grantOf = (mode: 'read' | 'append', agent = '$3'): string => `
  (
    select json_build_object('upto', g.upto_position, 'until', g.expires_at)
    from boxcar.grants g
    where ${isGranted(mode, agent)}
  )`;

/** Whether `agent` owns or made box `b`, or is the operator of its project `p`. */
export const owns = (agent: string): string =>
  `(p.operator_agent_id = ${agent} or b.owner_agent_id = ${agent} or b.maker_agent_id = ${agent})`;

export const OWNS = owns('$3');

const holds = (agent: string): string => `
  (
    ${owns(agent)}
    or exists (
      select from boxcar.agents a
      join boxcar.profiles f on f.id = a.profile_id
      where a.id = ${agent} and f.box_id = b.id
    )
  )`;

/** Whether `agent` may read all of box `b` of project `p`, including later entries. */
export const readsAll = (agent: string): string => `
  (
    ${holds(agent)}
    or exists (select from boxcar.grants g where ${isGranted('read', agent)} and g.upto_position is null)
  )`;

/** Whether an ended turn `c` wrote for `agent` (R3). */
export const wroteFor = (agent: string): string => `
  (
    c.ended_at is not null
    and c.agent_id <> ${agent}
    and (
      c.told_agent_id = ${agent}
      or (c.is_woken is not true and (select q.agent_id from boxcar.turns q where q.id = c.parent_turn_id) = ${agent})
    )
  )`;

const KINDS = `'{${ENTRY_KINDS.join(',')}}'`;

// The entries of a turn are between its start and the start of the next turn: a tape has one turn at a time. A turn that ended before it
// began has entries with the time of its end. Like all rights of this file it takes no locks: where a right must still hold at the commit,
// the statement that reads it begins after the lock of the box or of the grant.
const writtenFor = (agent: string): string => `
  (
    select range_agg(int4range(w.position, w.position, '[]'))
    from boxcar.turns c
    cross join lateral (
      select min(x.position) as at
      from boxcar.tape_entries x
      where x.box_id = b.id
        and x.kind = 'event'
        and x.position > c.start_position
        and x.payload->>'name' = 'turn.started'
    ) next
    cross join lateral (
      select e.position
      from boxcar.tape_entries e
      where e.box_id = b.id
        and e.position >= c.start_position
        and e.position < coalesce(next.at, ${2 ** 31 - 1})
        and e.turn_id = c.id
      union all
      select e.position
      from boxcar.tape_entries e
      where c.start_position is null
        and e.box_id = b.id
        and e.kind = any (${KINDS})
        and e.created_at = c.ended_at
        and e.turn_id = c.id
    ) w
    where c.output_box_id = b.id
      and (c.parent_turn_id is not null or c.told_agent_id is not null)
      and ${wroteFor(agent)}
  )`;

const readableOf = (agent: string, isGrant: string): string => `
  case
    when ${holds(agent)} then '{[1,)}'::int4multirange
    else coalesce((
      select int4multirange(int4range(1, g.upto_position, '[]'))
      from boxcar.grants g
      where ${isGrant}
    ), '{}') + coalesce(case when b.kind = 'tape' then ${writtenFor(agent)} end, '{}')
  end`;

/** The positions of box `b` that agent $3 may read, as an int4multirange; empty = none. For a sealed box, all or none. */
export const READABLE = readableOf('$3', isGranted('read', '$3'));

/** The positions of box `b` that `agent` may read, or could read until its grant expired. */
export const onceReadable = (agent: string): string => readableOf(agent, wasGranted('read', agent));

/**
 * Whether `agent`, which is not a holder of tape `box`, may read entry `e` of it (R2, R3). Costs a few look-ups by key for each entry,
 * however long the tape is.
 */
export const readsEntry = (e: string, box: string, agent: string): string => `
  (
    exists (
      select from boxcar.grants g
      where ${isGranted('read', agent, box)}
        and (g.upto_position is null or g.upto_position >= ${e}.position)
    )
    or exists (
      select from boxcar.turns c
      where c.id = ${e}.turn_id
        and c.output_box_id = ${box}
        and ${e}.box_id = ${box}
        and ${wroteFor(agent)}
        and case
          when c.start_position is null then ${e}.created_at = c.ended_at
          else ${e}.position >= c.start_position
            and not exists (
              select from boxcar.tape_entries x
              where x.box_id = ${box}
                and x.kind = 'event'
                and x.position > c.start_position
                and x.position <= ${e}.position
                and x.payload->>'name' = 'turn.started'
            )
        end
    )
  )`;

/** Whether ended turns wrote to tape `b` for agent $3 (R3). */
const READS_PART = `
  exists (
    select from boxcar.turns c
    where c.output_box_id = b.id
      and (c.parent_turn_id is not null or c.told_agent_id is not null)
      and ${wroteFor('$3')}
  )`;

/** How agent $3 may read box `b`: `all`, `part` (R3), `upto` (the end of a grant) or `none`. Reads no entries. */
export const READS = `
  case
    when ${readsAll('$3')} then 'all'
    when ${READS_PART} then 'part'
    when ${grantOf('read')} is not null then 'upto'
    else 'none'
  end`;

/** `is_own` (R1) and `granted` (R2). Fails closed: without a row there is no right. A right to append is not a right to read. */
export const HELD = `${holds('$3')} as is_own, ${grantOf('read')} as granted`;

/** The same, and `readable` (all rules). For R3 it reads the turns and entries of the whole tape. */
export const ACCESS = `${HELD}, ${READABLE} as readable`;

/** The boxes that agent $3 may read a part of by R3. */
export const WRITTEN_BOXES = `
  select c.output_box_id
  from boxcar.boxes own
  join boxcar.tape_entries s on s.box_id = own.id and s.kind = 'event' and s.payload->>'name' = 'turn.started'
  join boxcar.turns c on c.parent_turn_id = s.turn_id
  where own.owner_agent_id = $3
    and own.kind = 'tape'
    and c.ended_at is not null
    and c.is_woken is not true
  union all
  select c.output_box_id
  from boxcar.turns c
  where c.told_agent_id = $3`;

/**
 * Whether agent $3 may know how turn `c` on tape `b` of project `p` ends. The agent may know it when it asked for the turn, may read
 * the entries of the turn, or may read the deliverable by a grant with a last position.
 */
export const KNOWS_END = `
  (
    (
      c.is_woken is not true
      and coalesce((select q.agent_id from boxcar.turns q where q.id = c.parent_turn_id) = $3, false)
    )
    or ${wroteFor('$3')}
    or ${readsAll('$3')}
    or exists (
      select from boxcar.grants g
      join boxcar.tape_entries e on e.box_id = b.id and e.position <= g.upto_position
      where ${isGranted('read', '$3')}
        and e.position >= coalesce(c.start_position, 1)
        and e.turn_id = c.id
        and e.card_id = c.deliverable_card_id
    )
  )`;

/** The agent whose rights decide about each entry of a tape. */
export interface PartReader {
  readonly agentId: AgentId;
  /** The tape that is read. Its entries may be in other boxes. */
  readonly boxId: BoxId;
}
