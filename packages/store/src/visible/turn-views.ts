/**
 * The beginning of a turn's view, when the turn itself defines it. The position is in the turn's row from its submission on. It is valid
 * until the first anchor that is written after the turn began. Source: docs/reference/views.md, "Where a view begins".
 */
import type { AgentId, BoxId, TurnViewStart } from '@boxcar/kernel';
import { spellingsOf } from '@boxcar/kernel';
import type pg from 'pg';
import { type Queryable, run, statement } from '../db/index.js';
import { edgeEntriesOf, entriesOf, viewStartAt } from './ancestry.js';
import { hiddenContext } from './hidden-contexts.js';

interface TurnColumns {
  readonly anchor: string;
  readonly position: string;
  readonly start: string;
}

/** The columns of turn `t` under names that differ from those of a tape, for a list that is joined with tapes. */
export const heldView = (t: string): string =>
  `${t}.own_view_anchor, ${t}.own_view_position, ${t}.start_position as own_start`;

const columnsOf = (t: string): TurnColumns => ({
  anchor: `${t}.own_view_anchor`,
  position: `${t}.own_view_position`,
  start: `${t}.start_position`,
});
const heldColumnsOf = (list: string): TurnColumns => ({
  anchor: `${list}.own_view_anchor`,
  position: `${list}.own_view_position`,
  start: `${list}.own_start`,
});

/** A turn that has not begun will begin after the head. */
const isOwn = ({ anchor, start }: TurnColumns, b: string): string =>
  `${anchor} > 0 and ${b}.last_anchor_position < coalesce(${start}, ${b}.head_position + 1)`;

const positionOf = (turn: TurnColumns, b: string): string => `
  case
    when (${isOwn(turn, b)}) or (${turn.anchor} = 0 and ${b}.view_anchor_position is not null) then ${turn.position}
    else ${b}.view_position
  end`;

/** SQL of the anchor with which the view of turn `t` on its tape `b` begins. */
export function viewAnchorOf(t: string, b: string): string {
  const turn = columnsOf(t);
  return `
    case
      when ${isOwn(turn, b)} then ${turn.anchor}
      when ${turn.anchor} = 0 then ${b}.last_anchor_position
      else coalesce(${b}.view_anchor_position, ${b}.last_anchor_position)
    end`;
}

/** SQL of the first entry of that view. */
export const viewPositionOf = (t: string, b: string): string => positionOf(columnsOf(t), b);

/** The same for a list with the columns of {@link heldView}. */
export const heldViewPosition = (list: string, b: string): string => positionOf(heldColumnsOf(list), b);

// The nearest entries of a step on both sides of an anchor show whether the anchor divides a step. The first entry of a step follows the
// entries that its prompt had read. For a fork the inherited entries are checked, because the maker of the fork may not read all of them.
// Takes no locks: entries and anchors never change, and an anchor that is committed after this read is not found.
const FIND = statement(`
  select /* turn-views.find */
    f.n, f.view_anchor_position, f.view_position,
    case
      when f.view_position <= shown.fork_position
        then ${hiddenContext('shown', {
          from: 'f.view_position',
          to: 'shown.fork_position',
          maker: 'held.owner_agent_id',
        })}
    end as hidden_id,
    held.owner_agent_id as maker_id
  from (
    select
      w.n::int as n, b.id as box_id, v.anchor as view_anchor_position,
      case
        when v.anchor is not null then least(
          (
            select min(e.position)
            from (
              select before.turn_id, before.step
              from (
                select x.turn_id, x.step
                from ${edgeEntriesOf(
                  'b',
                  { from: '1', to: 'v.at - 1', where: 'o.step is not null' },
                  { order: 'o.position desc', limit: '1' },
                )} x
                order by x.position desc
                limit 1
              ) before
              join (
                select x.turn_id, x.step
                from ${edgeEntriesOf(
                  'b',
                  { from: 'v.at + 1', to: 'b.head_position', where: 'o.step is not null' },
                  { order: 'o.position', limit: '1' },
                )} x
                order by x.position
                limit 1
              ) after using (turn_id, step)
            ) cut
            cross join lateral (
              select max(s.to_position) as head
              from boxcar.steps s
              where s.turn_id = cut.turn_id and s.step = cut.step and s.committed_at is not null
            ) s
            cross join lateral ${entriesOf('b', {
              from: 's.head + 1',
              to: 'v.at - 1',
              where: 'o.turn_id = cut.turn_id and o.step = cut.step',
            })} e
          ),
          greatest(${viewStartAt('b.id', 'v.at')}, 1)
        )
      end as view_position
    from json_to_recordset($1) as w(n int, box_id uuid, mode text, names text[])
    join boxcar.boxes b on b.id = w.box_id
    cross join lateral (
      select case w.mode
        when 'full' then 1
        when 'profile'
          then case when not exists (select from boxcar.sessions s where s.agent_id = b.owner_agent_id) then 1 end
        when 'last_anchor' then case when b.view_anchor_position is not null then 0 end
        else (
          select e.position
          from unnest(w.names) as s(name)
          cross join lateral ${edgeEntriesOf(
            'b',
            {
              from: '1',
              to: 'b.head_position',
              where: `
                o.kind = 'anchor'
                and hashtextextended(o.anchor_name, 0) = hashtextextended(s.name, 0)
                and o.anchor_name = s.name`,
            },
            { order: 'o.position desc', limit: '1' },
          )} e
          order by e.position desc
          limit 1
        )
      end as anchor
    ) a
    cross join lateral (select a.anchor, case a.anchor when 0 then b.last_anchor_position else a.anchor end as at) v
  ) f
  join boxcar.boxes shown on shown.id = f.box_id
  left join boxcar.agents held on held.id = shown.owner_agent_id and held.tape_box_id = shown.id`);

export interface ViewWish {
  readonly boxId: BoxId;
  /** `profile`: the profile shows the whole tape, which has an effect only for agents without a session. */
  readonly view: TurnViewStart | 'profile';
}

/** The columns of a turn's row that define its view. */
export interface ViewStart {
  readonly ownViewAnchor: number;
  readonly ownViewPosition: number;
}

/** The view would show a context that the maker of the session may not read. */
export interface HiddenView {
  readonly contextBoxId: BoxId;
  readonly makerId: AgentId;
}

/**
 * The beginnings of views on existing tapes, in the order of the wishes: null where the tape defines the beginning, undefined for a
 * missing anchor. One statement for any number of wishes.
 */
export async function findViewStarts(
  db: Queryable,
  wishes: readonly ViewWish[],
): Promise<readonly (ViewStart | HiddenView | null | undefined)[]> {
  if (wishes.length === 0) return [];
  const records = wishes.map(({ boxId, view }, n) => ({
    n,
    box_id: boxId,
    mode: typeof view === 'string' ? view : 'anchor',
    names: typeof view === 'string' ? null : spellingsOf(view.anchor),
  }));
  type Row = pg.QueryResultRow & {
    n: number;
    view_anchor_position: number | null;
    view_position: number | null;
    hidden_id: BoxId | null;
    maker_id: AgentId;
  };
  const rows = new Map((await run<Row>(db, FIND, [JSON.stringify(records)])).map((row) => [row.n, row]));
  return wishes.map(({ view }, n) => {
    const row = rows.get(n);
    const { view_anchor_position: anchor = null, view_position: position = null } = row ?? {};
    if (row != null && row.hidden_id !== null) return { contextBoxId: row.hidden_id, makerId: row.maker_id };
    if (anchor !== null && position !== null) return { ownViewAnchor: anchor, ownViewPosition: position };
    return typeof view === 'string' ? null : undefined;
  });
}
