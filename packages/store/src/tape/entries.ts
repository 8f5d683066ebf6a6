/**
 * Reads entries of a tape between positions, and finds anchors by name. Follows the line of forks, at a head that the caller has fixed.
 *
 * E1  Entries are read in pages. The contents of a page have at most `PAGE_BYTES`, or belong to a single entry.
 * E2  A statement lists entries by their sizes and sends the contents of the first page. Other contents are not read. The exceptions are
 *     the parts of entries whose size the rows do not contain (`payload`, `meta`): of these, up to the size of a page is read, compressed.
 * E3  A listed entry is not listed again: later pages are read by their positions.
 */
import {
  type BoxId,
  ENTRY_KINDS,
  type EntryKind,
  isJsonObject,
  type JsonObject,
  type JsonValue,
  type StoredEntry,
  spellingsOf,
  type TurnId,
} from '@boxcar/kernel';
import type pg from 'pg';
import { type Queryable, run, type Statement, statement } from '../db/index.js';
import { type CardRow, type PartReader, readCard, readsEntry } from '../rows/index.js';
import { edgeEntriesOf, entriesOf, type LineRange } from '../visible/index.js';

/** An entry of a tape as its readers get it. */
export interface TapeEntryRow extends StoredEntry {
  /** The box that contains the entry: the tape itself, or a tape from which it was forked. */
  readonly boxId: BoxId;
  readonly authorId: string;
  /** ISO 8601 with microseconds. */
  readonly createdAt: string;
}

export interface EntryRange {
  readonly from: number;
  readonly to: number;
  /** Kinds of entries, or of imported lines with other kinds. Empty: all. */
  readonly kinds?: readonly string[];
  /** Inclusive bounds, ISO 8601; null: no bound. */
  readonly since?: string | null;
  readonly until?: string | null;
  /** The maximum number of entries, from the beginning or, with `newest`, from the end; null: all. */
  readonly limit?: number | null;
  readonly edge?: 'oldest' | 'newest';
  /** Only the parts that this agent may read, although it does not own the tape; null: all. */
  readonly within?: PartReader | null;
}

/** Bytes of content in a page. A quarter of a reader's maximum, so that no process spends long on a page. */
export const PAGE_BYTES = 256 * 1024;
/**
 * The number of entries that a statement lists. It is larger for long ranges with dates, because each such statement searches all dates.
 */
const LISTED = 500;
const LISTED_BY_DATE = 10_000;

/** The columns of listed entries `e` and their cards `c`. Contents are only referenced. */
const LISTING = `
  e.box_id, e.position, e.kind, e.payload, e.anchor_name, e.turn_id as entry_turn_id, e.step, e.author_id, e.meta,
  e.created_at, c.id as card_id, c.type as card_type, c.role as card_role, c.content, c.placeholder, c.metadata,
  c.author_id as card_author_id, c.tool_call_id as card_tool_call_id, c.size_bytes`;
const CARD_OF_ENTRY =
  'left join lateral (select * from boxcar.cards x where x.id = e.card_id offset 0) c on true';

/** SQL of a sum over the parts of a listed entry whose size is not in a column. */
const sumOf = (size: (part: string) => string): string =>
  ['l.payload', 'l.meta', 'l.metadata'].map((part) => `coalesce(${size(part)}, 0)`).join(' + ');

// The event of a handoff only names its anchor. The state is only in the card of the anchor, where it can be erased.
const HANDOFF = `
  (
    select k.content, k.placeholder, k.size_bytes
    from (
      select l.position - 1 as at, l.payload->'data'->>'name' as name
      where case
        when l.is_near and l.kind = 'event' and l.payload->>'name' = 'handoff' then l.payload->'data'->'state' is null
      end
      offset 0
    ) g
    cross join lateral ${entriesOf('b', { from: 'g.at', to: 'g.at', where: "o.kind = 'anchor'" })} a
    join boxcar.cards k on k.id = a.card_id
    where a.anchor_name = g.name
    offset 0
  )`;

/**
 * The first page of `listed(n, …)`, entries of the tape $1, of at most `max` bytes; and the places of the other entries. Takes no locks:
 * one statement, so the page is of one snapshot.
 */
const pageOf = (listed: string, max: string): string => `
  with /* entries.page_of */
  listed as materialized (${listed}),
  weighed as (
    select
      l.*,
      l.n = 1
      or sum(coalesce(l.size_bytes, 0) + ${sumOf((part) => `pg_column_size(${part})`)}) over (
        order by l.n rows between unbounded preceding and 1 preceding
      ) < ${max} as is_near
    from listed l
  ),
  sized as materialized (
    select
      l.*, h.content as handoff_content, h.placeholder as handoff_placeholder, h.size_bytes as handoff_bytes,
      case
        when l.is_near
          then coalesce(l.size_bytes, 0) + coalesce(h.size_bytes, 0)
            + ${sumOf((part) => `octet_length(${part}::text)`)}
      end as bytes
    from boxcar.boxes b
    cross join weighed l
    left join lateral ${HANDOFF} h on true
    where b.id = $1
  ),
  fitted as (
    select s.*, s.is_near and (s.n = 1 or sum(s.bytes) over (order by s.n) <= ${max}) as is_read
    from sized s
  )
  select f.position, f.bytes, f.is_read, r.*
  from fitted f
  left join lateral (
    select
      f.box_id, f.kind, f.anchor_name, f.entry_turn_id, f.step, f.author_id, f.payload, f.meta,
      to_char(f.created_at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"') as created_at,
      f.card_id, f.card_type, f.card_role,
      coalesce(f.content, f.placeholder) as card_content,
      f.metadata as card_metadata, f.card_author_id, f.card_tool_call_id,
      case
        when f.handoff_bytes is not null
          then json_build_object('state', coalesce(f.handoff_content, f.handoff_placeholder)->'data')
      end as handoff
    where f.is_read
  ) r on true
  order by f.n`;

/** Ranges up to this many positions are read by position, also with dates: a search by date may find many more entries. */
const SHORT = 2_000;

/** SQL of the kind of an entry as its readers see it: an imported line with another kind is an event with the name of that kind. */
export const kindOf = (e: string): string => `
  case
    when ${e}.kind = 'event' and ${e}.meta ? 'imported' and ${e}.payload->>'name' like 'imported.%'
      then substr(${e}.payload->>'name', 10)
    else ${e}.kind
  end`;

const KINDS: ReadonlySet<string> = new Set(ENTRY_KINDS);

interface Shape {
  readonly hasKinds: boolean;
  /** The kinds include events, or kinds of imported lines, which can only be distinguished by reading events. */
  readonly hasEvents: boolean;
  readonly dates: 'any' | 'looked up' | 'filtered';
  readonly hasLimit: boolean;
  readonly isNewest: boolean;
  readonly isPartial: boolean;
}

const dated = (date: string): string =>
  `${date} >= coalesce($5::timestamptz, '-infinity') and ${date} <= coalesce($6::timestamptz, 'infinity')`;

/**
 * The condition on the entries `o`, written so that only one index matches. Columns without an effect on the result must not make the
 * planner choose another index. Positions of a part of a line stay a separate condition.
 */
function rangeOf({ hasKinds, hasEvents, dates, isPartial }: Shape): LineRange {
  const positions = { from: '$2::int', to: '$3::int' };
  const readable = isPartial ? ` and ${readsEntry('o', '$1::uuid', '$8::uuid')}` : '';
  const named = hasEvents ? ` and (o.kind <> 'event' or ${kindOf('o')} = any ($10::text[]))` : '';
  const kind = `${hasKinds ? 'o.kind = w.kind' : 'true'}${named}${readable}`;
  switch (dates) {
    case 'any':
      return { ...positions, where: kind };
    case 'filtered':
      return { ...positions, where: `${kind} and ${dated("(o.created_at + interval '0')")}` };
    case 'looked up':
      return {
        from: '1',
        to: `${2 ** 31 - 1}`,
        where: `${kind} and ${dated('o.created_at')} and o.position + 0 between $2::int and $3::int`,
      };
    default:
      return dates satisfies never;
  }
}

/**
 * One text for each shape of query, so that each has a plan that reads only the rows that it returns. All entries of a range are one range
 * of the key. Kinds are looked up one by one, each up to the limit. Dates of a long range are searched kind by kind, and the limit applies
 * to the combined result.
 */
function entriesText(shape: Shape): string {
  const { hasKinds, dates, hasLimit, isNewest } = shape;
  const order = `position${isNewest ? ' desc' : ''}`;
  const range = rangeOf(shape);
  const source =
    hasLimit && dates !== 'looked up'
      ? edgeEntriesOf('b', range, { order: `o.${order}`, limit: '$7::int' })
      : entriesOf('b', range);
  const entries = hasKinds
    ? `unnest($4::text[]) as w(kind) cross join lateral ${source} e`
    : `lateral ${source} e`;
  const listed = `
    select /* entries.entries */ row_number() over (order by e.${order})::int as n, ${LISTING}
    from boxcar.boxes b
    cross join lateral (select e.* from ${entries} ${hasLimit ? `order by e.${order} limit $7::int` : ''}) e
    ${CARD_OF_ENTRY}
    where b.id = $1
      and b.kind = 'tape'
      and ($4::text[] is null or true)
      and ($5::timestamptz is null or true)
      and ($6::timestamptz is null or true)
      and ($7::int is null or true)
      and ($8::uuid is null or true)
      and ($10::text[] is null or true)`;
  return pageOf(listed, '$9::bigint');
}

const statements = new Map<string, Statement>();

interface Listing {
  readonly prepared: Statement;
  readonly values: unknown[];
  /** The maximum number of listed entries. When fewer are listed, the range is complete. */
  readonly most: number;
}

/** @internal For tests of plans. */
export function entriesStatement(range: EntryRange, maxBytes = PAGE_BYTES): Listing {
  const { since = null, until = null } = range;
  const isNewest = range.edge === 'newest';
  const span = range.to - range.from + 1;
  const dates = since === null && until === null ? 'any' : span > SHORT ? 'looked up' : 'filtered';
  const most = Math.min(range.limit ?? span, span, dates === 'looked up' ? LISTED_BY_DATE : LISTED);
  const asked = range.kinds ?? [];
  const isEvent = (kind: string): boolean => kind === 'event' || !KINDS.has(kind);
  const stored = asked.map((kind) => (isEvent(kind) ? 'event' : kind));
  const kinds = dates === 'looked up' && asked.length === 0 ? ENTRY_KINDS : stored;
  // Positions have no gaps, so the first or last entries of a range are a range too.
  const isPartial = range.within != null;
  const isPlain = kinds.length === 0 && dates === 'any' && !isPartial;
  const from = isPlain && isNewest ? range.to - most + 1 : range.from;
  const to = isPlain && !isNewest ? range.from + most - 1 : range.to;
  const shape: Shape = {
    hasKinds: kinds.length > 0,
    hasEvents: asked.some(isEvent),
    dates,
    hasLimit: !isPlain,
    isNewest,
    isPartial,
  };
  const key = JSON.stringify(shape);
  const prepared = statements.get(key) ?? statement(entriesText(shape));
  statements.set(key, prepared);
  return {
    prepared,
    most,
    values: [
      from,
      to,
      kinds.length > 0 ? [...new Set(kinds)] : null,
      since,
      until,
      isPlain ? null : most,
      range.within?.agentId ?? null,
      maxBytes,
      asked.some(isEvent) ? asked : null,
    ],
  };
}

interface EntryDbRow extends CardRow, pg.QueryResultRow {
  position: number;
  /** The size of its contents; null: not known yet. */
  bytes: number | null;
  /** False: the entry is only listed. */
  is_read: boolean;
  box_id: BoxId;
  kind: EntryKind;
  payload: JsonValue;
  anchor_name: string | null;
  entry_turn_id: TurnId | null;
  step: number | null;
  author_id: string;
  meta: JsonObject | null;
  created_at: string;
  handoff: { readonly state: JsonValue } | null;
}

function payloadOf({ payload, handoff }: EntryDbRow): JsonValue {
  if (handoff === null || !isJsonObject(payload) || !isJsonObject(payload.data)) return payload;
  return { ...payload, data: { ...payload.data, state: handoff.state ?? {} } };
}

const readEntry = (row: EntryDbRow): TapeEntryRow => ({
  boxId: row.box_id,
  position: row.position,
  kind: row.kind,
  card: readCard(row),
  payload: payloadOf(row),
  anchorName: row.anchor_name,
  turnId: row.entry_turn_id,
  step: row.step,
  authorId: row.author_id,
  meta: row.meta,
  createdAt: row.created_at,
});

const AT = statement(
  pageOf(
    `
      select w.n::int as n, ${LISTING}
      from boxcar.boxes b
      cross join unnest($2::int[]) with ordinality as w(at, n)
      cross join lateral ${entriesOf('b', { from: 'w.at', to: 'w.at' })} e
      ${CARD_OF_ENTRY}
      where b.id = $1 and b.kind = 'tape'`,
    '$3::bigint',
  ),
);

/** The place of an entry that must still be read. */
interface Place {
  readonly position: number;
  readonly bytes: number | null;
}

/** The first places that make a page, as far as their sizes are known; otherwise the places whose sizes one statement finds out. */
function nextPage(places: readonly Place[], maxBytes: number): readonly Place[] {
  let sum = 0;
  let count = 0;
  for (const { bytes } of places) {
    if (bytes === null || count === LISTED) break;
    sum += bytes;
    if (count > 0 && sum > maxBytes) break;
    count += 1;
  }
  return places.slice(0, count === 0 ? LISTED : count);
}

/** Reads the places in order, one page per statement. Entries that have been removed meanwhile are left out. */
async function* readPlaces(
  db: Queryable,
  boxId: BoxId,
  { places, maxBytes }: { readonly places: readonly Place[]; readonly maxBytes: number },
): AsyncGenerator<readonly TapeEntryRow[], void, void> {
  let waiting = places;
  while (waiting.length > 0) {
    const asked = nextPage(waiting, maxBytes);
    const rows = await run<EntryDbRow>(db, AT, [boxId, asked.map(({ position }) => position), maxBytes]);
    const read = rows.filter((row) => row.is_read);
    waiting = [...rows.slice(read.length), ...waiting.slice(asked.length)];
    if (read.length > 0) yield read.map(readEntry);
  }
}

export interface PageOptions {
  /** The maximum size of the contents of a page; default `PAGE_BYTES`. */
  readonly maxBytes?: number;
}

/**
 * The entries of a tape in a range of positions, in order; with `newest` in descending order. Page by page: each has at least one entry.
 */
export async function* readEntries(
  db: Queryable,
  boxId: BoxId,
  range: EntryRange,
  { maxBytes = PAGE_BYTES }: PageOptions = {},
): AsyncGenerator<readonly TapeEntryRow[], void, void> {
  let { from, to, limit = null } = range;
  while (limit !== 0 && from <= to) {
    const { prepared, values, most } = entriesStatement({ ...range, from, to, limit }, maxBytes);
    const rows = await run<EntryDbRow>(db, prepared, [boxId, ...values]);
    const read = rows.filter((row) => row.is_read);
    if (read.length > 0) yield read.map(readEntry);
    yield* readPlaces(db, boxId, { places: rows.slice(read.length), maxBytes });
    const last = rows.at(-1);
    if (last === undefined || rows.length < most) return;
    limit = limit === null ? null : limit - rows.length;
    if (range.edge === 'newest') to = last.position - 1;
    else from = last.position + 1;
  }
}

/** The entries at these positions, in the order of the positions. Page by page: each has at least one entry. */
export const readEntriesAt = (
  db: Queryable,
  boxId: BoxId,
  positions: readonly number[],
): AsyncGenerator<readonly TapeEntryRow[], void, void> =>
  readPlaces(db, boxId, {
    places: positions.map((position) => ({ position, bytes: null })),
    maxBytes: PAGE_BYTES,
  });

/** All entries that {@link readEntries} reads: for ranges that the caller knows to be short, or needs as a whole. */
export async function loadEntries(
  db: Queryable,
  boxId: BoxId,
  range: EntryRange,
): Promise<readonly TapeEntryRow[]> {
  const entries: TapeEntryRow[] = [];
  for await (const page of readEntries(db, boxId, range)) entries.push(...page);
  return entries;
}

const anchorText = (edge: 'first' | 'latest'): string => {
  const order = edge === 'latest' ? 'position desc' : 'position';
  const range = {
    from: '$3::int',
    to: '$4::int',
    // The kind is a literal, as in the index: a generic plan could not use the index.
    where: `
      o.kind = 'anchor'
      and hashtextextended(o.anchor_name, 0) = hashtextextended(s.name, 0)
      and o.anchor_name = s.name
      and ($5::uuid is null or ${readsEntry('o', '$1', '$5')})`,
  };
  return `
    select /* entries.anchor */ e.position
    from boxcar.boxes b
    cross join unnest($2::text[]) as s(name)
    cross join lateral ${edgeEntriesOf('b', range, { order: `o.${order}`, limit: '1' })} e
    where b.id = $1 and b.kind = 'tape'
    order by e.${order}
    limit 1`;
};
const ANCHOR = { first: statement(anchorText('first')), latest: statement(anchorText('latest')) } as const;

/** The position of the first or latest anchor of a name in a range, in any spelling; undefined without such an anchor. */
export async function findAnchor(
  db: Queryable,
  boxId: BoxId,
  name: string,
  range: Pick<EntryRange, 'from' | 'to' | 'within'> & { readonly edge: 'first' | 'latest' },
): Promise<number | undefined> {
  const { from, to, edge } = range;
  const [row] = await run<{ position: number }>(db, ANCHOR[edge], [
    boxId,
    spellingsOf(name),
    from,
    to,
    range.within?.agentId ?? null,
  ]);
  return row?.position;
}
