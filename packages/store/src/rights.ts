/**
 * Who may read what: the one place where it is said, as SQL. Rule: docs/security.md.
 *
 * A box `b` of project `p` is read by agent $3
 *
 * R1  whole, when the agent owns or made it, is the operator, or it is the agent's own profile;
 * R2  as far as a grant says that has not expired;
 * R3  a tape at the positions that ended turns wrote which turns of the agent have asked for, or whose end the agent was told. This
 *     follows from the rows of the turns: nobody writes it, takes it back or passes it on.
 */

import { ENTRY_KINDS } from '@boxcar/kernel';

/** The right of agent $3 to box `b`, as it stands. Ends of turns wrote grants once, and older builds still do: they say nothing. */
export const grantOf = (mode: 'read' | 'append'): string => `
  (select json_build_object('upto', g.upto_position, 'until', g.expires_at) from boxcar.grants g
    where g.agent_id = $3 and g.box_id = b.id and g.mode = '${mode}' and (g.expires_at is null or g.expires_at > now()) and g.source not like 'turn:%')`;

/** Whether agent $3 owns or made box `b`, or is the operator of its project `p`. */
export const OWNS = '(p.operator_agent_id = $3 or b.owner_agent_id = $3 or b.maker_agent_id = $3)';

const HOLDS = `(${OWNS} or exists (select from boxcar.agents a join boxcar.profiles f on f.id = a.profile_id where a.id = $3 and f.box_id = b.id))`;

/** Whether an ended turn `c` wrote for `agent` (R3). */
export const wroteFor = (agent: string): string => `
  (c.ended_at is not null and c.agent_id <> ${agent} and (c.told_agent_id = ${agent}
    or (c.is_woken is not true and (select q.agent_id from boxcar.turns q where q.id = c.parent_turn_id) = ${agent})))`;

const KINDS = `'{${ENTRY_KINDS.join(',')}}'`;

// The entries of a turn stand between its start and the start of the next one: a tape has one turn at a time. A turn that ended
// before it began has left entries of that moment.
const WRITTEN_FOR = `
  (select range_agg(int4range(w.position, w.position, '[]'))
    from boxcar.turns c
      cross join lateral (select min(x.position) as at from boxcar.tape_entries x
        where x.box_id = b.id and x.kind = 'event' and x.position > c.start_position and x.payload->>'name' = 'turn.started') next
      cross join lateral (
        select e.position from boxcar.tape_entries e
        where e.box_id = b.id and e.position >= c.start_position and e.position < coalesce(next.at, ${2 ** 31 - 1}) and e.turn_id = c.id
        union all
        select e.position from boxcar.tape_entries e
        where c.start_position is null and e.box_id = b.id and e.kind = any (${KINDS}) and e.created_at = c.ended_at and e.turn_id = c.id) w
    where c.output_box_id = b.id and (c.parent_turn_id is not null or c.told_agent_id is not null) and ${wroteFor('$3')})`;

/** The positions of box `b` that agent $3 may read, as an int4multirange; empty = none. For a sealed box all or none. */
export const READABLE = `
  case when ${HOLDS} then '{[1,)}'::int4multirange
    else coalesce((select int4multirange(int4range(1, g.upto_position, '[]')) from boxcar.grants g
        where g.agent_id = $3 and g.box_id = b.id and g.mode = 'read' and (g.expires_at is null or g.expires_at > now()) and g.source not like 'turn:%'), '{}')
      + coalesce(case when b.kind = 'tape' then ${WRITTEN_FOR} end, '{}')
  end`;

/** `is_own` (R1), `granted` (R2) and `readable` (all). Fails closed: no row, no right; to append is not to read. */
export const ACCESS = `${HOLDS} as is_own, ${grantOf('read')} as granted, ${READABLE} as readable`;

/** The boxes that agent $3 may read a part of by R3. */
export const WRITTEN_BOXES = `
  select c.output_box_id from boxcar.boxes own
    join boxcar.tape_entries s on s.box_id = own.id and s.kind = 'event' and s.payload->>'name' = 'turn.started'
    join boxcar.turns c on c.parent_turn_id = s.turn_id
    where own.owner_agent_id = $3 and own.kind = 'tape' and c.ended_at is not null
  union all
  select c.output_box_id from boxcar.turns c where c.told_agent_id = $3`;

/** Positions that somebody may read. */
export interface ReadableRange {
  readonly from: number;
  /** Infinity: to the head and beyond. */
  readonly to: number;
}

/** Reads an int4multirange as Postgres writes it: `{[1,4),[7,)}`. */
export const readRanges = (text: string): readonly ReadableRange[] =>
  [...text.matchAll(/\[(\d+),(\d*)\)/g)].map(([, from, to]) => ({
    from: Number(from),
    to: to === '' ? Number.POSITIVE_INFINITY : Number(to) - 1,
  }));

/** The same as Postgres reads it; null = no bound, which costs nothing. */
export const toMultirange = (ranges: readonly ReadableRange[] | null | undefined): string | null =>
  ranges == null
    ? null
    : `{${ranges.map(({ from, to }) => `[${from},${Number.isFinite(to) ? to + 1 : ''})`).join(',')}}`;
