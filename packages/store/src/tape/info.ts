/** The facts about a tape that need no reading of its entries: the counts are in its row. */
import type { BoxId, JsonObject } from '@boxcar/kernel';
import type pg from 'pg';
import { type Queryable, run, statement } from '../db/index.js';
import { type PartReader, readsEntry } from '../rows/index.js';
import { edgeEntriesOf, entriesOf } from '../visible/index.js';

/** How far before the head the search for a turn or a run with usage data goes. */
const USAGE_REACH = 200;
/** The maximum stored size in bytes of an event that is read for usage data: the event of a run is small. */
const RUN_BYTES = 16_384;

/** For a reader that may read only parts. */
const READ = readsEntry('o', '$1', '$4');

/** The event of a model call on an imported tape, in the form of the original. */
const IS_RUN = `
  case
    when o.kind = 'event' and pg_column_size(o.payload) <= ${RUN_BYTES}
      then o.payload->>'name' = 'run' and json_typeof(o.payload->'data'->'usage'->'total_tokens') = 'number'
  end`;

// Takes no locks: $2 and $3 are positions of a head that the caller has read, and entries up to there never change.
const INFO = statement(`
  select /* info.info */
    case
      when $4::uuid is null then $3::int
      else (select count(*)::int from ${entriesOf('b', { from: '1', to: '$3::int', where: READ })} e)
    end as entries,
    case
      when $4::uuid is null then $3::int - $2::int
      else (select count(*)::int from ${entriesOf('b', { from: '$2::int + 1', to: '$3::int', where: READ })} e)
    end as since_anchor,
    (select e.anchor_name from ${entriesOf('b', { from: '$2::int', to: '$2::int' })} e) as last_anchor,
    (
      select case when last.turn_id is null then last.payload->'data'->'usage' else s.usage::json end
      from (
        select e.turn_id, e.payload
        from ${entriesOf('b', {
          from: `$3::int - ${USAGE_REACH - 1}`,
          to: '$3::int',
          where: `(o.turn_id is not null or ${IS_RUN}) and ($4::uuid is null or ${READ})`,
        })} e
        order by e.position desc
        limit 1
      ) last
      left join boxcar.steps s on s.turn_id = last.turn_id and s.usage is not null and s.committed_at is not null
      order by s.step desc, s.attempt desc
      limit 1
    ) as usage
  from boxcar.boxes b
  where b.id = $1`);

export interface TapeFacts {
  /** The number of entries that the reader may read, and of those after the last anchor. */
  readonly entries: number;
  readonly sinceAnchor: number;
  readonly lastAnchor: string | null;
  /** The usage of the last committed step of the last turn that wrote near the head, or of a later imported model call. */
  readonly usage: JsonObject | null;
}

interface InfoRow extends pg.QueryResultRow {
  entries: number;
  since_anchor: number;
  last_anchor: string | null;
  usage: JsonObject | null;
}

/** @param at - The last anchor, the head up to which the facts are wanted, and the readable part (null: all). */
export async function loadTapeFacts(
  db: Queryable,
  boxId: BoxId,
  at: { readonly anchor: number; readonly head: number; readonly within: PartReader | null },
): Promise<TapeFacts> {
  const [row] = await run<InfoRow>(db, INFO, [boxId, at.anchor, at.head, at.within?.agentId ?? null]);
  return {
    entries: row?.entries ?? 0,
    sinceAnchor: row?.since_anchor ?? 0,
    lastAnchor: row?.last_anchor ?? null,
    usage: row?.usage ?? null,
  };
}

const ANCHOR = `o.kind = 'anchor' and ($3::uuid is null or ${readsEntry('o', '$1', '$3')})`;
const LAST_ANCHOR_UPTO = statement(`
  select /* info.last_anchor_upto */
    (
      select e.position
      from ${edgeEntriesOf(
        'b',
        { from: '1', to: '$2::int', where: ANCHOR },
        { order: 'o.position desc', limit: '1' },
      )} e
      order by e.position desc
      limit 1
    ) as last,
    (select count(*)::int from ${entriesOf('b', { from: '1', to: '$2::int', where: ANCHOR })} e) as anchors
  from boxcar.boxes b
  where b.id = $1`);

interface AnchorsRow extends pg.QueryResultRow {
  last: number | null;
  anchors: number;
}

/** The last anchor up to a position, and the number of anchors: for readers that may not see the head. Reads these anchors. */
export async function countAnchors(
  db: Queryable,
  boxId: BoxId,
  upto: number,
  within: PartReader | null,
): Promise<{ readonly last: number; readonly count: number }> {
  const [row] = await run<AnchorsRow>(db, LAST_ANCHOR_UPTO, [boxId, upto, within?.agentId ?? null]);
  return { last: row?.last ?? 0, count: row?.anchors ?? 0 };
}
