/**
 * The entries of a tape, wherever they stand: those of a fork begin in the tapes it was forked from.
 *
 * A box's row says where, so that reading needs no recursion: segment i of its line are the entries of `line_boxes[i]` behind
 * `line_ends[i-1]` up to `line_ends[i]`, and its own follow behind `fork_position`. Positions run through without a gap. A tape that is no
 * fork has no line: reading it is one range of the primary key.
 */

export interface LineRange {
  /** SQL of the first and last position wanted. */
  readonly from: string;
  readonly to: string;
  /** Another condition on the entry `o`. */
  readonly where?: string;
}

const COLUMNS =
  'o.box_id, o.position, o.kind, o.card_id, o.tokens, o.payload, o.anchor_name, o.turn_id, o.step, o.author_id, o.meta, o.created_at';

/** The segments of box `b`'s line, without its own entries: `l(box_id, upto, n)`. */
const segmentsOf = (b: string): string =>
  `unnest(${b}.line_boxes, ${b}.line_ends) with ordinality as l(box_id, upto, n)`;

const behind = (b: string): string => `coalesce(${b}.line_ends[l.n - 1], 0)`;

/**
 * A subselect of the entries of the tape whose row (`id`, `line_boxes`, `line_ends`) is `b`, to be joined laterally. In no order.
 *
 * `offset 0` keeps each segment a look-up by key.
 */
export const entriesOf = (b: string, { from, to, where = 'true' }: LineRange): string => `(
    select ${COLUMNS} from boxcar.tape_entries o
    where o.box_id = ${b}.id and o.position >= ${from} and o.position <= ${to} and ${where}
    union all
    select s.* from ${segmentsOf(b)} cross join lateral (
      select ${COLUMNS} from boxcar.tape_entries o
      where o.box_id = l.box_id and o.position >= ${from} and o.position <= ${to} and o.position > ${behind(b)} and o.position <= l.upto and ${where}
      offset 0) s)`;

/** Like `entriesOf` for the first (or last) entries that fulfil a condition: each segment is read as far as `limit` alone. */
export const edgeEntriesOf = (
  b: string,
  { from, to, where = 'true' }: LineRange,
  edge: { readonly order: string; readonly limit: string },
): string => `(
    (select ${COLUMNS} from boxcar.tape_entries o
    where o.box_id = ${b}.id and o.position >= ${from} and o.position <= ${to} and ${where}
    order by ${edge.order} limit ${edge.limit})
    union all
    select s.* from ${segmentsOf(b)} cross join lateral (
      select ${COLUMNS} from boxcar.tape_entries o
      where o.box_id = l.box_id and o.position >= ${from} and o.position <= ${to} and o.position > ${behind(b)} and o.position <= l.upto and ${where}
      order by ${edge.order} limit ${edge.limit}) s)`;

/** The boxes in which the tape's entries stand, with the last position of each that is read: its line and itself. */
export const partsOf = (b: string): string => `(
    select l.box_id, ${behind(b)} as behind, l.upto from ${segmentsOf(b)}
    union all
    select ${b}.id, coalesce(${b}.fork_position, 0), ${b}.head_position)`;
