/** Reads pages of a session's entries, and the data for its summary. Numbers come from rows, texts from one page of the tape. */
import type { BoxId, ContextType, HandoffSessionId, JsonValue } from '@boxcar/kernel';
import { isJsonObject } from '@boxcar/kernel';
import type pg from 'pg';
import { type Queryable, run, statement } from '../db/index.js';
import { readEntriesAt, type TapeEntryRow } from '../tape/index.js';
import { entriesOf } from '../visible/index.js';
import { type HandoffSession, LINE_OF_SESSION } from './handoff-sessions.js';

export interface ContextEntry {
  readonly sequenceNumber: number;
  readonly type: ContextType;
  readonly position: number;
  /** The content of the entry, with the metadata of the client; erased parts are missing. */
  readonly content: JsonValue;
  readonly metadata: JsonValue;
  /** ISO 8601 with microseconds. */
  readonly createdAt: string;
}

interface PlaceRow extends pg.QueryResultRow {
  readonly sequence_number: number;
  readonly type: ContextType;
  readonly position: number;
}

const PLACES = statement(`
  select /* read-session.places */ e.sequence_number, e.type, e.position
  from boxcar.handoff_sessions s
  cross join ${LINE_OF_SESSION}
  cross join lateral (
    select o.*
    from boxcar.handoff_session_entries o
    where o.session_id = l.id and o.sequence_number > $2 and o.sequence_number <= $3
    order by o.sequence_number
    limit $4
  ) e
  where s.id = $1
  order by e.sequence_number
  limit $4`);

/** A card of an entry contains its text, or both text and metadata of the client. */
function wordsOf({ card }: TapeEntryRow): Pick<ContextEntry, 'content' | 'metadata'> {
  const content = card?.content;
  if (content?.kind === 'text') return { content: content.text, metadata: {} };
  if (content?.kind !== 'json') return { content: null, metadata: {} };
  const { data } = content;
  if (!isJsonObject(data) || typeof data.content !== 'string') return { content: data, metadata: {} };
  return { content: data.content, metadata: data.metadata ?? {} };
}

export interface ContextPage {
  readonly entries: readonly ContextEntry[];
  /** The number after which the next page begins; null at the end. */
  readonly next: number | null;
}

/**
 * Entries after a number, up to the last position that the actor may read. Their number is limited by the request and by the page of a
 * tape. At most three statements.
 */
export async function loadContext(
  db: Queryable,
  session: HandoffSession,
  { after, limit }: { readonly after: number; readonly limit: number },
): Promise<ContextPage> {
  const { id, boxId, lastSequence } = session;
  const places = await run<PlaceRow>(db, PLACES, [id, after, lastSequence, limit]);
  const read = new Map<number, TapeEntryRow>();
  const positions = places.map(({ position }) => position);
  if (positions.length > 0) {
    const { value: page = [] } = await readEntriesAt(db, boxId, positions).next();
    for (const entry of page ?? []) read.set(entry.position, entry);
  }
  const entries = places.flatMap(({ sequence_number: sequenceNumber, type, position }) => {
    const entry = read.get(position);
    return entry === undefined
      ? []
      : [{ sequenceNumber, type, position, ...wordsOf(entry), createdAt: entry.createdAt }];
  });
  const last = entries.at(-1)?.sequenceNumber;
  return { entries, next: last === undefined || last >= lastSequence ? null : last };
}

export interface SessionEdges {
  readonly firstMessage: string | null;
  readonly lastMessage: string | null;
  readonly lastAction: string | null;
  readonly fileTypes: readonly string[];
  readonly tools: readonly string[];
}

/**
 * The number of characters of a message that are read for a summary: more than the summary shows, so that it knows whether the text
 * continues.
 */
const SHOWN = 101;

const edge = (type: ContextType, order: 'asc' | 'desc', words: string): string => `
  (
    select ${words}
    from ${LINE_OF_SESSION}
    cross join lateral (
      select o.*
      from boxcar.handoff_session_entries o
      where o.session_id = l.id and o.type = '${type}' and o.sequence_number <= $2
      order by o.sequence_number ${order}
      limit 1
    ) e
    cross join lateral (select q.tape_box_id from boxcar.handoff_sessions q where q.id = e.session_id offset 0) q
    cross join lateral (
      select t.card_id
      from boxcar.tape_entries t
      where t.box_id = q.tape_box_id and t.position = e.position
      offset 0
    ) t
    cross join lateral (select c.content from boxcar.cards c where c.id = t.card_id offset 0) c
    order by e.sequence_number ${order}
    limit 1
  )`;
const TEXT = `left(coalesce(c.content->>'text', c.content->'data'->>'content'), ${SHOWN})`;

/** How many of the newest files and tools are examined. `TOLD` limits the number of different names in the result. */
const NAMED = 50;
/** The size in bytes of a stored card: larger cards are not read for their names. */
const SMALL = 65_536;
const TOLD = 10;

/** SQL of the names in the metadata of the newest entries of a type, in order. Null without names. */
const namesOf = (type: ContextType, name: string): string => `
  (
    select array_agg(x.name order by x.name)
    from (
      select distinct ${name} as name
      from ${LINE_OF_SESSION}
      cross join lateral (
        select o.*
        from boxcar.handoff_session_entries o
        where o.session_id = l.id and o.type = '${type}' and o.sequence_number <= $2
        order by o.sequence_number desc
        limit ${NAMED}
      ) e
      cross join lateral (select q.tape_box_id from boxcar.handoff_sessions q where q.id = e.session_id offset 0) q
      cross join lateral (
        select t.card_id
        from boxcar.tape_entries t
        where t.box_id = q.tape_box_id and t.position = e.position
        offset 0
      ) t
      cross join lateral (
        select case when pg_column_size(c.content) < ${SMALL} then c.content->'data'->'metadata' end as m
        from boxcar.cards c
        where c.id = t.card_id
        offset 0
      ) c
      order by 1
      limit ${TOLD}
    ) x
    where x.name <> ''
  )`;
const FILE_TYPE = `
  substring(
    left(coalesce(c.m->>'file_path', c.m->>'path', c.m->>'filename', c.m->>'name'), 1000)
    from '[^/\\\\](\\.[A-Za-z0-9]{1,10})$'
  )`;
const TOOL = "left(coalesce(c.m->>'tool_name', c.m->>'tool', c.m->>'name'), 64)";

const EDGES = statement(`
  select /* read-session.edges */
    ${edge('message', 'asc', TEXT)} as first_message,
    ${edge('message', 'desc', TEXT)} as last_message,
    ${edge('system', 'desc', "left(c.content->'data'->'metadata'->>'action', 100)")} as last_action,
    ${namesOf('file', FILE_TYPE)} as file_types, ${namesOf('tool_call', TOOL)} as tools
  from boxcar.handoff_sessions s
  where s.id = $1`);

interface EdgesRow extends pg.QueryResultRow {
  readonly first_message: string | null;
  readonly last_message: string | null;
  readonly last_action: string | null;
  readonly file_types: readonly string[] | null;
  readonly tools: readonly string[] | null;
}

/**
 * The beginnings of the first and last message, the completed work according to the last system entry, and names of the newest files and
 * tools. Erased values are null. One statement.
 */
export async function loadSessionEdges(
  db: Queryable,
  of: { readonly id: HandoffSessionId; readonly lastSequence: number },
): Promise<SessionEdges> {
  const [row] = await run<EdgesRow>(db, EDGES, [of.id, of.lastSequence]);
  return {
    firstMessage: row?.first_message ?? null,
    lastMessage: row?.last_message ?? null,
    lastAction: row?.last_action ?? null,
    fileTypes: row?.file_types ?? [],
    tools: row?.tools ?? [],
  };
}

/** A range of the tape of a session. */
export interface SessionStretch {
  readonly boxId: BoxId;
  /** The last anchor before the range. */
  readonly anchor: number;
  readonly from: number;
  readonly to: number;
  readonly workspace: string;
  /** The number of the first context entry in the range; null without context entries. */
  readonly firstSequence: number | null;
}

// Reads the newest entries until the budget is spent, and at most $4 of them. Takes no locks: entries up to $2 never change.
const RECENT = statement(`
  select /* read-session.recent */ b.id as box_id, b.last_anchor_position, b.head_position, p.name as workspace,
    w.from_position, w.from_sequence
  from boxcar.handoff_sessions s
  join boxcar.boxes b on b.id = s.tape_box_id
  join boxcar.projects p on p.id = s.project_id
  cross join lateral (
    select min(w.position) as from_position, min(w.sequence_number) as from_sequence
    from (
      select n.position, n.sequence_number, sum(t.tokens) over (order by n.position desc) as total
      from (
        select e.position, e.sequence_number
        from ${LINE_OF_SESSION}
        cross join lateral (
          select o.position, o.sequence_number
          from boxcar.handoff_session_entries o
          where o.session_id = l.id and o.sequence_number <= $2 and (o.position > b.last_anchor_position or $5)
          order by o.sequence_number desc
          limit $4
        ) e
        order by e.position desc
        limit $4
      ) n
      cross join lateral ${entriesOf('b', { from: 'n.position', to: 'n.position' })} t
    ) w
    where w.total <= coalesce($3, w.total)
  ) w
  where s.id = $1`);

interface RecentRow extends pg.QueryResultRow {
  readonly box_id: BoxId;
  readonly last_anchor_position: number;
  readonly head_position: number;
  readonly workspace: string;
  readonly from_position: number | null;
  readonly from_sequence: number | null;
}

/**
 * The beginning of the newest entries of a session that fit the budget: those since the last anchor, or all. When no entry fits, the range
 * begins after the end of the session. One statement, which reads at most `maxEntries` rows.
 */
export async function findRecentEntries(
  db: Queryable,
  of: { readonly id: HandoffSessionId; readonly lastSequence: number },
  limits: {
    readonly maxEntries: number;
    /** Absent: no limit. */
    readonly maxTokens?: number | undefined;
    /** True: anchors are ignored. */
    readonly isWhole: boolean;
  },
): Promise<SessionStretch | undefined> {
  const { maxEntries, maxTokens = null, isWhole } = limits;
  const [row] = await run<RecentRow>(db, RECENT, [of.id, of.lastSequence, maxTokens, maxEntries, isWhole]);
  if (row === undefined) return undefined;
  const { box_id: boxId, last_anchor_position: anchor, head_position: to, workspace } = row;
  return {
    boxId,
    anchor,
    from: row.from_position ?? to + 1,
    to,
    workspace,
    firstSequence: row.from_sequence,
  };
}
