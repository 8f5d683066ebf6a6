/** SQL for the content of boxes: their segments, and the cards of the segments. */
import { entryAt, lineEntriesOf } from '../visible/index.js';

/** The positions of segment `x` with a mark, as a set of ranges. */
const setOf = (mark: string): string =>
  `(select range_agg(int4range(v, v, '[]')) from unnest(x."${mark}") v) as ${mark}_set`;

/**
 * The segments `s` of the boxes `b` in scope, one row each, with the columns that expansion needs. Skipped positions are a set of ranges,
 * which is searched by bisection. A list would be read through for every card (9,000 cards of which half were duplicates: 0.4 s).
 */
const segmentsOf = (skipped: string): string => `
  select
    b.id as box_id, b.card_ids, b.card_tokens, s.ordinality as ord, x.*,
    (select range_agg(int4range(v, v, '[]')) from unnest(${skipped}) v) as skip_set,
    ${['references', 'summaries', 'repeats'].map(setOf).join(', ')}
  from want_boxes b,
    jsonb_array_elements(b.segments) with ordinality s,
    jsonb_to_record(s.value) as x(
      rule text, argument text, via uuid, source uuid, "from" int, "to" int, skip int[], "native" boolean,
      "references" int[], summaries int[], repeats int[], asked int[]
    )
  where b.kind = 'context'`;

/** The cards that the boxes list: each card once, where it came first. */
export const SEGMENTS = segmentsOf('x.skip');

/** The cards that their readers are shown: also repeated cards, where they are part of a clone's history. */
export const SHOWN_SEGMENTS = segmentsOf(`
  case
    when x.repeats is null then x.skip
    else array(
      select v
      from unnest(x.skip) v
      except
      select unnest(x.repeats)
    )
  end`);

/**
 * The cards of the segments in `seg`, by leaf: own cards, cards of another sealed box, cards of a tape, and cards of the tapes from which
 * that tape was forked. The query needs no recursion, because a segment never points to a segment. `offset 0` keeps each leaf a look-up by
 * key: the planner does not know the number of segments of a box, and would rather read all boxes. Takes no locks: sealed boxes and the
 * entries of tapes never change.
 */
export const LEAVES = `
  select g.box_id, g.ord, g.rule, g.source, g."native", g."from" - 1 + u.n as position, u.card_id, u.tokens,
    null::boolean as is_reference, null::boolean as is_summary, null::boolean as is_repeat, 0 as part
  from seg g,
    unnest(g.card_ids[g."from":g."to"], g.card_tokens[g."from":g."to"]) with ordinality as u(card_id, tokens, n)
  where g.source is null
  union all
  select
    g.box_id, g.ord, g.rule, g.source, g."native", g."from" - 1 + u.n, u.card_id, u.tokens,
    (g."from" - 1 + u.n)::int <@ g.references_set as is_reference,
    (g."from" - 1 + u.n)::int <@ g.summaries_set as is_summary,
    (g."from" - 1 + u.n)::int <@ g.repeats_set as is_repeat,
    0 as part
  from seg g
  cross join lateral (
    select b.card_ids, b.card_tokens
    from boxcar.boxes b
    where b.id = g.source and b.kind = 'context'
    offset 0
  ) l, unnest(l.card_ids[g."from":g."to"], l.card_tokens[g."from":g."to"]) with ordinality as u(card_id, tokens, n)
  where g.source is not null and (g.skip_set is null or not (g."from" - 1 + u.n)::int <@ g.skip_set)
  union all
  select g.box_id, g.ord, g.rule, g.source, g."native", e.position, e.card_id, e.tokens,
    e.position <@ g.references_set as is_reference, e.position <@ g.summaries_set as is_summary,
    e.position <@ g.repeats_set as is_repeat, 0 as part
  from seg g
  cross join lateral (
    select t.position, t.card_id, t.tokens
    from boxcar.tape_entries t
    where t.box_id = g.source and t.position between g."from" and g."to" and t.card_id is not null
    offset 0
  ) e
  where g.source is not null and (g.skip_set is null or not e.position <@ g.skip_set)
  union all
  select g.box_id, g.ord, g.rule, g.source, g."native", e.position, e.card_id, e.tokens,
    e.position <@ g.references_set as is_reference, e.position <@ g.summaries_set as is_summary,
    e.position <@ g.repeats_set as is_repeat, 0 as part
  from seg g
  cross join lateral (
    select x.line_boxes, x.line_ends
    from boxcar.boxes x
    where x.id = g.source and x.line_boxes is not null
    offset 0
  ) f
  cross join lateral ${lineEntriesOf('f', { from: 'g."from"', to: 'g."to"', where: 'o.card_id is not null' })} e
  where g.source is not null and (g.skip_set is null or not e.position <@ g.skip_set)`;

/** The packed arguments of the sealed box `q`, in order. */
export const PACKED_CARDS = `
  (
    select i.card_id, i.tokens, (row_number() over (order by s.ord, i.n))::int as part
    from jsonb_array_elements(q.segments) with ordinality s(value, ord)
    cross join lateral unnest(
      q.card_ids[(s.value->>'from')::int:(s.value->>'to')::int],
      q.card_tokens[(s.value->>'from')::int:(s.value->>'to')::int]
    ) with ordinality i(card_id, tokens, n)
    where s.value->>'rule' = 'pack_arguments' and s.value->>'source' is null
  )`;

/** The start of a turn on a tape: its entry names the context box. */
export const startOf = (e: string): string => `(${e}.payload->'data'->>'context_box_id')::uuid`;
export const IS_START = "o.kind = 'event' and o.payload->>'name' = 'turn.started'";

/** The number of cards with requests to turns that the sealed box `b` shows in addition to the cards that it lists. */
export const ASKED_COUNT = `
  (
    select count(*)
    from jsonb_array_elements(b.segments) g(value)
    cross join lateral jsonb_array_elements_text(g.value->'asked') a(position)
    cross join lateral ${entryAt("(g.value->>'source')::uuid", 'a.position::int')} e
    cross join lateral (
      select x.card_ids, x.card_tokens, x.segments
      from boxcar.boxes x
      where x.id = ${startOf('e')} and x.kind = 'context'
      offset 0
    ) q
    cross join lateral ${PACKED_CARDS} u
  )`;

/** The leaves, and the cards with requests to turns at the positions of the turns' starts. */
export const SHOWN_LEAVES = `
  ${LEAVES}
  union all
  select g.box_id, g.ord, g.rule, g.source, null::boolean, a.position, u.card_id, u.tokens, false, false, false,
    u.part
  from seg g
  cross join lateral unnest(g.asked) as a(position)
  cross join lateral ${entryAt('g.source', 'a.position')} e
  cross join lateral (
    select b.card_ids, b.card_tokens, b.segments
    from boxcar.boxes b
    where b.id = ${startOf('e')} and b.kind = 'context'
    offset 0
  ) q
  cross join lateral ${PACKED_CARDS} u`;
