/**
 * What an end of many turns at once reads and locks: the turns below some turn, whoever made them.
 *
 * B1  The run's row is locked first. Whoever files a turn under a turn locks it too (`writeSubmissions`), so the tree
 *     that is read after the lock is whole, and stays so.
 * B2  The tree is read by a statement begun after that lock, its turns again under their own locks.
 */
import {
  type AgentId,
  isFinal,
  type ProjectId,
  type RunId,
  type ToolCallId,
  type TurnId,
  type TurnStatus,
} from '@boxcar/kernel';
import type pg from 'pg';
import { type Queryable, run, statement, type Tx } from './db.js';
import { ENDABLE, type EndableTurn } from './sweep.js';
import type { CallRouteKind } from './tool-calls.js';

const LOCK_RUN = statement('select id from boxcar.runs where id = $1 for update');

// Through ended turns as well: what a turn has left behind goes on without it. Whom the roots answer is locked with them.
const TREE = statement(`
  with recursive tree as (
    select t.id from boxcar.turns t where t.id = any ($1::uuid[]) and ($2 or t.ended_at is null)
    union
    select c.id from tree p cross join lateral (select t.id from boxcar.turns t where t.parent_turn_id = p.id offset 0) c
  )
  select t.id, true as is_below from tree cross join lateral (
    select x.id from boxcar.turns x where x.id = tree.id and x.ended_at is null offset 0) t
  union all
  select t.parent_turn_id, false from boxcar.turns t where t.id = any ($1::uuid[]) and t.is_awaited and t.ended_at is null`);

const LOCK_TURNS = statement(
  `select ${ENDABLE}, t.status from boxcar.turns t where t.id = any ($1::uuid[]) order by t.id for update of t`,
);

export interface OpenTurn extends EndableTurn {
  readonly status: TurnStatus;
}

/**
 * Locks the run, then its unfinished turns below and including `rootTurnIds`, with the turns that wait for the roots.
 *
 * @param options.alsoLock - Turns that the transaction will lock later anyway.
 * @param options.areRootsOpen - What a root that has ended left behind stays as it is.
 * @returns The unfinished turns of the subtrees, by id.
 */
export async function lockSubtrees(
  tx: Tx,
  runId: RunId,
  options: {
    readonly rootTurnIds: readonly TurnId[];
    readonly alsoLock?: readonly TurnId[];
    readonly areRootsOpen?: boolean;
  },
): Promise<OpenTurn[]> {
  await run(tx, LOCK_RUN, [runId]);
  const tree = await run<{ id: TurnId; is_below: boolean }>(tx, TREE, [
    options.rootTurnIds,
    options.areRootsOpen !== true,
  ]);
  const below = new Set(tree.filter((row) => row.is_below).map((row) => row.id));
  if (below.size === 0) return [];
  const ids = [...new Set([...tree.map((row) => row.id), ...(options.alsoLock ?? [])])];
  const turns = await run<OpenTurn>(tx, LOCK_TURNS, [ids]);
  return turns.filter((turn) => below.has(turn.turn_id) && !isFinal(turn.status));
}

const OPEN_CALLS = statement(`
  select k.id, k.turn_id, k.project_id, k.name, k.route from boxcar.tool_calls k where k.turn_id = any ($1::uuid[]) and k.status = 'pending' order by k.id`);

export interface OpenCallRow extends pg.QueryResultRow {
  readonly id: ToolCallId;
  readonly turn_id: TurnId;
  readonly project_id: ProjectId;
  readonly name: string;
  readonly route: CallRouteKind;
}

/** The calls without a result of turns that have been ended in this transaction. */
export function loadOpenCalls(tx: Tx, turnIds: readonly TurnId[]): Promise<OpenCallRow[]> {
  return run<OpenCallRow>(tx, OPEN_CALLS, [turnIds]);
}

/** Turns that were ended in their holder's hands are announced here, as comma-separated ids. A hint: heartbeats find out too. */
export const CANCELED_CHANNEL = 'boxcar_canceled';
/** A NOTIFY payload must stay below 8,000 bytes, or it aborts its transaction. */
const IDS_PER_NOTICE = 200;

const NOTIFY = statement(`
  select pg_notify('${CANCELED_CHANNEL}', string_agg(u.id, ','))
  from unnest($1::text[]) with ordinality as u(id, n) group by (u.n - 1) / ${IDS_PER_NOTICE}`);

/** Tells the workers, once this transaction has committed, that these turns are no longer theirs. */
export async function notifyCanceled(tx: Tx, turnIds: readonly TurnId[]): Promise<void> {
  if (turnIds.length > 0) await run(tx, NOTIFY, [turnIds]);
}

/** A turn, or the root turn of a run, with all it stands below. */
export interface SubtreeRoot {
  readonly turnId: TurnId;
  readonly runId: RunId;
  /** The agents of the turns above it. */
  readonly ancestorAgentIds: readonly AgentId[];
}

const FIND_ROOT = statement(`
  with recursive root as (
    select t.id, t.run_id, t.parent_turn_id from boxcar.turns t
    where t.project_id = $1 and t.id = coalesce($2, (select r.root_turn_id from boxcar.runs r where r.id = $3 and r.project_id = $1))
  ),
  above as (
    select p.id, p.agent_id, p.parent_turn_id from root r cross join lateral (select t.* from boxcar.turns t where t.id = r.parent_turn_id offset 0) p
    union all
    select p.id, p.agent_id, p.parent_turn_id from above a cross join lateral (select t.* from boxcar.turns t where t.id = a.parent_turn_id offset 0) p
  )
  select r.id, r.run_id, array(select a.agent_id from above a) as ancestors from root r`);

/** Finds the turn that a cancel names, by its id or its run's; undefined = this project has none. */
export async function findSubtreeRoot(
  db: Queryable,
  projectId: ProjectId,
  of: { readonly turnId: TurnId } | { readonly runId: RunId },
): Promise<SubtreeRoot | undefined> {
  const [row] = await run<{ id: TurnId; run_id: RunId; ancestors: AgentId[] }>(db, FIND_ROOT, [
    projectId,
    'turnId' in of ? of.turnId : null,
    'runId' in of ? of.runId : null,
  ]);
  return row && { turnId: row.id, runId: row.run_id, ancestorAgentIds: row.ancestors };
}
