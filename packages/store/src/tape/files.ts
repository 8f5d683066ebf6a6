/** Tapes that are made from files: begun empty, filled, archived. Also reads the facts in a tape's folder that are not entries. */
import type { BoxId, FileMark, JsonValue, ProjectId } from '@boxcar/kernel';
import type pg from 'pg';
import { type Queryable, run, statement, type Tx } from '../db/index.js';
import { CARD_COLUMNS, CARD_TARGET, CARD_VALUES, grantOf, OWNS, READS } from '../rows/index.js';
import type { Row } from '../schema/index.js';
import { type AppendResult, ENTRY_COLUMNS, LOCK_TAPE, OPEN_STEP } from './appends.js';
import { lastingNameOf } from './forks.js';
import type { TapeActor } from './tapes.js';

const BEGIN = statement(`
  insert /* files.begin */ into boxcar.boxes (
    id, project_id, kind, owner_agent_id, maker_agent_id, tape_name, incarnation, head_position, last_anchor_position,
    view_position, anchor_count, previous_box_id, session_graph
  )
  select
    $1, $2, 'tape', $3, $3, $4,
    coalesce((select max(b.incarnation) from boxcar.boxes b where b.project_id = $2 and b.tape_name = $4), 0) + 1,
    0, 0, 1, 0, $5, $6
  on conflict do nothing
  returning incarnation`);

export interface EmptyTape extends TapeActor {
  readonly boxId: BoxId;
  readonly name: string;
  /** The previous incarnation, which is archived. */
  readonly previousBoxId: BoxId | null;
  readonly sessionGraph: string | null;
}

/**
 * Makes a tape without its bootstrap. The same transaction must append its first entries from another source, at least one.
 *
 * @returns Its incarnation; undefined when a tape of this name exists.
 */
export async function beginTape(tx: Tx, tape: EmptyTape): Promise<number | undefined> {
  const [row] = await run<{ incarnation: number }>(tx, BEGIN, [
    tape.boxId,
    tape.projectId,
    tape.actorId,
    tape.name,
    tape.previousBoxId,
    tape.sessionGraph,
  ]);
  return row?.incarnation;
}

const ARCHIVE = statement(
  'update /* files.archive */ boxcar.boxes set archived_at = now() where id = $1 and archived_at is null',
);

/** Archives a tape: it accepts no more writes, and its name is free. */
export async function archiveTape(tx: Tx, boxId: BoxId): Promise<void> {
  await run(tx, ARCHIVE, [boxId]);
}

const BEGIN_IMPORT = statement(`
  insert /* files.begin_import */ into boxcar.operations (
    project_id, idempotency_key, primitive, request_hash, response, made
  )
  values ($1, $2, 'import', '', 'null', '{}')
  on conflict do nothing
  returning idempotency_key`);
const FIND_IMPORT = statement(`
  select /* files.find_import */ encode(request_hash, 'hex') as hash, response
  from boxcar.operations
  where project_id = $1 and idempotency_key = $2`);
const END_IMPORT = statement(`
  update /* files.end_import */ boxcar.operations
  set request_hash = decode($3, 'hex'), response = $4
  where project_id = $1 and idempotency_key = $2`);

const ADD_IMPORT = statement(`
  insert /* files.add_import */ into boxcar.operations (
    project_id, idempotency_key, primitive, request_hash, response, made
  )
  values ($1, $2, 'import', decode($3, 'hex'), $4, '{}')
  on conflict do nothing`);
const LOCK_IMPORT = statement(`
  select /* files.lock_import */ encode(request_hash, 'hex') as hash, response
  from boxcar.operations
  where project_id = $1 and idempotency_key = $2
  for update`);

/** The key of an import. */
export interface ImportKey {
  readonly projectId: ProjectId;
  readonly key: string;
}

/** The state of an import under this key. */
export interface KnownImport extends pg.QueryResultRow {
  /** The hash of its lines, in hex. */
  readonly hash: string;
  readonly response: JsonValue;
}

/** The import that was finished under this key, if any. */
export async function findImport(
  db: Queryable,
  { projectId, key }: ImportKey,
): Promise<KnownImport | undefined> {
  return (await run<KnownImport>(db, FIND_IMPORT, [projectId, key]))[0];
}

/**
 * Takes the key. Waits for another import that holds the key: an import takes its key only at its end.
 *
 * @returns False when an import has finished under this key.
 */
export async function beginImport(tx: Tx, { projectId, key }: ImportKey): Promise<boolean> {
  return (await run(tx, BEGIN_IMPORT, [projectId, key])).length > 0;
}

/** Locks the key of an import. Returns the state of its earlier use, or `first` at its first use. */
export async function lockImport(
  tx: Tx,
  { projectId, key }: ImportKey,
  first: KnownImport,
): Promise<KnownImport> {
  await run(tx, ADD_IMPORT, [projectId, key, first.hash, JSON.stringify(first.response)]);
  const [known] = await run<KnownImport>(tx, LOCK_IMPORT, [projectId, key]);
  return known ?? first;
}

/** Stores the answer for repetitions of this import. */
export async function endImport(
  tx: Tx,
  { projectId, key }: ImportKey,
  { hash, response }: { readonly hash: string; readonly response: JsonValue },
): Promise<void> {
  await run(tx, END_IMPORT, [projectId, key, hash, JSON.stringify(response)]);
}

/** A temporary table of the transaction. It holds the entries of an import until their tape is locked. */
const OPEN_STAGE = statement(`
  create /* files.open_stage */ temporary table boxcar_import (
    file int, n int, kind text, card_id uuid, tokens int, payload json, anchor_name text, author_id text, meta jsonb,
    created_at timestamptz,
    primary key (file, n)
  )
  on commit drop`);
// An entry without a card contains the time of its import; a card has its own date.
const STAGE = statement(`
  with /* files.stage */
  x as materialized (
    select *
    from json_to_recordset($3::json) as x(${ENTRY_COLUMNS}, ${CARD_COLUMNS})
    where $2::int + x.n > $4::int
  ),
  cards as (
    insert into ${CARD_TARGET}
    select ${CARD_VALUES}
    from x
    where x.is_new
  )
  insert into pg_temp.boxcar_import
  select
    $1::int, $2::int + x.n, x.kind, x.id, x.entry_tokens, x.payload::json, x.anchor_name, x.entry_author,
    case
      when x.id is null and x.entry_date is not null then jsonb_set(x.entry_meta, '{imported,at}', to_jsonb(now()))
      else x.entry_meta
    end,
    coalesce(x.entry_date, now())
  from x`);
/** Like `appendText` in appends.ts, with entries $5 + 1 to $6 of file $4; must run after the tape is locked. */
const APPEND_STAGED = statement(`
  with /* files.append_staged */
  tape as materialized (
    select
      b.id, b.owner_agent_id,
      case
        when not (${OWNS} or ${grantOf('append')} is not null) then 'forbidden'
        when b.archived_at is not null then 'archived'
        when b.fork_status <> 'open' then 'closed'
        else 'appended'
      end as outcome
    from boxcar.boxes b
    join boxcar.projects p on p.id = b.project_id
    where b.id = $1 and b.project_id = $2 and b.kind = 'tape'
  ),
  x as materialized (
    select i.*
    from pg_temp.boxcar_import i
    where i.file = $4::int and i.n > $5::int and i.n <= $6::int
  ),
  s as materialized (
    select
      count(*)::int as n,
      max(x.n) filter (where x.kind = 'anchor') - $5::int as anchor,
      (count(*) filter (where x.kind = 'anchor'))::int as anchors
    from x
  ),
  ${OPEN_STEP}
  moved as (
    update boxcar.boxes b
    set
      head_position = b.head_position + s.n,
      last_anchor_position = coalesce(b.head_position + s.anchor, b.last_anchor_position),
      anchor_count = coalesce(b.anchor_count, 1) + s.anchors,
      view_anchor_position = case when s.anchor is null then b.view_anchor_position end,
      view_position = case
        when s.anchor is null then b.view_position
        else least((select first from open_step), b.head_position + s.anchor)
      end
    from tape, s
    where b.id = tape.id and tape.outcome = 'appended'
    returning b.id, b.head_position, b.head_position - s.n as base
  ),
  entries as (
    insert into boxcar.tape_entries (
      box_id, position, kind, card_id, tokens, payload, anchor_name, author_id, dedup_key, meta, created_at
    )
    select
      m.id, m.base + x.n - $5::int, x.kind, x.card_id, x.tokens, x.payload, x.anchor_name, x.author_id,
      case x.n when $5::int + 1 then 'import:' || (m.base + 1) end,
      x.meta, x.created_at
    from moved m
    cross join x
  )
  select tape.outcome, m.base + 1 as first, m.head_position as head
  from tape
  left join moved m on true`);

/** The number of entries per statement while their tape is locked: each statement takes a fraction of a second. */
const STAGED_PER_APPEND = 10_000;

interface StagedRow extends pg.QueryResultRow {
  readonly outcome: 'appended' | 'archived' | 'closed' | 'forbidden';
  readonly first: number;
  readonly head: number;
}

/** Must be called before the first `stageEntries` of a transaction. */
export async function openStage(tx: Tx): Promise<void> {
  await run(tx, OPEN_STAGE, []);
}

/**
 * Writes the cards of entries, and stages the entries for `appendStaged`. Locks no tape.
 *
 * @param staged.records - The entries as `entryRecords` returns them.
 * @param staged.after - The number of entries of the file that precede them.
 * @param staged.written - The number of entries of the file that are already on the tape and are skipped. Default 0.
 */
export async function stageEntries(
  tx: Tx,
  staged: {
    readonly file: number;
    readonly after: number;
    readonly records: string;
    readonly written?: number;
  },
): Promise<void> {
  const { file, after, records, written = 0 } = staged;
  await run(tx, STAGE, [file, after, records, written]);
}

/**
 * Appends the staged entries of a file up to the `count`th, at least one. The tape stays locked until the end of the transaction.
 *
 * @param staged.written - As for `stageEntries`.
 */
export async function appendStaged(
  tx: Tx,
  staged: TapeActor & {
    readonly boxId: BoxId;
    readonly file: number;
    readonly count: number;
    readonly written?: number;
  },
): Promise<AppendResult> {
  const { boxId, projectId, actorId, file, count, written = 0 } = staged;
  await run(tx, LOCK_TAPE, [boxId, projectId]);
  let first = 0;
  let head = 0;
  for (let after = written; after < count; after += STAGED_PER_APPEND) {
    const values = [boxId, projectId, actorId, file, after, Math.min(after + STAGED_PER_APPEND, count)];
    const [row] = await run<StagedRow>(tx, APPEND_STAGED, values);
    if (row === undefined) return { outcome: 'not_found' };
    if (row.outcome !== 'appended') return { outcome: row.outcome };
    if (after === written) first = row.first;
    head = row.head;
  }
  return { outcome: 'appended', first, head, isRepeated: false };
}

/** The description of the file in the folder of an imported tape. */
const markOf = (box: string): string =>
  `(select o.meta->'imported'->'file' from boxcar.tape_entries o where o.box_id = ${box} and o.position = 1)`;

// Takes no locks: all facts are of one snapshot. Archived incarnations never change.
const FOLDER = statement(`
  with recursive /* files.folder */
  earlier as (
    select b.id, b.previous_box_id, 0 as n
    from boxcar.boxes b
    where b.id = $1
    union all
    select p.id, p.previous_box_id, e.n + 1
    from earlier e
    join boxcar.boxes p on p.id = e.previous_box_id
  )
  select
    t.created_at, t.session_graph, t.fork_status, t.fork_position, ${lastingNameOf('parent')} as parent_name,
    ${markOf('t.id')} as mark,
    (
      select coalesce(json_agg(json_build_object(
        'box_id', b.id, 'archived_at', b.archived_at, 'mark', ${markOf('b.id')}
      ) order by e.n desc), '[]')
      from earlier e
      join boxcar.boxes b on b.id = e.id
      join boxcar.projects p on p.id = b.project_id
      where e.n > 0 and ${READS} <> 'none'
    ) as archived
  from boxcar.boxes t
  left join boxcar.boxes parent on parent.id = t.parent_box_id
  where t.id = $1 and t.project_id = $2`);

type FolderRow = Row<'boxes', 'created_at' | 'session_graph' | 'fork_status' | 'fork_position'> & {
  readonly parent_name: string | null;
  readonly mark: FileMark | null;
  readonly archived: readonly {
    readonly box_id: BoxId;
    readonly archived_at: string;
    readonly mark: FileMark | null;
  }[];
};

/** The facts in a tape's folder that are not entries. */
export interface TapeFolderFacts {
  readonly createdAt: Date;
  /** The session graph with which the tape was imported. */
  readonly sessionGraph: string | null;
  readonly forkStatus: 'open' | 'merged' | 'discarded' | null;
  /** The name of the tape from which it was forked, in the form that sessions use. */
  readonly parent: { readonly name: string; readonly position: number } | null;
  /** For an imported tape: the description of its file in its folder. */
  readonly mark: FileMark | null;
  /** Earlier incarnations of which the actor may read at least a part, oldest first. */
  readonly archived: readonly {
    readonly boxId: BoxId;
    readonly archivedAt: Date;
    readonly mark: FileMark | null;
  }[];
}

/** One statement for any number of incarnations. */
export async function loadFolderFacts(
  db: Queryable,
  boxId: BoxId,
  { projectId, actorId }: TapeActor,
): Promise<TapeFolderFacts | undefined> {
  const [row] = await run<FolderRow>(db, FOLDER, [boxId, projectId, actorId]);
  if (row === undefined) return undefined;
  return {
    createdAt: row.created_at,
    sessionGraph: row.session_graph,
    forkStatus: row.fork_status,
    parent: row.parent_name === null ? null : { name: row.parent_name, position: row.fork_position ?? 0 },
    mark: row.mark,
    archived: row.archived.map(({ box_id: id, archived_at: at, mark }) => ({
      boxId: id,
      archivedAt: new Date(at),
      mark,
    })),
  };
}
