/**
 * Reports on boxes: their cards, the source and the rule of each card, and the agents that may read the box. Three statements, page by
 * page.
 */
import {
  type AgentId,
  type BoxId,
  type CardContent,
  type CardId,
  type EntryKind,
  type JsonValue,
  KernelError,
  type ProjectId,
  type Role,
  type Segment,
  type TurnId,
  tryParseId,
} from '@boxcar/kernel';
import type pg from 'pg';
import { LEAVES, SEGMENTS } from '../box/index.js';
import { type Queryable, run, statement } from '../db/index.js';
import { query } from '../query/query.js';
import type { Outer, Row } from '../schema/index.js';
import { findBoxId } from '../submit/index.js';
import { entriesOf } from '../visible/index.js';

const PREVIEW_LENGTH = 200;
const DEFAULT_LIMIT = 50;
const MAX_LIMIT = 1_000;
const LISTED_GRANTS = 100;
/** The maximum number of bytes of contents and payloads in a page, unless a single place has more. */
const MAX_PAGE_BYTES = 1024 * 1024;

interface NamedAgent {
  readonly agent_id: AgentId;
  readonly name: string | null;
}

/** A card in a report on a box. */
export interface BoxCard {
  readonly card_id: CardId;
  readonly type: string;
  readonly role: Role | null;
  readonly tokens: number;
  readonly size_bytes: number;
  readonly content_hash: string;
  /** As stored: the id of an agent, or the name of a tool or primitive. */
  readonly author_id: string;
  /** The name of the author, when it is an agent of this project. */
  readonly author: string | null;
  readonly preview: string;
  /** Only when contents were requested; null after erasure. */
  readonly content?: CardContent | null;
}

/** A place of a box, in order: numbered from 1 in a context box, by position on a tape. */
export type BoxEntry =
  | {
      readonly kind: 'card';
      readonly position: number;
      /** Index in `segments`, from 0. */
      readonly segment: number;
      /** The place of the card: this box, another box or a tape. */
      readonly source: { readonly box_id: BoxId; readonly position: number };
      readonly card: BoxCard;
    }
  | {
      readonly kind: EntryKind;
      readonly position: number;
      readonly anchor: string | null;
      readonly turn_id: TurnId | null;
      readonly step: number | null;
      readonly author_id: string;
      readonly card: BoxCard | null;
      /** The payload of an event. */
      readonly payload: JsonValue | null;
    };

export interface BoxGrantLine extends pg.QueryResultRow {
  readonly agent_id: AgentId;
  readonly agent: string;
  readonly mode: 'read' | 'append';
  /** The last position that the grant covers; null: all. */
  readonly upto_position: number | null;
  readonly expires_at: Date | null;
  readonly is_expired: boolean;
  /** The origin of the grant: an agent id, `turn:<id>` for a grant by the end of a child, or `card:<id>` of a handoff. */
  readonly source: string;
  readonly source_agent: string | null;
  readonly created_at: Date;
}

export interface BoxReport {
  readonly box_id: BoxId;
  readonly project_id: ProjectId;
  readonly kind: 'context' | 'tape';
  readonly created_at: Date;
  readonly owner: NamedAgent | null;
  readonly maker: NamedAgent | null;
  /** For a context box, the number of its cards. For a tape, the number of its entries, events included. */
  readonly count: number;
  /** The estimate for all cards; null for a tape, which has no sum. */
  readonly tokens: number | null;
  /** The manifest of a context box. */
  readonly segments: readonly Segment[];
  readonly last_anchor_position: number | null;
  readonly entries: readonly BoxEntry[];
  /** The `after` of the next page; null at the end. */
  readonly next: number | null;
  /** The first grants; `grant_count` is the number of all grants. */
  readonly grants: readonly BoxGrantLine[];
  readonly grant_count: number;
}

/** The named project, and its box if the project has that box. One statement. */
async function findBox(db: Queryable, boxId: BoxId, project: string) {
  const projectId = tryParseId<'project'>(project);
  const [row] = await query(db, 'box-report.find_box', ({ orm, tables, alias, and, eq, or, sql }) => {
    const { agents, boxes, grants, projects } = tables;
    const isId = projectId && eq(projects.id, projectId);
    const wanted = orm
      .select({ id: projects.id })
      .from(projects)
      .where(or(isId, eq(projects.name, project)))
      .orderBy(...(isId === undefined ? [] : [sql`${isId} desc`]))
      .limit(1)
      .as('wanted');
    const owner = alias(agents, 'owner');
    const maker = alias(agents, 'maker');
    return orm
      .select({
        project_id: wanted.id,
        box: {
          kind: boxes.kind,
          created_at: boxes.createdAt,
          owner_agent_id: boxes.ownerAgentId,
          maker_agent_id: boxes.makerAgentId,
          count: sql<number>`coalesce(${boxes.cardCount}, ${boxes.headPosition})`,
          tokens: boxes.tokenEstimate,
          segments: boxes.segments,
          last_anchor_position: boxes.lastAnchorPosition,
        },
        owner: owner.name,
        maker: maker.name,
        grant_count: orm.$count(grants, eq(grants.boxId, boxes.id)),
      })
      .from(wanted)
      .leftJoin(boxes, and(eq(boxes.id, boxId), eq(boxes.projectId, wanted.id)))
      .leftJoin(owner, eq(owner.id, boxes.ownerAgentId))
      .leftJoin(maker, eq(maker.id, boxes.makerAgentId));
  });
  return row;
}

/** The agent in a text column, if the column contains the id of an agent: authors are also tools and primitives. */
const agentNamedBy = (column: string, projectId: string): string => `
  left join lateral (
    select x.name
    from boxcar.agents x
    where x.project_id = ${projectId}
      and x.id = case when ${column} ~ '^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$' then ${column}::uuid end
    offset 0
  ) author on true`;

const CARD = `
  c.id as card_id, c.type, c.role, c.token_estimate as tokens, c.size_bytes,
  encode(c.content_hash, 'hex') as content_hash, c.author_id as card_author_id, author.name as author,
  case when $4 then c.content end as content,
  left(coalesce(
    c.content->>'text', c.content->>'uri', c.content->>'data', c.content->>'fields', c.content->>'result',
    c.content->>'error', c.content->>'arguments', c.content::text, '(erased)'
  ), ${PREVIEW_LENGTH}) as preview`;

type CardRow = Row<
  'cards',
  'type' | 'role' | 'size_bytes' | 'content',
  { tokens: 'token_estimate'; card_author_id: 'author_id' }
> &
  Outer<Row<'cards', never, { card_id: 'id' }>> & {
    readonly content_hash: string;
    readonly author: string | null;
    readonly preview: string;
  };

// Contents count only when they are requested. Contents that do not fit are not read.
const SIZE_OF_CARD = `
  left join lateral (
    select case when $4 then x.size_bytes else 0 end as bytes
    from boxcar.cards x
    where x.id = l.card_id
    offset 0
  ) size on true`;

const CONTEXT_CARDS = statement(`
  with /* box-report.context_cards */
  want_boxes as (select * from boxcar.boxes where id = $1 and kind = 'context'),
  seg as (${SEGMENTS}),
  leaf as (${LEAVES}),
  numbered as (select l.*, row_number() over (order by l.ord, l.position) as n from leaf l),
  sized as (
    select l.*, sum(size.bytes) over (order by l.n) as bytes
    from numbered l
    ${SIZE_OF_CARD}
    where l.n > $2 and l.n <= $2::int + $3::int
  )
  select l.n::int as position, (l.ord - 1)::int as segment, coalesce(l.source, $1) as source,
    l.position::int as source_position, ${CARD}
  from sized l
  cross join lateral (select * from boxcar.cards x where x.id = l.card_id offset 0) c
  ${agentNamedBy('c.author_id', 'c.project_id')}
  where l.n = $2::int + 1 or l.bytes <= ${MAX_PAGE_BYTES}
  order by l.n`);

type ContextRow = CardRow & {
  readonly card_id: CardId;
  readonly position: number;
  readonly segment: number;
  readonly source: BoxId;
  readonly source_position: number;
};

// Takes no locks: one statement, so the page is of one snapshot. Entries that are appended after it are on the next page. Contents that do
// not fit are not read: `stored_before` counts the stored sizes before an entry, which need no look into the contents.
const TAPE_ENTRIES = statement(`
  with /* box-report.tape_entries */
  listed as (
    select
      l.*, size.bytes as card_bytes,
      coalesce(
        sum(coalesce(size.bytes, 0) + coalesce(pg_column_size(l.payload), 0)) over (
          order by l.position rows between unbounded preceding and 1 preceding
        ),
        0
      ) as stored_before
    from boxcar.boxes b
    cross join lateral ${entriesOf('b', { from: '$2::int + 1', to: '$2::int + $3::int' })} l
    ${SIZE_OF_CARD}
    where b.id = $1
  ),
  sized as (
    select
      l.*,
      sum(coalesce(l.card_bytes, 0) + coalesce(octet_length(l.payload::text), 0)) over (order by l.position) as bytes
    from listed l
    where l.stored_before < ${MAX_PAGE_BYTES}
  )
  select e.position, e.kind, e.anchor_name, e.turn_id, e.step, e.author_id, e.payload, ${CARD}
  from sized e
  left join lateral (select * from boxcar.cards x where x.id = e.card_id offset 0) c on true
  ${agentNamedBy('c.author_id', 'c.project_id')}
  where e.position = $2::int + 1 or e.bytes <= ${MAX_PAGE_BYTES}
  order by e.position`);

type TapeRow = CardRow &
  Row<'tapeEntries', 'position' | 'kind' | 'anchor_name' | 'turn_id' | 'step' | 'author_id' | 'payload'>;

const GRANTS = statement(`
  select /* box-report.grants */
    g.agent_id, a.name as agent, g.mode, g.upto_position, g.expires_at,
    coalesce(g.expires_at <= now(), false) as is_expired,
    g.source, author.name as source_agent, g.created_at
  from boxcar.grants g
  join boxcar.agents a on a.id = g.agent_id
  ${agentNamedBy('g.source', 'g.project_id')}
  where g.box_id = $1
  order by g.created_at, a.name, g.mode
  limit ${LISTED_GRANTS}`);

const toCard = (row: CardRow & { card_id: CardId }, withContents: boolean): BoxCard => ({
  card_id: row.card_id,
  type: row.type,
  role: row.role,
  tokens: row.tokens,
  size_bytes: row.size_bytes,
  content_hash: row.content_hash,
  author_id: row.card_author_id,
  author: row.author,
  preview: row.preview,
  ...(withContents ? { content: row.content } : {}),
});

interface Page {
  readonly after: number;
  readonly limit: number;
  readonly withContents: boolean;
}

async function loadCards(db: Queryable, boxId: BoxId, page: Page): Promise<BoxEntry[]> {
  const rows = await run<ContextRow>(db, CONTEXT_CARDS, [boxId, page.after, page.limit, page.withContents]);
  return rows.map((row) => ({
    kind: 'card',
    position: row.position,
    segment: row.segment,
    source: { box_id: row.source, position: row.source_position },
    card: toCard(row, page.withContents),
  }));
}

async function loadEntries(db: Queryable, boxId: BoxId, page: Page): Promise<BoxEntry[]> {
  const rows = await run<TapeRow>(db, TAPE_ENTRIES, [boxId, page.after, page.limit, page.withContents]);
  return rows.map((row) => {
    const { card_id } = row;
    return {
      kind: row.kind,
      position: row.position,
      anchor: row.anchor_name,
      turn_id: row.turn_id,
      step: row.step,
      author_id: row.author_id,
      card: card_id === null ? null : toCard({ ...row, card_id }, page.withContents),
      payload: row.payload,
    };
  });
}

function checkWhole(
  value: number,
  field: string,
  bounds: { readonly min: number; readonly max: number },
): number {
  if (Number.isInteger(value) && value >= bounds.min && value <= bounds.max) return value;
  throw new KernelError('bad_request', {
    message: `${field}: must be a whole number from ${bounds.min} to ${bounds.max}.`,
    details: { field },
  });
}

const named = (id: AgentId | null, name: string | null): NamedAgent | null =>
  id === null ? null : { agent_id: id, name };

/**
 * The content of a box, with the agents that hold grants: a page in stored order, with up to 1 MiB of contents and payloads, or a single
 * place.
 *
 * @param ref - Its id, or a beginning of it of at least eight digits.
 * @param options.project - Id or name; a box of another project is not found.
 * @param options.after - The number or position after which the page begins. Default 0.
 * @param options.limit - 1 to 1,000, default 50.
 * @throws KernelError `not_found`; `bad_request` when `ref` is not a valid id or a bound is not valid.
 */
export async function inspectBox(
  db: Queryable,
  ref: string,
  options: {
    readonly project: string;
    readonly after?: number | undefined;
    readonly limit?: number | undefined;
    readonly withContents?: boolean;
  },
): Promise<BoxReport> {
  const page: Page = {
    after: checkWhole(options.after ?? 0, 'after', { min: 0, max: 2 ** 30 }),
    limit: checkWhole(options.limit ?? DEFAULT_LIMIT, 'limit', { min: 1, max: MAX_LIMIT }),
    withContents: options.withContents ?? false,
  };
  const { project } = options;
  const boxId = await findBoxId(db, ref, project);
  const found = await findBox(db, boxId, project);
  if (found === undefined)
    throw new KernelError('not_found', {
      message: `No project '${project}'.`,
      details: { project_id: project },
    });
  const { box } = found;
  if (box === null)
    throw new KernelError('not_found', {
      message: `No box ${boxId} in project '${project}'.`,
      details: { box_id: boxId, project_id: found.project_id },
    });
  const entries = await (box.kind === 'tape' ? loadEntries : loadCards)(db, boxId, page);
  const last = entries.at(-1)?.position ?? page.after;
  return {
    box_id: boxId,
    project_id: found.project_id,
    kind: box.kind,
    created_at: box.created_at,
    owner: named(box.owner_agent_id, found.owner),
    maker: named(box.maker_agent_id, found.maker),
    count: box.count,
    tokens: box.tokens,
    segments: box.segments ?? [],
    last_anchor_position: box.last_anchor_position,
    entries,
    next: last < box.count ? last : null,
    grants: await run<BoxGrantLine>(db, GRANTS, [boxId]),
    grant_count: found.grant_count,
  };
}
