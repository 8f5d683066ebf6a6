/**
 * The entries of a tape in all boxes that contain them: the entries of a fork begin in the tapes from which it was forked.
 *
 * The row of a box names these boxes, so that reading needs no recursion. Segment i of its line is the entries of `line_boxes[i]` after
 * `line_ends[i-1]` up to `line_ends[i]`; its own entries follow after `fork_position`. The positions are continuous. A tape that is not a
 * fork has no line: reading it is one range of the primary key.
 */

export interface LineRange {
  /** SQL of the first and last wanted position. */
  readonly from: string;
  readonly to: string;
  /** Another condition on the entry `o`. */
  readonly where?: string;
}

const COLUMNS = `
  o.box_id, o.position, o.kind, o.card_id, o.tokens, o.payload, o.anchor_name, o.turn_id, o.step, o.author_id, o.meta,
  o.created_at`;

/** The segments of box `b`'s line, without its own entries: `part(box_id, upto, n)`. */
const segmentsOf = (b: string): string =>
  `unnest(${b}.line_boxes, ${b}.line_ends) with ordinality as part(box_id, upto, n)`;

const behind = (b: string): string => `coalesce(${b}.line_ends[part.n - 1], 0)`;

/**
 * Only the entries of the tapes from which `b` was forked: empty for a tape that is not a fork. To be joined laterally, without an order.
 */
export const lineEntriesOf = (b: string, { from, to, where = 'true' }: LineRange): string => `
  (
    select of_part.*
    from ${segmentsOf(b)}
    cross join lateral (
      select ${COLUMNS}
      from boxcar.tape_entries o
      where o.box_id = part.box_id
        and o.position >= ${from}
        and o.position <= ${to}
        and o.position > ${behind(b)}
        and o.position <= part.upto
        and ${where}
      offset 0
    ) of_part
  )`;

/** A subselect of the entries of the tape whose row (`id`, `line_boxes`, `line_ends`) is `b`, to be joined laterally. Without an order. */
export const entriesOf = (b: string, range: LineRange): string => `
  (
    select ${COLUMNS}
    from boxcar.tape_entries o
    where o.box_id = ${b}.id
      and o.position >= ${range.from}
      and o.position <= ${range.to}
      and ${range.where ?? 'true'}
    union all
    select *
    from ${lineEntriesOf(b, range)} of_line
  )`;

/**
 * Like `entriesOf`, for the first (or last) entries that fulfill a condition: each segment is read only up to `limit`. Takes no locks:
 * entries never change.
 */
export const edgeEntriesOf = (
  b: string,
  { from, to, where = 'true' }: LineRange,
  edge: { readonly order: string; readonly limit: string },
): string => `
  (
    (
      select ${COLUMNS}
      from boxcar.tape_entries o
      where o.box_id = ${b}.id
        and o.position >= ${from}
        and o.position <= ${to}
        and ${where}
      order by ${edge.order}
      limit ${edge.limit}
    )
    union all
    select of_part.*
    from ${segmentsOf(b)}
    cross join lateral (
      select ${COLUMNS}
      from boxcar.tape_entries o
      where o.box_id = part.box_id
        and o.position >= ${from}
        and o.position <= ${to}
        and o.position > ${behind(b)}
        and o.position <= part.upto
        and ${where}
      order by ${edge.order}
      limit ${edge.limit}
    ) of_part
  )`;

/** The boxes that contain the tape's entries, with the last position of each that is read: its line and itself. */
export const partsOf = (b: string): string => `
  (
    select part.box_id, ${behind(b)} as behind, part.upto, part.n
    from ${segmentsOf(b)}
    union all
    select ${b}.id, coalesce(${b}.fork_position, 0), ${b}.head_position, coalesce(cardinality(${b}.line_boxes), 0) + 1
  )`;

/**
 * A subselect of the entry at a position of the tape whose id is `id`; empty when the id does not belong to a tape. To be joined
 * laterally.
 */
export const entryAt = (id: string, position: string): string => `
  (
    select entry.*
    from boxcar.boxes tape
    cross join lateral ${entriesOf('tape', { from: position, to: position })} entry
    where tape.id = ${id} and tape.kind = 'tape'
    offset 0
  )`;

/**
 * The first position of a view that begins with this anchor. A compaction, which only the kernel writes, says itself how much it keeps of
 * the entries before it.
 */
export const viewStartAt = (id: string, anchor: string): string => `
  coalesce((
    select case when c.author_id = 'kernel' then (c.metadata->'compaction'->>'keep_from')::int end
    from ${entryAt(id, anchor)} at
    join boxcar.cards c on c.id = at.card_id
  ), ${anchor})`;

/**
 * A subselect of the position of the last anchor of the tape whose row is `b`, up to a position, among the anchors that fulfill a
 * condition.
 */
export const lastAnchorOf = (b: string, upto: string, where = 'true'): string => `
  (
    select e.position
    from ${edgeEntriesOf(
      b,
      { from: '1', to: upto, where: `o.kind = 'anchor' and ${where}` },
      { order: 'o.position desc', limit: '1' },
    )} e
    order by e.position desc
    limit 1
  )`;
