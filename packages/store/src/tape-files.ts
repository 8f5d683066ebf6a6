/** Tapes made of files: begun empty, filled, archived; and what stands beside a tape's entries in its folder. */
import type { BoxId, JsonValue, ProjectId } from '@boxcar/kernel';
import type pg from 'pg';
import { type Queryable, run, statement, type Tx } from './db.js';
import { lastingNameOf } from './tape-forks.js';
import type { TapeActor } from './tapes.js';

const BEGIN = statement(`
  insert into boxcar.boxes (id, project_id, kind, owner_agent_id, maker_agent_id, tape_name, incarnation, head_position, last_anchor_position, view_position, anchor_count,
    previous_box_id, session_graph)
  select $1, $2, 'tape', $3, $3, $4, coalesce((select max(b.incarnation) from boxcar.boxes b where b.project_id = $2 and b.tape_name = $4), 0) + 1, 0, 0, 1, 0, $5, $6
  on conflict do nothing returning incarnation`);

export interface EmptyTape extends TapeActor {
  readonly boxId: BoxId;
  readonly name: string;
  /** The incarnation before it, archived by now. */
  readonly previousBoxId: BoxId | null;
  readonly sessionGraph: string | null;
}

/**
 * Makes a tape without its bootstrap: what it begins with comes from elsewhere, in the same transaction, one entry at least.
 *
 * @returns Its incarnation; undefined when there is a tape of this name.
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
  'update boxcar.boxes set archived_at = now() where id = $1 and archived_at is null',
);

/** Nobody writes to it from then on, and its name is free. */
export async function archiveTape(tx: Tx, boxId: BoxId): Promise<void> {
  await run(tx, ARCHIVE, [boxId]);
}

const BEGIN_IMPORT = statement(`
  insert into boxcar.operations (project_id, idempotency_key, primitive, request_hash, response) values ($1, $2, 'import', '', 'null')
  on conflict do nothing returning idempotency_key`);
const FIND_IMPORT = statement(
  "select encode(request_hash, 'hex') as hash, response from boxcar.operations where project_id = $1 and idempotency_key = $2",
);
const END_IMPORT = statement(
  "update boxcar.operations set request_hash = decode($3, 'hex'), response = $4 where project_id = $1 and idempotency_key = $2",
);

/** An import by the key that names it. */
export interface ImportKey {
  readonly projectId: ProjectId;
  readonly key: string;
}

/** What an import under this key has come to. */
export interface KnownImport extends pg.QueryResultRow {
  /** Of its lines, hex. */
  readonly hash: string;
  readonly response: JsonValue;
}

/** Takes the key, and waits for whoever has it in hand; what has been imported under it is answered instead. */
export async function beginImport(tx: Tx, { projectId, key }: ImportKey): Promise<KnownImport | undefined> {
  if ((await run(tx, BEGIN_IMPORT, [projectId, key])).length > 0) return undefined;
  return (await run<KnownImport>(tx, FIND_IMPORT, [projectId, key]))[0];
}

/** Keeps what comes again under the key. */
export async function endImport(
  tx: Tx,
  { projectId, key }: ImportKey,
  { hash, response }: { readonly hash: string; readonly response: JsonValue },
): Promise<void> {
  await run(tx, END_IMPORT, [projectId, key, hash, JSON.stringify(response)]);
}

const FOLDER = statement(`
  with recursive earlier as (
    select b.id, b.previous_box_id, 0 as n from boxcar.boxes b where b.id = $1
    union all
    select p.id, p.previous_box_id, e.n + 1 from earlier e join boxcar.boxes p on p.id = e.previous_box_id
  )
  select b.created_at, b.session_graph, b.fork_status, b.fork_position, ${lastingNameOf('parent')} as parent_name,
    (select coalesce(json_agg(json_build_object('box_id', e.id, 'archived_at', o.archived_at) order by e.n desc), '[]')
      from earlier e join boxcar.boxes o on o.id = e.id where e.n > 0) as archived
  from boxcar.boxes b left join boxcar.boxes parent on parent.id = b.parent_box_id where b.id = $1`);

interface FolderRow extends pg.QueryResultRow {
  created_at: Date;
  session_graph: string | null;
  fork_status: 'open' | 'merged' | 'discarded' | null;
  fork_position: number | null;
  parent_name: string | null;
  archived: readonly { readonly box_id: BoxId; readonly archived_at: string }[];
}

/** What a tape's folder says beside its entries. */
export interface TapeFolderFacts {
  readonly createdAt: Date;
  /** The lines it was imported with. */
  readonly sessionGraph: string | null;
  readonly forkStatus: 'open' | 'merged' | 'discarded' | null;
  /** What names the tape that it was forked from, as in sessions. */
  readonly parent: { readonly name: string; readonly position: number } | null;
  /** The incarnations before it, oldest first. */
  readonly archived: readonly { readonly boxId: BoxId; readonly archivedAt: Date }[];
}

export async function loadFolderFacts(db: Queryable, boxId: BoxId): Promise<TapeFolderFacts | undefined> {
  const [row] = await run<FolderRow>(db, FOLDER, [boxId]);
  if (row === undefined) return undefined;
  return {
    createdAt: row.created_at,
    sessionGraph: row.session_graph,
    forkStatus: row.fork_status,
    parent: row.parent_name === null ? null : { name: row.parent_name, position: row.fork_position ?? 0 },
    archived: row.archived.map(({ box_id: id, archived_at: at }) => ({
      boxId: id,
      archivedAt: new Date(at),
    })),
  };
}
