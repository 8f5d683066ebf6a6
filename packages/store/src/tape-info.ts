/** What a tape says of itself without reading it: counts stand in its row. */
import type { BoxId, JsonObject } from '@boxcar/kernel';
import type pg from 'pg';
import { type Queryable, run, statement } from './db.js';
import { type ReadableRange, toMultirange } from './rights.js';
import { edgeEntriesOf, entriesOf } from './tape-line.js';

/** How far back from the head a turn is looked for, whose last step says what it used. */
const USAGE_REACH = 200;

const INFO = statement(`
  select (select e.anchor_name from ${entriesOf('b', { from: '$2::int', to: '$2::int' })} e) as last_anchor,
    (select s.usage from (
        select e.turn_id from ${entriesOf('b', { from: `$3::int - ${USAGE_REACH - 1}`, to: '$3::int', where: 'o.turn_id is not null and ($4::int4multirange is null or o.position <@ $4)' })} e
        order by e.position desc limit 1) last
      join boxcar.steps s on s.turn_id = last.turn_id and s.usage is not null and s.committed_at is not null
      order by s.step desc, s.attempt desc limit 1) as usage
  from boxcar.boxes b where b.id = $1`);

export interface TapeFacts {
  readonly lastAnchor: string | null;
  /** Of the last committed step of the last turn that wrote near the head. */
  readonly usage: JsonObject | null;
}

/** @param at - The last anchor, the head up to which it is asked, and what is read of it (null: all). */
export async function loadTapeFacts(
  db: Queryable,
  boxId: BoxId,
  at: { readonly anchor: number; readonly head: number; readonly within?: readonly ReadableRange[] | null },
): Promise<TapeFacts> {
  const [row] = await run<{ last_anchor: string | null; usage: JsonObject | null }>(db, INFO, [
    boxId,
    at.anchor,
    at.head,
    toMultirange(at.within),
  ]);
  return { lastAnchor: row?.last_anchor ?? null, usage: row?.usage ?? null };
}

const LAST_ANCHOR_UPTO = statement(`
  select (select e.position from ${edgeEntriesOf('b', { from: '1', to: '$2::int', where: "o.kind = 'anchor' and ($3::int4multirange is null or o.position <@ $3)" }, { order: 'o.position desc', limit: '1' })} e
      order by e.position desc limit 1) as last,
    (select count(*)::int from ${entriesOf('b', { from: '1', to: '$2::int', where: "o.kind = 'anchor' and ($3::int4multirange is null or o.position <@ $3)" })} e) as anchors
  from boxcar.boxes b where b.id = $1`);

interface AnchorsRow extends pg.QueryResultRow {
  last: number | null;
  anchors: number;
}

/** The last anchor up to a position, and how many there are: for readers who may not see the head. Reads those anchors. */
export async function countAnchors(
  db: Queryable,
  boxId: BoxId,
  upto: number,
  within: readonly ReadableRange[] | null,
): Promise<{ readonly last: number; readonly count: number }> {
  const [row] = await run<AnchorsRow>(db, LAST_ANCHOR_UPTO, [boxId, upto, toMultirange(within)]);
  return { last: row?.last ?? 0, count: row?.anchors ?? 0 };
}
