import type {
  AgentId,
  Asked,
  BoxId,
  Card,
  CardId,
  ExpandedBox,
  JsonObject,
  LeafRange,
  ProjectId,
  Segment,
  SegmentRule,
  TurnId,
} from '@boxcar/kernel';
import type pg from 'pg';
import { type Queryable, run, statement } from '../db/index.js';
import {
  ACCESS,
  type CardRow,
  grantOf,
  HELD,
  PACKED_CARD_BYTES,
  PACKED_CARD_READ,
  READABLE,
  readCard,
  readsEntry,
  WRITTEN_BOXES,
} from '../rows/index.js';
import {
  entriesOf,
  entryAt,
  hiddenContext,
  isHidden,
  isLent,
  lastAnchorOf,
  lineEntriesOf,
  UNKNOWN_PART,
  viewAnchorOf,
  viewPositionOf,
  viewStartAt,
} from '../visible/index.js';

/**
 * The segments `s` of the boxes `b` in scope, one row each, with what expansion needs. What is skipped is a set of ranges:
 * looked up by halves, where a list is read through for every card (9,000 cards of which half were duplicates: 0.4 s).
 */
const segmentsOf = (skipped: string): string => `
  select b.id as box_id, b.card_ids, b.card_tokens, s.ordinality as ord, x.*,
    (select range_agg(int4range(v, v, '[]')) from unnest(${skipped}) v) as skip_set, ${['references', 'summaries', 'repeats'].map((mark) => `(select range_agg(int4range(v, v, '[]')) from unnest(x."${mark}") v) as ${mark}_set`).join(', ')}
  from want_boxes b, jsonb_array_elements(b.segments) with ordinality s,
    jsonb_to_record(s.value) as x(rule text, argument text, via uuid, source uuid, "from" int, "to" int, skip int[], "native" boolean, "references" int[], summaries int[], repeats int[], asked int[])
  where b.kind = 'context'`;

/** What the boxes list: each card once, where it came first. */
export const SEGMENTS = segmentsOf('x.skip');

/** What their readers are shown: with what they list elsewhere, where it is part of a clone's history. */
export const SHOWN_SEGMENTS = segmentsOf(
  'case when x.repeats is null then x.skip else array(select v from unnest(x.skip) v except select unnest(x.repeats)) end',
);

/**
 * The cards of the segments in `seg`, by leaf: own cards, those of another sealed box, those of a tape, those of the tapes it was
 * forked from. No recursion, because a segment never points to a segment. `offset 0` keeps each leaf a look-up by key: the planner knows nothing of
 * how many segments a box has, and would rather read all boxes.
 */
export const LEAVES = `
  select g.box_id, g.ord, g.rule, g.source, g."native", g."from" - 1 + u.n as position, u.card_id, u.tokens, null::boolean as is_reference, null::boolean as is_summary, null::boolean as is_repeat, 0 as part
  from seg g, unnest(g.card_ids[g."from":g."to"], g.card_tokens[g."from":g."to"]) with ordinality as u(card_id, tokens, n)
  where g.source is null
  union all
  select g.box_id, g.ord, g.rule, g.source, g."native", g."from" - 1 + u.n, u.card_id, u.tokens, (g."from" - 1 + u.n)::int <@ g.references_set as is_reference, (g."from" - 1 + u.n)::int <@ g.summaries_set as is_summary, (g."from" - 1 + u.n)::int <@ g.repeats_set as is_repeat, 0 as part
  from seg g cross join lateral (select b.card_ids, b.card_tokens from boxcar.boxes b where b.id = g.source and b.kind = 'context' offset 0) l,
    unnest(l.card_ids[g."from":g."to"], l.card_tokens[g."from":g."to"]) with ordinality as u(card_id, tokens, n)
  where g.source is not null and (g.skip_set is null or not (g."from" - 1 + u.n)::int <@ g.skip_set)
  union all
  select g.box_id, g.ord, g.rule, g.source, g."native", e.position, e.card_id, e.tokens, e.position <@ g.references_set as is_reference, e.position <@ g.summaries_set as is_summary, e.position <@ g.repeats_set as is_repeat, 0 as part
  from seg g cross join lateral (select t.position, t.card_id, t.tokens from boxcar.tape_entries t
      where t.box_id = g.source and t.position between g."from" and g."to" and t.card_id is not null offset 0) e
  where g.source is not null and (g.skip_set is null or not e.position <@ g.skip_set)
  union all
  select g.box_id, g.ord, g.rule, g.source, g."native", e.position, e.card_id, e.tokens, e.position <@ g.references_set as is_reference, e.position <@ g.summaries_set as is_summary, e.position <@ g.repeats_set as is_repeat, 0 as part
  from seg g cross join lateral (select x.line_boxes, x.line_ends from boxcar.boxes x where x.id = g.source and x.line_boxes is not null offset 0) f
    cross join lateral ${lineEntriesOf('f', { from: 'g."from"', to: 'g."to"', where: 'o.card_id is not null' })} e
  where g.source is not null and (g.skip_set is null or not e.position <@ g.skip_set)`;

/** The packed arguments of the sealed box `q`, in order. */
const PACKED_CARDS = `(
    select i.card_id, i.tokens, (row_number() over (order by s.ord, i.n))::int as part
    from jsonb_array_elements(q.segments) with ordinality s(value, ord)
      cross join lateral unnest(q.card_ids[(s.value->>'from')::int:(s.value->>'to')::int], q.card_tokens[(s.value->>'from')::int:(s.value->>'to')::int]) with ordinality i(card_id, tokens, n)
    where s.value->>'rule' = 'pack_arguments' and s.value->>'source' is null)`;

/** Where a turn on a tape starts: its entry names the context box. */
const startOf = (e: string): string => `(${e}.payload->'data'->>'context_box_id')::uuid`;
const IS_START = "o.kind = 'event' and o.payload->>'name' = 'turn.started'";

/** How many cards of what turns were asked the sealed box `b` shows beside those that it lists. */
export const ASKED_COUNT = `(
    select count(*) from jsonb_array_elements(b.segments) g(value) cross join lateral jsonb_array_elements_text(g.value->'asked') a(position)
      cross join lateral ${entryAt("(g.value->>'source')::uuid", 'a.position::int')} e
      cross join lateral (select x.card_ids, x.card_tokens, x.segments from boxcar.boxes x where x.id = ${startOf('e')} and x.kind = 'context' offset 0) q
      cross join lateral ${PACKED_CARDS} u)`;

/** The leaves with what turns were asked, at the positions of their starts. */
export const SHOWN_LEAVES = `${LEAVES}
  union all
  select g.box_id, g.ord, g.rule, g.source, null::boolean, a.position, u.card_id, u.tokens, false, false, false, u.part
  from seg g cross join lateral unnest(g.asked) as a(position) cross join lateral ${entryAt('g.source', 'a.position')} e
    cross join lateral (select b.card_ids, b.card_tokens, b.segments from boxcar.boxes b where b.id = ${startOf('e')} and b.kind = 'context' offset 0) q
    cross join lateral ${PACKED_CARDS} u`;

export interface LoadBoxesOptions {
  readonly projectId: ProjectId;
  /** Whose right to read is looked up. */
  readonly actorId: AgentId;
}

/** A right that was given, with its bounds: null = without. */
export interface BoxGrant {
  readonly upto: number | null;
  readonly until: string | null;
}

/** A range with the rule by which it is in its box. */
export interface LoadedRange extends LeafRange {
  readonly rule: SegmentRule;
}

export interface LoadedBox extends ExpandedBox {
  readonly ranges: readonly LoadedRange[];
  readonly kind: 'context' | 'tape';
  readonly isReadable: boolean;
  /** The actor owns or made it, or is the operator. */
  readonly isOwn: boolean;
  readonly readGrant: BoxGrant | null;
  readonly appendGrant: BoxGrant | null;
}

// A range of sealed cards of which none is skipped is a slice of its list, read as it is: taken apart and put together again it
// cost a third of packing 9,000 cards. `positions` is null there: they follow from the range.
const LOAD_BOXES = statement(`
  with want_boxes as materialized (
    select b.*, ${ACCESS}, ${grantOf('append')} as append_grant
    from boxcar.boxes b join boxcar.projects p on p.id = b.project_id
    where b.id = any ($1::uuid[]) and b.project_id = $2
  ),
  all_seg as (${SHOWN_SEGMENTS}),
  pieces as (
    select b.*, r.n as piece, lower(r.piece) as "from", least(coalesce(upper(r.piece) - 1, b.head_position), b.head_position) as "to"
    from want_boxes b cross join lateral unnest(b.readable) with ordinality as r(piece, n) where b.kind = 'tape'
  ),
  plain as (
    select g.box_id, g.ord, array_to_string((coalesce(l.card_ids, g.card_ids))[g."from":g."to"], ',') as card_ids,
      array_to_string((coalesce(l.card_tokens, g.card_tokens))[g."from":g."to"], ',') as tokens
    from all_seg g left join lateral (select b.card_ids, b.card_tokens from boxcar.boxes b where b.id = g.source and b.kind = 'context' offset 0) l on true
    where g.skip_set is null and (g.source is null or l.card_ids is not null)
  ),
  seg as (select * from all_seg g where not exists (select from plain p where p.box_id = g.box_id and p.ord = g.ord)),
  leaf as (${LEAVES}
    union all
    select b.id, b.piece, 'inherit', b.id, null::boolean, e.position, e.card_id, e.tokens, null::boolean, null::boolean, null::boolean, 0
    from pieces b cross join lateral ${entriesOf('b', { from: 'b."from"', to: 'b."to"', where: 'o.card_id is not null' })} e
  ),
  ranges as (
    select box_id, ord, array_to_string(array_agg(position order by position), ',') as positions,
      array_to_string(array_agg(card_id order by position), ',') as card_ids,
      array_to_string(array_agg(tokens order by position), ',') as tokens
    from leaf group by box_id, ord
    union all
    select box_id, ord, null, card_ids, tokens from plain
  ),
  starts as (
    select b.id as box_id, b.piece as ord, e.position, ${startOf('e')} as context_id, false as is_given
    from pieces b cross join lateral ${entriesOf('b', { from: 'b."from"', to: 'b."to"', where: IS_START })} e
    union all
    select g.box_id, g.ord, e.position, ${startOf('e')}, true
    from all_seg g cross join lateral unnest(g.asked) as a(position) cross join lateral ${entryAt('g.source', 'a.position')} e
  ),
  questions as (
    select s.box_id, s.ord, s.position, array_agg(u.card_id order by u.part) as card_ids
    from starts s cross join lateral (
        select b.card_ids, b.card_tokens, b.segments, ${HELD} from boxcar.boxes b join boxcar.projects p on p.id = b.project_id
        where b.id = s.context_id and b.project_id = $2 and b.kind = 'context' offset 0) q
      cross join lateral ${PACKED_CARDS} u
    where s.is_given or q.is_own or q.granted is not null group by s.box_id, s.ord, s.position
  )
  select b.id as box_id, b.kind, b.is_own, b.readable <> '{}' as is_readable, b.granted, b.append_grant,
    g.ord::int, g.rule, g.source, g."from", g."to", array_to_string(g.skip, ',') as skip, g."native", array_to_string(g."references", ',') as "references", array_to_string(g.summaries, ',') as summaries, array_to_string(g.repeats, ',') as repeats,
    (select json_agg(json_build_object('position', q.position, 'cardIds', q.card_ids) order by q.position) from questions q where q.box_id = b.id and q.ord = g.ord) as asked, r.positions, r.card_ids, r.tokens
  from want_boxes b left join (
      select box_id, ord, rule, source, "from", "to", skip, "native", "references", summaries, repeats from all_seg
      union all
      select id, piece, null, null, "from", "to", null, null, null, null, null from pieces
    ) g on g.box_id = b.id
    left join ranges r on r.box_id = b.id and r.ord = g.ord
  order by b.id, g.ord`);

interface RangeRow extends pg.QueryResultRow {
  box_id: BoxId;
  kind: 'context' | 'tape';
  is_own: boolean;
  is_readable: boolean;
  granted: BoxGrant | null;
  append_grant: BoxGrant | null;
  ord: number | null;
  rule: SegmentRule | null;
  source: BoxId | null;
  from: number | null;
  to: number | null;
  skip: string | null;
  native: boolean | null;
  references: string | null;
  summaries: string | null;
  repeats: string | null;
  asked: readonly Asked[] | null;
  positions: string | null;
  card_ids: string | null;
  tokens: string | null;
}

// Comma-joined text, split here, is several times faster to read than arrays parsed item by item.
const numbers = (text: string | null): number[] =>
  text === null || text === '' ? [] : text.split(',').map(Number);

function readRange(row: RangeRow): LoadedRange | undefined {
  const { from, to } = row;
  if (row.ord === null || from === null || to === null) return undefined;
  const cardIds = (row.card_ids === null || row.card_ids === '' ? [] : row.card_ids.split(',')) as CardId[];
  const skip = numbers(row.skip);
  const repeats = numbers(row.repeats);
  const repeated = new Set(repeats);
  return {
    rule: row.rule ?? 'inherit',
    source: row.source ?? row.box_id,
    from,
    to,
    skip: repeats.length === 0 ? skip : skip.filter((position) => !repeated.has(position)),
    ...(row.references === null ? {} : { references: numbers(row.references) }),
    ...(row.summaries === null ? {} : { summaries: numbers(row.summaries) }),
    ...(repeats.length === 0 ? {} : { repeats }),
    ...(row.asked === null ? {} : { asked: row.asked }),
    positions:
      row.positions === null ? cardIds.map((_cardId, index) => from + index) : numbers(row.positions),
    cardIds,
    tokens: numbers(row.tokens),
    native: row.native ?? false,
  };
}

/** Loads boxes for packing: leaf ranges with card ids and tokens, and whether the actor may read them. One statement. */
export async function loadBoxes(
  db: Queryable,
  boxIds: readonly BoxId[],
  options: LoadBoxesOptions,
): Promise<Map<BoxId, LoadedBox>> {
  const boxes = new Map<BoxId, LoadedBox & { ranges: LoadedRange[] }>();
  if (boxIds.length === 0) return boxes;
  const rows = await run<RangeRow>(db, LOAD_BOXES, [
    [...new Set(boxIds)],
    options.projectId,
    options.actorId,
  ]);
  for (const row of rows) {
    const box = boxes.get(row.box_id) ?? {
      boxId: row.box_id,
      kind: row.kind,
      isReadable: row.is_readable,
      isOwn: row.is_own,
      readGrant: row.granted,
      appendGrant: row.append_grant,
      ranges: [],
    };
    boxes.set(row.box_id, box);
    const range = readRange(row);
    if (range !== undefined) box.ranges.push(range);
  }
  return boxes;
}

const FIND_CONTEXTS = statement(`
  select b.id, ${READABLE} <> '{}' as is_readable
  from boxcar.boxes b join boxcar.projects p on p.id = b.project_id
  where b.id = any ($1::uuid[]) and b.project_id = $2 and b.kind = 'context'`);

/** Those of the boxes that are sealed ones of the project, and whether the actor may read them. */
export async function findContextBoxes(
  db: Queryable,
  boxIds: readonly BoxId[],
  { projectId, actorId }: LoadBoxesOptions,
): Promise<ReadonlyMap<BoxId, { readonly isReadable: boolean }>> {
  const rows = await run<{ id: BoxId; is_readable: boolean }>(db, FIND_CONTEXTS, [
    boxIds,
    projectId,
    actorId,
  ]);
  return new Map(rows.map((row) => [row.id, { isReadable: row.is_readable }]));
}

const expand = (boxes: string): string => `
  with want_boxes as (${boxes}),
  seg as (${SHOWN_SEGMENTS}),
  leaf as (${SHOWN_LEAVES})
  select l.box_id, l.ord::int, l.position::int, l.rule, l."native", l.is_reference, l.is_summary, l.is_repeat, l.part, ${PACKED_CARD_READ}, ${PACKED_CARD_BYTES} as size_bytes
  from leaf l cross join lateral (select * from boxcar.cards x where x.id = l.card_id offset 0) c`;

const EXPAND_CONTEXTS = statement(
  expand("select * from boxcar.boxes where id = any ($1::uuid[]) and kind = 'context'"),
);

// The same box may be shown by several of the turns. One that holds nothing has a row all the same: it was read.
const EXPAND_SHOWN = statement(`
  ${expand(`
    select distinct on (s.id) s.* from (
      select b.*, sum(b.token_estimate) over (partition by shown.turn_id) as shown_tokens
      from (
        select t.id as turn_id, t.context_box_id as box_id from boxcar.turns t where t.id = any ($1::uuid[])
        union
        select t.id, (e.payload->'data'->>'context_box_id')::uuid from boxcar.turns t ${UNKNOWN_PART}
        where t.id = any ($1::uuid[]) and e.kind = 'event' and e.payload->>'name' = 'turn.started'
      ) shown join boxcar.boxes b on b.id = shown.box_id
    ) s where s.shown_tokens <= $3 order by s.id`)}
  union all
  select b.id, 0, 0, null, null, null, null, null, 0, null, null, null, null, null, null, null, null, 0 from want_boxes b where b.card_count = 0`);

/** How a card of a context is shown. */
export interface ShownAs {
  readonly native: boolean;
  /** As a reference to its words. */
  readonly isReference: boolean;
  /** Its reader may read it, or what it stands for, by `expand`. */
  readonly isExpandable: boolean;
}

export interface ExpandedCard extends ShownAs {
  readonly card: Card;
  readonly rule: Segment['rule'];
  readonly sizeBytes: number;
}

interface ExpandedRow extends CardRow, ShownColumns, pg.QueryResultRow {
  box_id: BoxId;
  ord: number;
  position: number;
  size_bytes: number;
}

/** The columns of a leaf that say how its card is shown. */
export interface ShownColumns {
  readonly box_id: BoxId;
  readonly card_id: CardId | null;
  readonly rule: Segment['rule'];
  /** Of several cards that a turn was asked, from 1; 0 for what the box lists. */
  readonly part: number;
  native: boolean | null;
  is_reference: boolean | null;
  is_summary: boolean | null;
  is_repeat: boolean | null;
}

export const toShownAs = (row: ShownColumns): ShownAs => ({
  native: row.native === true,
  isReference: row.is_reference === true,
  isExpandable: row.is_reference === true || row.is_summary === true,
});

/** Rows in stored order, each card where it is shown: what is part of a history there, and not where it is listed or was asked. */
export function inShownPlace<R extends ShownColumns>(rows: readonly R[]): readonly R[] {
  const keyOf = ({ box_id, card_id }: R): string => `${box_id} ${card_id}`;
  const isAsked = ({ part }: R): boolean => part > 0;
  const repeated = new Set(rows.flatMap((row) => (row.is_repeat === true ? [keyOf(row)] : [])));
  const history = new Set(
    rows.some(isAsked)
      ? rows.flatMap((row) => (row.rule === 'snapshot' && !isAsked(row) ? [keyOf(row)] : []))
      : [],
  );
  if (repeated.size + history.size === 0) return rows;
  return rows.filter((row) =>
    isAsked(row) ? !history.has(keyOf(row)) : row.is_repeat === true || !repeated.has(keyOf(row)),
  );
}

/**
 * Puts rows into stored order, by segment and position. They come in a few ordered runs, which is quickly sorted here;
 * Postgres would sort them with their contents (9,000 cards: 30 ms more).
 */
function addExpanded(expanded: Map<BoxId, ExpandedCard[]>, rows: ExpandedRow[]): void {
  rows.sort((a, b) => a.ord - b.ord || a.position - b.position || a.part - b.part);
  for (const row of inShownPlace(rows)) {
    const card = readCard(row);
    const cards = expanded.get(row.box_id) ?? [];
    expanded.set(row.box_id, cards);
    if (card !== null) cards.push({ card, rule: row.rule, ...toShownAs(row), sizeBytes: row.size_bytes });
  }
}

/** The cards of context boxes in stored order, by box id. One statement, however many boxes and segments. */
export async function expandContexts(
  db: Queryable,
  boxIds: readonly BoxId[],
): Promise<Map<BoxId, readonly ExpandedCard[]>> {
  const expanded = new Map<BoxId, ExpandedCard[]>(boxIds.map((id) => [id, []]));
  if (boxIds.length === 0) return expanded;
  addExpanded(expanded, await run<ExpandedRow>(db, EXPAND_CONTEXTS, [[...expanded.keys()]]));
  return expanded;
}

/**
 * The context boxes that the views of turns show and their reader does not know. Those of a turn whose boxes are larger than `maxTokens`
 * together are left out.
 */
export async function expandShown(
  db: Queryable,
  turnIds: readonly TurnId[],
  options: { readonly known: string; readonly maxTokens: number },
): Promise<ReadonlyMap<BoxId, readonly ExpandedCard[]>> {
  const expanded = new Map<BoxId, ExpandedCard[]>();
  addExpanded(
    expanded,
    await run<ExpandedRow>(db, EXPAND_SHOWN, [turnIds, options.known, options.maxTokens]),
  );
  return expanded;
}

const FIND_CARDS = statement(`
  select id, token_estimate as tokens, author_id from boxcar.cards where id = any ($1::uuid[]) and project_id = $2`);

/** The named cards of a project that exist, with what a box needs to list them. */
export async function findCards(
  db: Queryable,
  cardIds: readonly CardId[],
  projectId: ProjectId,
): Promise<ReadonlyMap<CardId, { readonly id: CardId; readonly tokens: number; readonly authorId: string }>> {
  const rows = await run<{ id: CardId; tokens: number; author_id: string }>(db, FIND_CARDS, [
    cardIds,
    projectId,
  ]);
  return new Map(rows.map((row) => [row.id, { id: row.id, tokens: row.tokens, authorId: row.author_id }]));
}

const READABLE_CARDS = statement(`
  with want_boxes as materialized (
    select b.*, ${HELD} from boxcar.boxes b join boxcar.projects p on p.id = b.project_id
    where b.project_id = $2 and (b.owner_agent_id = $3 or b.maker_agent_id = $3
      or b.id in (select g.box_id from boxcar.grants g where g.agent_id = $3)
      or b.id in (${WRITTEN_BOXES}))
  ),
  seg as (${SEGMENTS} and (b.is_own or b.granted is not null)),
  leaf as (${LEAVES}
    union all
    select b.id, 0, 'inherit', b.id, null::boolean, e.position, e.card_id, e.tokens, null::boolean, null::boolean, null::boolean, 0
    from want_boxes b cross join lateral ${entriesOf('b', { from: '1', to: 'b.head_position', where: 'o.card_id = any ($1::uuid[])' })} e
    where b.kind = 'tape' and (b.is_own or ${readsEntry('e', 'b.id', '$3')})
  )
  select distinct card_id from leaf where card_id = any ($1::uuid[])`);

/** Which of these cards stand in a box the actor may read. Looks through all its boxes: for listing cards by id only. */
export async function findReadableCards(
  db: Queryable,
  cardIds: readonly CardId[],
  options: LoadBoxesOptions,
): Promise<ReadonlySet<CardId>> {
  if (cardIds.length === 0) return new Set();
  const rows = await run<{ card_id: CardId }>(db, READABLE_CARDS, [
    cardIds,
    options.projectId,
    options.actorId,
  ]);
  return new Set(rows.map((row) => row.card_id));
}

const SNAPSHOTS = statement(`
  select w.n::int as n, s.* from unnest($1::uuid[], $4::boolean[]) with ordinality as w(agent_id, is_full, n) cross join lateral (
  with want_boxes as materialized (
    select a.id as agent_id, a.owner_agent_id as maker_id, a.owner_agent_id = $3 as is_ward, case when $3 = a.id then coalesce(a.owner_agent_id, a.id) else $3 end as reader_id, b.*, ${ACCESS}
    from boxcar.agents a join boxcar.boxes b on b.id = a.tape_box_id join boxcar.projects p on p.id = b.project_id
    where a.id = w.agent_id and a.project_id = $2
  ),
  tape as (
    select *, reads <> '{}' as is_readable, least(head_position, coalesce(upper(reads) - 1, head_position)) as last_position
    from (select *, case when is_ward then '{[1,)}' else readable end as reads from want_boxes) w
  ),
  open_turn as (select t.id, t.step_count, t.start_position, t.context_box_id, t.own_view_anchor, t.own_view_position from boxcar.turns t join tape b on b.agent_id = t.agent_id
    where t.status in ('running', 'suspended', 'dispatched')),
  -- who may read a part of it sees what its agent saw there, but for what was before that part
  begun as (
    select b.*, v.anchor_position, case when v.anchor_position = v.at_head then ${viewPositionOf('o', 'b')} else ${viewStartAt('b.id', 'v.anchor_position')} end as from_position
    from tape b left join open_turn o on o.start_position is not null cross join lateral (select a.at_head, case when a.at_head <= b.last_position then a.at_head else ${lastAnchorOf('b', 'b.last_position')} end as anchor_position
      from (select ${viewAnchorOf('o', 'b')} as at_head) a) v
  ),
  entries as (
    select e.position, e.kind, e.card_id, e.tokens, e.payload, e.turn_id,
      exists (select from open_turn o join boxcar.tool_calls k on k.turn_id = o.id and k.step = o.step_count
        where e.turn_id = o.id and e.step = o.step_count
          and not exists (select from boxcar.tape_entries done where done.box_id = e.box_id and done.turn_id = o.id and done.step = o.step_count and done.kind = 'tool_result')) as is_open,
      case when e.kind = 'event' and e.payload->>'name' = 'turn.started' then ${isHidden('held', 'e', '$3')} end as is_hidden,
      case when e.kind = 'event' and e.payload->>'name' = 'turn.started' then ${isLent('held.id', 'e', 'held.reader_id')} end as is_lent
    from begun held cross join lateral ${entriesOf('held', { from: 'case when w.is_full then 1 else held.from_position end', to: 'held.last_position' })} e
    where e.position <@ held.reads
  )
  select b.id as tape_id, b.is_readable, b.is_ward, b.anchor_position as last_anchor_position, e.position, e.kind, e.card_id, e.tokens, e.is_open, e.is_lent,
    case when e.kind = 'event' and e.payload->>'name' = 'turn.started' and not e.is_hidden then (e.payload->'data'->>'context_box_id')::uuid end as context_box_id,
    (select o.context_box_id from open_turn o where o.start_position < b.anchor_position and o.start_position <@ b.reads) as early_context_box_id, a.compaction
  from begun b left join entries e on true
    left join lateral (select json_build_object('metadata', json_build_object('compaction', c.metadata->'compaction'), 'is_by_kernel', c.author_id = 'kernel', 'is_hidden', held.anchor_position <= held.fork_position and ${hiddenContext('held', { from: '1', to: 'held.fork_position', maker: 'held.reader_id' })} is not null, 'is_of_open_turn', e.turn_id in (select o.id from open_turn o)) as compaction
      from boxcar.cards c cross join begun held where c.id = e.card_id and e.kind = 'anchor' and e.position = b.anchor_position and c.metadata ? 'compaction' and not w.is_full) a on true
  offset 0) s
  order by w.n, s.position`);

export interface SnapshotEntry extends pg.QueryResultRow {
  readonly tape_id: BoxId;
  /** False: the actor may not see what this agent sees; then there are no entries. */
  readonly is_readable: boolean;
  /** The actor launched this agent. */
  readonly is_ward: boolean | null;
  /** The anchor its view begins with. */
  readonly last_anchor_position: number;
  readonly position: number | null;
  readonly kind: string;
  readonly card_id: CardId | null;
  readonly tokens: number;
  readonly is_open: boolean;
  readonly context_box_id: BoxId | null;
  readonly early_context_box_id: BoxId | null;
  /** Of a session: the context was that of a turn before its fork, and who forked it has not made it. */
  readonly is_lent?: boolean | null;
  /** Of the anchor that the view begins with, when it is a compaction. */
  readonly compaction?: {
    readonly metadata: JsonObject;
    readonly is_by_kernel: boolean;
    /** Of a session: it may stand for a context that who forked the session may not read. */
    readonly is_hidden: boolean;
    /** It was written by the turn in progress, so it also says what of its context is shown. */
    readonly is_of_open_turn: boolean;
  } | null;
}

/** What an agent's snapshot is wanted of. */
export interface SnapshotRequest {
  readonly agentId: AgentId;
  /** All of its tape, not only since the last anchor. */
  readonly isFull: boolean;
}

/**
 * What agents see now, as entries of their tapes: since the last anchor, or all. Entries of an open step (calls without
 * results) are marked, and each turn's start names its context box. Who may see it: the agent itself, who launched it, who
 * holds a grant on its tape (up to its last position), the operator. One statement, however many agents.
 *
 * @returns The entries of each request, in order.
 */
export async function loadSnapshots(
  db: Queryable,
  requests: readonly SnapshotRequest[],
  options: LoadBoxesOptions,
): Promise<readonly SnapshotEntry[][]> {
  const snapshots: SnapshotEntry[][] = requests.map(() => []);
  if (requests.length === 0) return snapshots;
  const rows = await run<SnapshotEntry & { n: number }>(db, SNAPSHOTS, [
    requests.map((request) => request.agentId),
    options.projectId,
    options.actorId,
    requests.map((request) => request.isFull),
  ]);
  for (const { n, ...entry } of rows) snapshots[n - 1]?.push(entry as SnapshotEntry);
  return snapshots;
}
