/**
 * Forks: tapes that begin with the entries of another tape up to a position, and that are merged into it or discarded.
 *
 * F1  A fork is a row that names the tapes of its line: making a fork copies no entry, for any number of entries.
 * F2  A merge is one transaction: the fork's own entries as pointers to the same cards, and a receipt on the parent and on the fork. Later
 *     callers get the first receipt.
 * F3  A merge goes to the present parent: after a reset of the parent, to its next incarnation. While a turn of the parent's agent is in
 *     progress or queued, the merge waits (`busy`). The turn for which the fork was opened does not block its own merge, unless the fork
 *     was reset.
 * F4  A fork that was reset has a separate tape from then on; the merge makes this tape the parent's next incarnation.
 * F5  A fork that was opened for a turn ends with the turn: the turn's next attempt finds the fork under its key, and the turn's end
 *     discards it.
 */
import type { AgentId, BoxId, ProjectId, TurnId } from '@boxcar/kernel';
import type pg from 'pg';
import { type Queryable, run, runRetrying, statement } from '../db/index.js';
import { partsOf, viewStartAt } from '../visible/index.js';

export type ForkStatus = 'open' | 'merged' | 'discarded';

/** The result of the end of a fork. */
export interface ForkReceipt {
  readonly status: 'merged' | 'discarded';
  /** The box as which the fork was made. */
  readonly fork: BoxId;
  /** The tape into which it was merged, as of that time; for a discarded fork, the tape from which it was forked. */
  readonly parent: BoxId;
  /** The number of merged entries. */
  readonly merged: number;
  /** Their positions on the parent; null when no entries were merged. */
  readonly first: number | null;
  readonly last: number | null;
  /** The position of the receipt on the parent; null for a discarded fork, which leaves no entry there. */
  readonly event: number | null;
  /** True when the fork was reset and has replaced the parent. */
  readonly replaced: boolean;
}

export interface ForkRow {
  readonly id: BoxId;
  readonly boxId: BoxId;
  readonly parentBoxId: BoxId;
  readonly openedBy: AgentId;
  readonly turnId: TurnId | null;
  readonly key: string;
  readonly status: ForkStatus;
  readonly mergeBack: boolean;
  readonly onError: 'merge' | 'discard';
  readonly receipt: ForkReceipt | null;
  readonly createdAt: Date;
}

export const FORK = `
  f.id, f.box_id as "boxId", f.parent_box_id as "parentBoxId", f.opened_by as "openedBy", f.turn_id as "turnId",
  f.fork_key as "key", f.status, f.merge_back as "mergeBack", f.on_error as "onError", f.receipt,
  f.created_at as "createdAt"`;

/** The line of a fork of `p` at `p.at`: the parts before that position. */
export const LINE = `line as (
    select array_agg(l.box_id order by l.n) as boxes, array_agg(least(l.upto, p.at) order by l.n) as ends
    from p cross join lateral ${partsOf('p')} l where l.behind < p.at
  )`;

export interface NewFork {
  /** The id of the fork's box: a repeated call with the same id makes no second fork. */
  readonly boxId: BoxId;
  readonly projectId: ProjectId;
  readonly parentBoxId: BoxId;
  readonly openedBy: AgentId;
  readonly turnId: TurnId | null;
  readonly key: string;
  readonly mergeBack: boolean;
  readonly onError: 'merge' | 'discard';
  /** The fork point, with its last anchor and the number of anchors, for an actor that may not see all; null: the head. */
  readonly upto: { readonly position: number; readonly lastAnchor: number; readonly anchors: number } | null;
}

/** SQL of the ids of a tape and of the incarnations that its resets have archived, each found by its key. */
const incarnationsOf = (id: string): string => `
  (
    with recursive older as (
      select i.id, i.previous_box_id
      from boxcar.boxes i
      where i.id = ${id}
      union all
      select i.id, i.previous_box_id
      from older
      join boxcar.boxes i on i.id = older.previous_box_id
    )
    select id
    from older
  )`;

// Locks nothing: the fork point is the head of the parent in this snapshot, and later entries of the parent do not belong to the fork. Of
// two tries under one key, the second violates the key's index and is made again; it then finds the fork of the first (`known`). When the
// turn that asks ends at the same moment, the sweep ends its fork (F5).
const MAKE = statement(`
  with /* forks.make */
  p as materialized (
    select b.*, coalesce($8::int, b.head_position) as at
    from boxcar.boxes b
    where b.id = $2 and b.project_id = $3 and b.kind = 'tape'
  ),
  known as materialized (
    select f.id
    from boxcar.forks f
    where f.id = $1
    union all
    select f.id
    from boxcar.forks f
    where f.turn_id = $5 and f.fork_key = $6 and f.parent_box_id in ${incarnationsOf('$2')}
  ),
  asker as materialized (
    select $5::uuid is null
      or exists (select from boxcar.turns t where t.id = $5 and t.project_id = $3 and t.ended_at is null) as is_there
  ),
  ${LINE},
  made as (
    insert into boxcar.boxes (
      id, project_id, kind, maker_agent_id, incarnation, head_position, last_anchor_position, anchor_count,
      view_position, view_anchor_position, parent_box_id, fork_position, line_boxes, line_ends, fork_status
    )
    select
      $1, p.project_id, 'tape', $4, 1, p.at, coalesce($9::int, p.last_anchor_position),
      coalesce($10::int, p.anchor_count, 1),
      case
        when p.view_position <= p.at and coalesce(p.view_anchor_position, p.last_anchor_position) <= p.at
          then p.view_position
        else ${viewStartAt('p.id', '$9::int')}
      end,
      case when p.view_anchor_position <= p.at then p.view_anchor_position end,
      p.id, p.at, line.boxes, line.ends, 'open'
    from p
    cross join line
    cross join asker
    where asker.is_there and not exists (select from known)
    returning id
  ),
  noted as (
    insert into boxcar.forks (
      id, project_id, box_id, parent_box_id, opened_by, turn_id, fork_key, status, merge_back, on_error
    )
    select made.id, $3, made.id, $2, $4, $5, $6, 'open', $7::json->>'merge_back' = 'true', $7::json->>'on_error'
    from made
  )
  select
    coalesce((select id from known limit 1), (select id from made)) as id,
    (select is_there from asker) as is_there`);

export type MadeFork =
  | { readonly outcome: 'made'; readonly id: BoxId }
  | { readonly outcome: 'not_found' | 'turn_ended' };

const isKeyTaken = (error: unknown): boolean =>
  error instanceof Error && 'constraint' in error && error.constraint === 'forks_key';

/** Makes a fork in one statement of constant cost. Under a key that its turn has already used, returns the fork from then. */
export async function makeFork(pool: pg.Pool, fork: NewFork): Promise<MadeFork> {
  const make = async (): Promise<MadeFork> => {
    const [row] = await runRetrying<{ id: BoxId | null; is_there: boolean }>(pool, MAKE, [
      fork.boxId,
      fork.parentBoxId,
      fork.projectId,
      fork.openedBy,
      fork.turnId,
      fork.key,
      JSON.stringify({ merge_back: fork.mergeBack, on_error: fork.onError }),
      fork.upto?.position ?? null,
      fork.upto?.lastAnchor ?? null,
      fork.upto?.anchors ?? null,
    ]);
    if (row?.id != null) return { outcome: 'made', id: row.id };
    return { outcome: row?.is_there === false ? 'turn_ended' : 'not_found' };
  };
  try {
    return await make();
  } catch (error) {
    if (!isKeyTaken(error)) throw error;
    return make();
  }
}

const FIND = statement(`
  select /* forks.find */ ${FORK}
  from boxcar.forks f
  where f.project_id = $2 and (f.id = $1 or f.box_id = $1)
  order by (f.id = $1) desc, (f.status = 'open') desc
  limit 1`);

/** Finds a fork by the box as which it was made, or by its present box. */
export async function findFork(
  db: Queryable,
  projectId: ProjectId,
  boxId: BoxId,
): Promise<ForkRow | undefined> {
  const [row] = await run<ForkRow & pg.QueryResultRow>(db, FIND, [boxId, projectId]);
  return row;
}

const FORKS_OF = statement(`
  select /* forks.forks_of */ ${FORK}
  from boxcar.forks f
  where f.parent_box_id in ${incarnationsOf('$1')}
    and f.project_id = $2
    and ($3::text is null or f.status = $3)
    and ($4::uuid is null or f.id = $4)
  order by f.created_at, f.id
  limit $5`);

/** The forks of a tape and of its earlier incarnations, the oldest first; or the fork with an id. */
export function listForks(
  db: Queryable,
  of: {
    readonly projectId: ProjectId;
    readonly boxId: BoxId;
    readonly status?: ForkStatus | null;
    readonly id?: BoxId;
    readonly limit: number;
  },
): Promise<readonly ForkRow[]> {
  const values = [of.boxId, of.projectId, of.status ?? null, of.id ?? null, of.limit];
  return run<ForkRow & pg.QueryResultRow>(db, FORKS_OF, values);
}

/**
 * SQL of the present box of a tape `p`: itself, or after a reset the box that has its name, its place as a fork (with any owner), or its
 * agent.
 */
export const currentOf = (p: string): string => `
  case
    when ${p}.archived_at is null then ${p}.id
    when ${p}.tape_name is not null then (
      select n.id
      from boxcar.boxes n
      where n.project_id = ${p}.project_id and n.tape_name = ${p}.tape_name and n.archived_at is null
    )
    else coalesce(
      (select g.box_id from boxcar.forks g where g.id in ${incarnationsOf(`${p}.id`)}),
      (select a.tape_box_id from boxcar.agents a where a.id = ${p}.owner_agent_id)
    )
  end`;

/**
 * SQL of the lasting name of a tape `b`, which resets do not change. A fork that was given to an agent does not count as that agent's own
 * tape.
 */
export const lastingNameOf = (b: string): string => `
  coalesce(
    ${b}.tape_name,
    (select g.id::text from boxcar.forks g where g.id in ${incarnationsOf(`${b}.id`)}),
    ${b}.owner_agent_id::text, ${b}.id::text
  )`;

const CURRENT = statement(
  `select /* forks.current */ ${currentOf('b')} as id from boxcar.boxes b where b.id = $1`,
);

/** The present box of a tape; undefined when an archived tape has no successor, or the tape is gone. */
export async function findCurrentTape(db: Queryable, boxId: BoxId): Promise<BoxId | undefined> {
  const [row] = await run<{ id: BoxId | null }>(db, CURRENT, [boxId]);
  return row?.id ?? undefined;
}
