/**
 * Contexts that a forked tape would show to the maker of the fork although the maker may not read them. Rule:
 * docs/explanation/security.md, "Reading".
 */
import { owns, readsAll } from '../rows/index.js';
import { entriesOf, viewStartAt } from './ancestry.js';

/** The beginning of the views of a session: its contexts from there on have been shown. Empty for a tape without a session. */
const shownFrom = (tape: string): string => `
  left join lateral (
    select ${viewStartAt(`${tape}.id`, 'n.from_position')} as position
    from boxcar.sessions n
    where n.id = ${tape}.id
  ) seen on true`;

/**
 * SQL of the newest context box that starts of turns on a tape name, between two positions, and that `maker` may not read; null without
 * such a box.
 *
 * The agent of the tape, and the agent that launched it, see the contexts of its own turns anyway. For a session they also see the
 * contexts that its views have shown since it was forked.
 *
 * @param tape - The row of the tape; its alias must not be `b`, `e`, `n`, `o` or `p`.
 */
export const hiddenContext = (
  tape: string,
  { from, to, maker }: { readonly from: string; readonly to: string; readonly maker: string },
): string => `
  (
    select b.id
    from boxcar.projects p
    left join boxcar.agents o on o.id = ${tape}.owner_agent_id and o.tape_box_id = ${tape}.id
    ${shownFrom(tape)}
    cross join lateral ${entriesOf(tape, {
      from,
      to,
      where: "o.kind = 'event' and o.payload->>'name' = 'turn.started'",
    })} e
    join boxcar.boxes b on b.id = (e.payload->'data'->>'context_box_id')::uuid
    where p.id = ${tape}.project_id
      and p.operator_agent_id <> ${maker}
      and not coalesce(
        (o.id = ${maker} or o.owner_agent_id = ${maker}) and (e.box_id = ${tape}.id or e.position >= seen.position),
        false
      )
      and not ${readsAll(maker)}
    order by e.position desc
    limit 1
  )`;

/**
 * SQL of whether the start `entry` on the tape of an agent names a hidden context. A clone that this agent, or the agent that launched it,
 * makes must not show such a context. The context is from before the fork of a session, the views of the session have not shown it, and
 * neither of the two agents may read it.
 *
 * @param tape - A list with the tape's row, its `agent_id`, and the agent that launched that agent as `maker_id`; its alias must not be
 * `b`, `n`, `p` or `seen`.
 */
export const isHidden = (tape: string, entry: string, actor: string): string => `
  (
    ${entry}.box_id <> ${tape}.id
    and ${actor} in (${tape}.agent_id, ${tape}.maker_id)
    and exists (
      select from boxcar.boxes b
      join boxcar.projects p on p.id = b.project_id
      ${shownFrom(tape)}
      where b.id = (${entry}.payload->'data'->>'context_box_id')::uuid
        and not coalesce(${entry}.position >= seen.position, false)
        and not coalesce(${readsAll(`${tape}.maker_id`)}, false)
        and not ${readsAll(actor)}
    )
  )`;

/**
 * SQL of whether the start `entry`, which a tape has inherited, names a context that `maker` does not own. A mere right to read the
 * context does not include the contents that its summaries replace.
 *
 * @param tapeId - The id of the tape. The expressions must not refer to an alias `b` or `p`.
 */
export const isLent = (tapeId: string, entry: string, maker: string): string => `
  (
    ${entry}.box_id <> ${tapeId}
    and not exists (
      select from boxcar.boxes b
      join boxcar.projects p on p.id = b.project_id
      where b.id = (${entry}.payload->'data'->>'context_box_id')::uuid and ${owns(maker)}
    )
  )`;
