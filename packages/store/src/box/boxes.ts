import type {
  AgentId,
  Asked,
  BoxId,
  Card,
  CardId,
  ExpandedBox,
  LeafRange,
  ProjectId,
  Segment,
  SegmentRule,
  TurnId,
} from '@boxcar/kernel';
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
import type { Row } from '../schema/index.js';
import { entriesOf, entryAt, UNKNOWN_PART } from '../visible/index.js';
import { IS_START, LEAVES, PACKED_CARDS, SEGMENTS, SHOWN_LEAVES, SHOWN_SEGMENTS, startOf } from './leaves.js';

export interface LoadBoxesOptions {
  readonly projectId: ProjectId;
  /** The agent whose right to read is looked up. */
  readonly actorId: AgentId;
}

/** A granted right with its bounds; null: unbounded. */
export interface BoxGrant {
  readonly upto: number | null;
  readonly until: string | null;
}

/** A range with the rule that put it into its box. */
export interface LoadedRange extends LeafRange {
  readonly rule: SegmentRule;
}

export interface LoadedBox extends ExpandedBox {
  readonly ranges: readonly LoadedRange[];
  readonly kind: 'context' | 'tape';
  readonly isReadable: boolean;
  /** The actor owns or made the box, or is the operator. */
  readonly isOwn: boolean;
  readonly readGrant: BoxGrant | null;
  readonly appendGrant: BoxGrant | null;
}

// A range of sealed cards without skipped ones is a slice of its list, read as it is: splitting and joining it again took a third of the
// time of packing 9,000 cards. `positions` is null there, because they follow from the range. Takes no locks: rights, heads and entries are
// of one snapshot. A right that is taken away after it still counts for this read.
const LOAD_BOXES = statement(`
  with /* boxes.load_boxes */
  want_boxes as materialized (
    select b.*, ${ACCESS}, ${grantOf('append')} as append_grant
    from boxcar.boxes b
    join boxcar.projects p on p.id = b.project_id
    where b.id = any ($1::uuid[]) and b.project_id = $2
  ),
  all_seg as (${SHOWN_SEGMENTS}),
  pieces as (
    select
      b.*, r.n as piece, lower(r.piece) as "from",
      least(coalesce(upper(r.piece) - 1, b.head_position), b.head_position) as "to"
    from want_boxes b
    cross join lateral unnest(b.readable) with ordinality as r(piece, n)
    where b.kind = 'tape'
  ),
  plain as (
    select
      g.box_id, g.ord,
      array_to_string((coalesce(l.card_ids, g.card_ids))[g."from":g."to"], ',') as card_ids,
      array_to_string((coalesce(l.card_tokens, g.card_tokens))[g."from":g."to"], ',') as tokens
    from all_seg g
    left join lateral (
      select b.card_ids, b.card_tokens
      from boxcar.boxes b
      where b.id = g.source and b.kind = 'context'
      offset 0
    ) l on true
    where g.skip_set is null and (g.source is null or l.card_ids is not null)
  ),
  seg as (
    select *
    from all_seg g
    where not exists (select from plain p where p.box_id = g.box_id and p.ord = g.ord)
  ),
  leaf as (
    ${LEAVES}
    union all
    select b.id, b.piece, 'inherit', b.id, null::boolean, e.position, e.card_id, e.tokens, null::boolean,
      null::boolean, null::boolean, 0
    from pieces b
    cross join lateral ${entriesOf('b', { from: 'b."from"', to: 'b."to"', where: 'o.card_id is not null' })} e
  ),
  ranges as (
    select
      box_id, ord,
      array_to_string(array_agg(position order by position), ',') as positions,
      array_to_string(array_agg(card_id order by position), ',') as card_ids,
      array_to_string(array_agg(tokens order by position), ',') as tokens
    from leaf
    group by box_id, ord
    union all
    select box_id, ord, null, card_ids, tokens
    from plain
  ),
  starts as (
    select b.id as box_id, b.piece as ord, e.position, ${startOf('e')} as context_id, false as is_given
    from pieces b
    cross join lateral ${entriesOf('b', { from: 'b."from"', to: 'b."to"', where: IS_START })} e
    union all
    select g.box_id, g.ord, e.position, ${startOf('e')}, true
    from all_seg g
    cross join lateral unnest(g.asked) as a(position)
    cross join lateral ${entryAt('g.source', 'a.position')} e
  ),
  questions as (
    select s.box_id, s.ord, s.position, array_agg(u.card_id order by u.part) as card_ids
    from starts s
    cross join lateral (
      select b.card_ids, b.card_tokens, b.segments, ${HELD}
      from boxcar.boxes b
      join boxcar.projects p on p.id = b.project_id
      where b.id = s.context_id and b.project_id = $2 and b.kind = 'context'
      offset 0
    ) q
    cross join lateral ${PACKED_CARDS} u
    where s.is_given or q.is_own or q.granted is not null
    group by s.box_id, s.ord, s.position
  )
  select
    b.id as box_id, b.kind, b.is_own, b.readable <> '{}' as is_readable, b.granted, b.append_grant, g.ord::int,
    g.rule, g.source, g."from", g."to", array_to_string(g.skip, ',') as skip, g."native",
    array_to_string(g."references", ',') as "references",
    array_to_string(g.summaries, ',') as summaries, array_to_string(g.repeats, ',') as repeats,
    (
      select json_agg(json_build_object('position', q.position, 'cardIds', q.card_ids) order by q.position)
      from questions q
      where q.box_id = b.id and q.ord = g.ord
    ) as asked,
    r.positions, r.card_ids, r.tokens
  from want_boxes b
  left join (
    select box_id, ord, rule, source, "from", "to", skip, "native", "references", summaries, repeats
    from all_seg
    union all
    select id, piece, null, null, "from", "to", null, null, null, null, null
    from pieces
  ) g on g.box_id = b.id
  left join ranges r on r.box_id = b.id and r.ord = g.ord
  order by b.id, g.ord`);

type RangeRow = Row<'boxes', 'kind', { box_id: 'id' }> & {
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
};

// Comma-joined text that is split here is several times faster to read than arrays that are parsed item by item.
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
  select /* boxes.find_contexts */ b.id, ${READABLE} <> '{}' as is_readable
  from boxcar.boxes b
  join boxcar.projects p on p.id = b.project_id
  where b.id = any ($1::uuid[]) and b.project_id = $2 and b.kind = 'context'`);

/** The given boxes that are sealed boxes of the project, and whether the actor may read them. */
export async function findContextBoxes(
  db: Queryable,
  boxIds: readonly BoxId[],
  { projectId, actorId }: LoadBoxesOptions,
): Promise<ReadonlyMap<BoxId, { readonly isReadable: boolean }>> {
  const rows = await run<Row<'boxes', 'id'> & { is_readable: boolean }>(db, FIND_CONTEXTS, [
    boxIds,
    projectId,
    actorId,
  ]);
  return new Map(rows.map((row) => [row.id, { isReadable: row.is_readable }]));
}

const expand = (boxes: string): string => `
  with /* boxes.expand */
  want_boxes as (${boxes}),
  seg as (${SHOWN_SEGMENTS}),
  leaf as (${SHOWN_LEAVES})
  select l.box_id, l.ord::int, l.position::int, l.rule, l."native", l.is_reference, l.is_summary, l.is_repeat, l.part,
    ${PACKED_CARD_READ}, ${PACKED_CARD_BYTES} as size_bytes
  from leaf l
  cross join lateral (select * from boxcar.cards x where x.id = l.card_id offset 0) c`;

const EXPAND_CONTEXTS = statement(
  expand("select * from boxcar.boxes where id = any ($1::uuid[]) and kind = 'context'"),
);

// Several of the turns may show the same box. An empty box also has a row, because it was read.
const EXPAND_SHOWN = statement(`
  ${expand(`
    select distinct on (s.id) s.*
    from (
      select b.*, sum(b.token_estimate) over (partition by shown.turn_id) as shown_tokens
      from (
        select t.id as turn_id, t.context_box_id as box_id
        from boxcar.turns t
        where t.id = any ($1::uuid[])
        union
        select t.id, (e.payload->'data'->>'context_box_id')::uuid
        from boxcar.turns t
        ${UNKNOWN_PART}
        where t.id = any ($1::uuid[]) and e.kind = 'event' and e.payload->>'name' = 'turn.started'
      ) shown
      join boxcar.boxes b on b.id = shown.box_id
    ) s
    where s.shown_tokens <= $3
    order by s.id`)}
  union all
  select b.id, 0, 0, null, null, null, null, null, 0, null, null, null, null, null, null, null, null, 0
  from want_boxes b
  where b.card_count = 0`);

/** How a card of a context is shown. */
export interface ShownAs {
  readonly native: boolean;
  /** Shown as a reference to its text. */
  readonly isReference: boolean;
  /** The reader may read the card, or the cards that it replaces, with `expand`. */
  readonly isExpandable: boolean;
}

export interface ExpandedCard extends ShownAs {
  readonly card: Card;
  readonly rule: Segment['rule'];
  readonly sizeBytes: number;
}

type ExpandedRow = CardRow & ShownColumns & Row<'cards', 'size_bytes'> & { ord: number; position: number };

/** The columns of a leaf that say how its card is shown. */
export interface ShownColumns {
  readonly box_id: BoxId;
  readonly card_id: CardId | null;
  readonly rule: Segment['rule'];
  /** The number of a card among several cards of a turn's request, from 1; 0 for cards that the box lists. */
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

/**
 * Rows in stored order, each card where it is shown: a card that is part of a history is shown there, and not where it is listed or was a
 * request.
 */
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
 * Puts rows into stored order, by segment and position. The rows arrive in a few ordered runs, which are quickly sorted here. Postgres
 * would sort them with their contents (9,000 cards: 30 ms more).
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

/** The cards of context boxes in stored order, by box id. One statement for any number of boxes and segments. */
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
 * The context boxes that the views of turns show and their reader does not know. When the boxes of a turn are together larger than
 * `maxTokens`, they are left out.
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
  select /* boxes.find_cards */ id, token_estimate as tokens, author_id as "authorId"
  from boxcar.cards
  where id = any ($1::uuid[]) and project_id = $2`);

/** The named cards of a project that exist, with the values that a box needs to list them. */
export async function findCards(
  db: Queryable,
  cardIds: readonly CardId[],
  projectId: ProjectId,
): Promise<ReadonlyMap<CardId, { readonly id: CardId; readonly tokens: number; readonly authorId: string }>> {
  type Found = Row<'cards', 'id', { tokens: 'token_estimate'; authorId: 'author_id' }>;
  const rows = await run<Found>(db, FIND_CARDS, [cardIds, projectId]);
  return new Map(rows.map((row) => [row.id, row]));
}

// Takes no locks: boxes, rights and entries are of one snapshot. A card that is added to a box meanwhile is not found.
const READABLE_CARDS = statement(`
  with /* boxes.readable_cards */
  want_boxes as materialized (
    select b.*, ${HELD}
    from boxcar.boxes b
    join boxcar.projects p on p.id = b.project_id
    where b.project_id = $2
      and (
        b.owner_agent_id = $3
        or b.maker_agent_id = $3
        or b.id in (select g.box_id from boxcar.grants g where g.agent_id = $3)
        or b.id in (${WRITTEN_BOXES})
      )
  ),
  seg as (${SEGMENTS} and (b.is_own or b.granted is not null)),
  leaf as (
    ${LEAVES}
    union all
    select b.id, 0, 'inherit', b.id, null::boolean, e.position, e.card_id, e.tokens, null::boolean, null::boolean,
      null::boolean, 0
    from want_boxes b
    cross join lateral ${entriesOf('b', { from: '1', to: 'b.head_position', where: 'o.card_id = any ($1::uuid[])' })} e
    where b.kind = 'tape' and (b.is_own or ${readsEntry('e', 'b.id', '$3')})
  )
  select distinct card_id
  from leaf
  where card_id = any ($1::uuid[])`);

/** The given cards that are in a box the actor may read. Searches all boxes of the actor, so it is only for listing cards by id. */
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
