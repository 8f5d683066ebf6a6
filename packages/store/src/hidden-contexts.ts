/** Which contexts a forked tape would show whoever made the fork, who may not read them. Rule: docs/security.md, "Reading". */
import { readsAll } from './rights.js';
import { entriesOf, viewStartAt } from './tape-line.js';

/**
 * SQL of the newest context box that starts of turns on a tape name, between two positions, and that `maker` may not read; null = none.
 *
 * The agent of the tape, and who launched it, see the contexts of its own turns anyway; of a session also those that its views have shown
 * since it was forked.
 *
 * @param tape - The row of the tape; neither `b`, `e`, `n`, `o` nor `p`.
 */
export const hiddenContext = (
  tape: string,
  { from, to, maker }: { readonly from: string; readonly to: string; readonly maker: string },
): string => `
  (select b.id from boxcar.projects p left join boxcar.agents o on o.id = ${tape}.owner_agent_id and o.tape_box_id = ${tape}.id
    left join lateral (select ${viewStartAt(`${tape}.id`, 'n.from_position')} as position from boxcar.sessions n where n.id = ${tape}.id) seen on true
    cross join lateral ${entriesOf(tape, { from, to, where: "o.kind = 'event' and o.payload->>'name' = 'turn.started'" })} e
    join boxcar.boxes b on b.id = (e.payload->'data'->>'context_box_id')::uuid
  where p.id = ${tape}.project_id and p.operator_agent_id <> ${maker}
    and not coalesce((o.id = ${maker} or o.owner_agent_id = ${maker}) and (e.box_id = ${tape}.id or e.position >= seen.position), false)
    and not ${readsAll(maker)}
  order by e.position desc limit 1)`;
