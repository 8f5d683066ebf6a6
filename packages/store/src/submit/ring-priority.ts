/**
 * The priority of the ring of a new turn. It is the number of turns of the same project that run at the same target, unless a turn of
 * the project waits there for a worker. So the first turns of a project are rung before the many turns of another project. When a turn
 * of the project waits, the ring has the last priority: it must not overtake that turn, whose priority was counted at another moment.
 *
 * R1  The priority is a hint. The statement that dispatches the turns counts it from the rows before it. Turns of one statement are
 *     counted one after the other, by their own priority, then by age.
 * R2  A turn that has begun (resumed, taken over, handed back) is rung with priority 1, without a count.
 * R3  Within a project, new turns are rung in the order in which they enter the window: rings of equal priority keep their order.
 * R4  No ring waits forever. One step of priority above 0 is worth one second (`ring-order.ts` of the runtime), so older rings pass
 *     newer rings in the end. The sweep also raises the oldest ring of each target, and the oldest ring of each project without a
 *     running turn there.
 */

/** The priority of rings that follow waiting turns of their project. All other priorities are lower. */
const LAST_PRIORITY = 8;

/** The number of turns of each project that are under way at the targets of `new_turns`, and how many of these wait. */
export const UNDER_WAY = `
  under_way as materialized (
    select o.worker_target, o.project_id, count(*)::int as n, count(*) filter (where o.is_waiting)::int as waiting
    from (
      select d.worker_target, d.project_id, true as is_waiting
      from (select distinct worker_target from new_turns) g
      cross join lateral (
        select t.worker_target, t.project_id
        from boxcar.turns t
        where t.status = 'dispatched' and t.worker_target = g.worker_target
        order by t.dispatched_at
        offset 0
      ) d
      union all
      (
        select t.worker_target, t.project_id, false
        from boxcar.turns t
        where t.status = 'running'
        order by t.holder_id
        offset 0
      )
    ) o
    group by o.worker_target, o.project_id
  )`;

const ofProject = (column: string, of: string): string => `
  coalesce((
    select u.${column}
    from under_way u
    where u.worker_target = ${of}.worker_target and u.project_id = ${of}.project_id
  ), 0)`;

/** The number of turns under way that have the project and target of a row `of`. */
export const underWayOf = (of: string): string => ofProject('n', of);

/**
 * The priority of a ring, from the turns of its project that were under way before it: `waiting` of them wait, and `before` is their
 * total.
 */
export const ringPriority = (waiting: string, before: string): string =>
  `case when ${waiting} > 0 then ${LAST_PRIORITY} else least(${before}, ${LAST_PRIORITY}) end`;

/** The same for a row of `new_turns`. `rank` is the row's place among the rows of its project in this statement, counted from 0. */
export const ringPriorityOf = (of: string, rank: string): string =>
  ringPriority(ofProject('waiting', of), `${underWayOf(of)} + ${rank}`);
