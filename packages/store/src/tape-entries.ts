/** What is read of a tape: entries between positions, and anchors by name. Line-aware, at a head that the caller has fixed. */
import {
  type BoxId,
  ENTRY_KINDS,
  type EntryKind,
  isJsonObject,
  type JsonObject,
  type JsonValue,
  type StoredEntry,
  type TurnId,
} from '@boxcar/kernel';
import type pg from 'pg';
import { type Queryable, run, type Statement, statement } from './db.js';
import { CARD_READ, type CardRow, readCard } from './records.js';
import { type PartReader, readsEntry } from './rights.js';
import { edgeEntriesOf, entriesOf, type LineRange } from './tape-line.js';

/** An entry of a tape as its readers get it. */
export interface TapeEntryRow extends StoredEntry {
  /** Where it stands: the tape itself, or one that it was forked from. */
  readonly boxId: BoxId;
  readonly authorId: string;
  /** ISO 8601 with microseconds. */
  readonly createdAt: string;
}

export interface EntryRange {
  readonly from: number;
  readonly to: number;
  /** None: all. */
  readonly kinds?: readonly EntryKind[];
  /** Inclusive bounds, ISO 8601; null = none. */
  readonly since?: string | null;
  readonly until?: string | null;
  /** The first so many (`newest`: the last); null = all. */
  readonly limit?: number | null;
  readonly edge?: 'oldest' | 'newest';
  /** Only what this agent may read of it, who does not hold it; null = all. */
  readonly within?: PartReader | null;
}

// The event of a handoff names its anchor alone: the state stands in one place, the anchor's card, and can be erased there.
const HANDOFF = `case when e.kind = 'event' and e.payload->>'name' = 'handoff' and e.payload->'data'->'state' is null then
    (select json_build_object('state', coalesce(k.content, k.placeholder)->'data')
      from ${entriesOf('b', { from: 'e.position - 1', to: 'e.position - 1', where: "o.kind = 'anchor'" })} a join boxcar.cards k on k.id = a.card_id
      where a.anchor_name = e.payload->'data'->>'name') end`;

const COLUMNS = `e.box_id, e.position, e.kind, e.payload, e.anchor_name, e.turn_id as entry_turn_id, e.step, e.author_id, e.meta,
  to_char(e.created_at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"') as created_at, ${HANDOFF} as handoff, ${CARD_READ}`;

/** Ranges of so many positions are read by these, whatever their dates: of entries within the dates there may be many more. */
const SHORT = 2_000;

interface Shape {
  readonly hasKinds: boolean;
  readonly dates: 'any' | 'looked up' | 'filtered';
  readonly hasLimit: boolean;
  readonly isNewest: boolean;
  readonly isPartial: boolean;
}

const dated = (date: string): string =>
  `${date} >= coalesce($5::timestamptz, '-infinity') and ${date} <= coalesce($6::timestamptz, 'infinity')`;

/**
 * Which entries `o`, so that one index alone offers itself: what is no column, or says nothing, is no reason to take another. Positions
 * of a line's part stay a condition of their own.
 */
function rangeOf({ hasKinds, dates, isPartial }: Shape): LineRange {
  const positions = { from: '$2::int', to: '$3::int' };
  const readable = isPartial ? ` and ${readsEntry('o', '$1::uuid', '$8::uuid')}` : '';
  const kind = `${hasKinds ? 'o.kind = w.kind' : 'true'}${readable}`;
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
 * One text for each shape of question, so that each has a plan that reads what it returns: all entries of a range are one range of the
 * key; kinds are looked up one by one, each up to the limit; dates of a long range kind by kind, and the limit takes its part of what they give.
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
  return `
  select ${COLUMNS} from boxcar.boxes b cross join lateral (select e.* from ${entries} ${hasLimit ? `order by e.${order} limit $7::int` : ''}) e
    left join lateral (select * from boxcar.cards x where x.id = e.card_id offset 0) c on true
  where b.id = $1 and b.kind = 'tape' and ($4::text[] is null or true) and ($5::timestamptz is null or true) and ($6::timestamptz is null or true) and ($7::int is null or true) and ($8::uuid is null or true)
  order by e.${order}`;
}

const statements = new Map<string, Statement>();

/** @internal For tests of plans. */
export function entriesStatement(range: EntryRange): {
  readonly prepared: Statement;
  readonly values: unknown[];
} {
  const { since = null, until = null } = range;
  const isNewest = range.edge === 'newest';
  const span = range.to - range.from + 1;
  const limit = range.limit == null ? null : Math.min(range.limit, span);
  const dates = since === null && until === null ? 'any' : span > SHORT ? 'looked up' : 'filtered';
  const kinds = dates === 'looked up' && !range.kinds?.length ? ENTRY_KINDS : (range.kinds ?? []);
  // Positions run without a gap: the first so many of a range are a range.
  const isPartial = range.within != null;
  const isPlain = kinds.length === 0 && dates === 'any' && !isPartial;
  const from = isPlain && isNewest && limit !== null ? range.to - limit + 1 : range.from;
  const to = isPlain && !isNewest && limit !== null ? range.from + limit - 1 : range.to;
  const shape: Shape = {
    hasKinds: kinds.length > 0,
    dates,
    hasLimit: limit !== null && !isPlain,
    isNewest,
    isPartial,
  };
  const key = JSON.stringify(shape);
  const prepared = statements.get(key) ?? statement(entriesText(shape));
  statements.set(key, prepared);
  return {
    prepared,
    values: [
      from,
      to,
      kinds.length > 0 ? [...new Set(kinds)] : null,
      since,
      until,
      isPlain ? null : limit,
      range.within?.agentId ?? null,
    ],
  };
}

interface EntryDbRow extends CardRow, pg.QueryResultRow {
  box_id: BoxId;
  position: number;
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

/** The entries of a tape in a range of positions, in order; `newest` ones last first. One statement. */
export async function loadEntries(
  db: Queryable,
  boxId: BoxId,
  range: EntryRange,
): Promise<readonly TapeEntryRow[]> {
  if (range.limit === 0 || range.from > range.to) return [];
  const { prepared, values } = entriesStatement(range);
  return (await run<EntryDbRow>(db, prepared, [boxId, ...values])).map(readEntry);
}

const AT = statement(`
  select ${COLUMNS} from boxcar.boxes b cross join unnest($2::int[]) with ordinality as w(at, n) cross join lateral ${entriesOf('b', { from: 'w.at', to: 'w.at' })} e
    left join lateral (select * from boxcar.cards x where x.id = e.card_id offset 0) c on true
  where b.id = $1 and b.kind = 'tape' order by w.n`);

/** The entries at these positions, in the order of these. One statement. */
export const loadEntriesAt = async (
  db: Queryable,
  boxId: BoxId,
  positions: readonly number[],
): Promise<readonly TapeEntryRow[]> => (await run<EntryDbRow>(db, AT, [boxId, positions])).map(readEntry);

const anchorText = (edge: 'first' | 'latest'): string => {
  const order = edge === 'latest' ? 'position desc' : 'position';
  const range = {
    from: '$3::int',
    to: '$4::int',
    // The kind as it stands in the index: a plan for any kind could not use it.
    where: `o.kind = 'anchor' and hashtextextended(o.anchor_name, 0) = hashtextextended($2, 0) and o.anchor_name = $2 and ($5::uuid is null or ${readsEntry('o', '$1', '$5')})`,
  };
  return `select e.position from boxcar.boxes b cross join lateral ${edgeEntriesOf('b', range, { order: `o.${order}`, limit: '1' })} e
    where b.id = $1 and b.kind = 'tape' order by e.${order} limit 1`;
};
const ANCHOR = { first: statement(anchorText('first')), latest: statement(anchorText('latest')) } as const;

/** The position of the first or latest anchor of a name in a range; undefined when there is none. */
export async function findAnchor(
  db: Queryable,
  boxId: BoxId,
  name: string,
  range: Pick<EntryRange, 'from' | 'to' | 'within'> & { readonly edge: 'first' | 'latest' },
): Promise<number | undefined> {
  const { from, to, edge } = range;
  const [row] = await run<{ position: number }>(db, ANCHOR[edge], [
    boxId,
    name,
    from,
    to,
    range.within?.agentId ?? null,
  ]);
  return row?.position;
}
