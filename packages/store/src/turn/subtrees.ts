/**
 * Reads and locks the turns that end together: the turns below a given turn, whatever created them.
 *
 * B1  The run's row is locked first. A transaction that adds a turn below another turn also locks it (`writeSubmissions`). So the tree
 *     that is read after the lock is complete, and stays complete.
 * B2  A statement that begins after that lock reads the tree. The turns are read again under their own locks.
 * B3  A statement that begins after those locks finds the turns with other waiters: a join holds the lock of the turns it joins.
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
import { type Queryable, run, statement, type Tx } from '../db/index.js';
import type { CallRouteKind } from '../kinds/row-kinds.js';
import type { Row } from '../schema/index.js';
import { UNREAD_CAUSES } from '../tape/index.js';
import { ENDABLE, type EndableTurn } from './sweep-turns.js';

const LOCK_RUN = statement('select /* subtrees.lock_run */ id from boxcar.runs where id = $1 for update');
const CANCEL_RUN = statement(
  'update /* subtrees.cancel_run */ boxcar.runs set canceled_at = coalesce(canceled_at, now()) where id = $1',
);

const IS_CANCELED = statement(`
  with recursive /* subtrees.is_canceled */
  above as (
    select t.id, t.status, t.parent_turn_id, t.run_id
    from boxcar.turns t
    where t.id = $1
    union all
    select p.id, p.status, p.parent_turn_id, p.run_id
    from above a
    cross join lateral (select t.* from boxcar.turns t where t.id = a.parent_turn_id offset 0) p
  )
  select exists (select from above where status = 'canceled')
    or exists (
      select from boxcar.runs r
      where r.id = (select a.run_id from above a where a.id = $1) and r.canceled_at is not null
    ) as is_canceled`);

/** Whether a turn, a turn above it, or its run was canceled. A cancel holds the lock of the run, so the caller must hold it too. */
export async function isCanceled(tx: Tx, turnId: TurnId): Promise<boolean> {
  const [row] = await run<{ is_canceled: boolean }>(tx, IS_CANCELED, [turnId]);
  return row?.is_canceled === true;
}

const HAS_NOTICES = statement(`
  select /* subtrees.has_notices */
  from boxcar.turns t
  where t.ended_at is not null
    and (t.notifies or t.unseen_position is not null)
    and (t.run_id = $1 or exists (select from (${UNREAD_CAUSES}) c where c.run_id = $1))
  limit 1`);

/** Whether the end of a turn in this run can still start another turn. */
export async function hasDueNotices(tx: Tx, runId: RunId): Promise<boolean> {
  return (await run(tx, HAS_NOTICES, [runId])).length > 0;
}

// Includes turns below ended turns, since these can continue after that end. `above_id` is the next unfinished turn above.
const below = (roots: string): string => `
  with recursive /* subtrees.below */
  tree as (
    select r.id, r.ended_at, null::uuid as above_id
    from (${roots}) r
    union
    select c.id, c.ended_at, case when p.ended_at is null then p.id else p.above_id end
    from tree p
    cross join lateral (select t.id, t.ended_at from boxcar.turns t where t.parent_turn_id = p.id offset 0) c
  )
  select tree.id, tree.above_id, true as is_below
  from tree
  where tree.ended_at is null`;

// The turns that wait for the roots are locked too.
const TREE = statement(`
  ${below('select t.id, t.ended_at from boxcar.turns t where t.id = any ($1::uuid[]) and ($2 or t.ended_at is null)')}
  union all
  select t.parent_turn_id, null, false
  from boxcar.turns t
  where t.id = any ($1::uuid[]) and t.is_awaited and t.ended_at is null`);

const RUN_TURNS = statement(`
  select /* subtrees.run_turns */ t.id, null as above_id, true as is_below
  from boxcar.turns t
  where t.run_id = $1 and t.ended_at is null`);

const LOCK_TURNS = statement(`
  select /* subtrees.lock_turns */ ${ENDABLE}, t.status
  from boxcar.turns t
  where t.id = any ($1::uuid[])
  order by t.id
  for update of t`);

type TreeRow = Row<'turns', 'id', { above_id: 'parent_turn_id' }> & { readonly is_below: boolean };

export interface OpenTurn extends EndableTurn {
  readonly status: TurnStatus;
}

/**
 * Locks the run, then its unfinished turns (`rootTurnIds` and all turns below them) and the turns that wait for the roots. A run may
 * have several roots.
 *
 * @param options.rootTurnIds - Absent: every unfinished turn of the run. The run is marked as canceled, so no turn can start in it
 *   anymore.
 * @param options.alsoLock - Turns that the transaction will lock later anyway.
 * @param options.areRootsOpen - True: turns below a root that has already ended stay as they are.
 * @param options.sparesWanted - Turns below the roots continue if a turn that does not end here waits for them (B3).
 * @returns The unfinished turns of the subtrees, by id.
 */
export async function lockSubtrees(
  tx: Tx,
  runId: RunId,
  options: {
    readonly rootTurnIds?: readonly TurnId[] | undefined;
    readonly alsoLock?: readonly TurnId[];
    readonly areRootsOpen?: boolean;
    readonly sparesWanted?: boolean;
  },
): Promise<OpenTurn[]> {
  await run(tx, LOCK_RUN, [runId]);
  if (options.rootTurnIds === undefined) await run(tx, CANCEL_RUN, [runId]);
  const tree = await (options.rootTurnIds === undefined
    ? run<TreeRow>(tx, RUN_TURNS, [runId])
    : run<TreeRow>(tx, TREE, [options.rootTurnIds, options.areRootsOpen !== true]));
  const under = tree.filter((row) => row.is_below);
  if (under.length === 0) return [];
  const ids = [...new Set([...tree.map((row) => row.id), ...(options.alsoLock ?? [])])];
  const turns = await run<OpenTurn>(tx, LOCK_TURNS, [ids]);
  const ending = options.sparesWanted === true ? await spareWanted(tx, under, options.rootTurnIds) : under;
  const endingIds = new Set(ending.map((row) => row.id));
  return turns.filter((turn) => endingIds.has(turn.turn_id) && !isFinal(turn.status));
}

// Batches made from outside, or for a turn that has not ended.
const WAITERS = statement(`
  select /* subtrees.waiters */ t.id as turn_id, b.turn_id as waiter_id
  from boxcar.turns t
  cross join lateral unnest(t.batch_ids) as u(batch_id)
  cross join lateral (
    select x.turn_id
    from boxcar.batches x
    where x.id = u.batch_id and x.status = 'running' and x.closing is null
    offset 0
  ) b
  where t.id = any ($1::uuid[])
    and (b.turn_id is null or exists (select from boxcar.turns w where w.id = b.turn_id and w.ended_at is null))`);

/**
 * B3. Returns the locked turns that end together with `ends`. The turns in `ends` always end. A member of a batch continues, with every
 * turn below it, when the batch's waiting turn does not end here.
 */
async function spareWanted(
  tx: Tx,
  turns: readonly TreeRow[],
  ends: readonly TurnId[] = [],
): Promise<readonly TreeRow[]> {
  const waiters = new Map<TurnId, (TurnId | null)[]>();
  for (const { turn_id: id, waiter_id: waiterId } of await run<{
    turn_id: TurnId;
    waiter_id: TurnId | null;
  }>(tx, WAITERS, [turns.map((row) => row.id)]))
    waiters.set(id, [...(waiters.get(id) ?? []), waiterId]);
  const certain = new Set(ends);
  const isLeft = (left: ReadonlySet<TurnId>, id: TurnId | null): boolean => id === null || !left.has(id);
  let ending = turns;
  for (;;) {
    const left = new Set([...certain, ...ending.map((row) => row.id)]);
    const next = ending.filter(
      ({ id, above_id: aboveId }) =>
        certain.has(id) ||
        ((aboveId === null || left.has(aboveId)) &&
          !(waiters.get(id) ?? []).some((waiterId) => isLeft(left, waiterId))),
    );
    if (next.length === ending.length) return next;
    ending = next;
  }
}

// The turns that the open calls of a turn await, with all turns below them. The commit of the end closes the batches that such calls
// await (`closeBatchesOf`).
const AWAITED = statement(
  below(`
    select t.id, t.ended_at
    from boxcar.tool_calls k
    cross join lateral (select c.* from boxcar.turns c where c.parent_tool_call_id = k.id and c.is_awaited offset 0) t
    where k.turn_id = $1 and k.status = 'pending' and t.ended_at is null`),
);

/** A turn that is about to end, as it was read without a lock. */
export type SeenTurn = Pick<
  EndableTurn,
  'turn_id' | 'run_id' | 'epoch' | 'holder_id' | 'is_awaited' | 'parent_turn_id'
>;

/**
 * Locks the run, then the turn that is about to end, the unfinished turns that only this turn waits for with all turns below them, and
 * the turn that waits for it. Awaited turns with other waiters continue (B3).
 *
 * @returns The other turns that end with this turn. Undefined when the turn has ended or changed its holder since it was read: then the
 *   caller has nothing to do.
 */
export async function lockAwaited(tx: Tx, seen: SeenTurn): Promise<readonly OpenTurn[] | undefined> {
  await run(tx, LOCK_RUN, [seen.run_id]);
  const awaited = await run<TreeRow>(tx, AWAITED, [seen.turn_id]);
  const parent = seen.is_awaited && seen.parent_turn_id !== null ? [seen.parent_turn_id] : [];
  const ids = [seen.turn_id, ...awaited.map((row) => row.id), ...parent];
  const turns = await run<OpenTurn>(tx, LOCK_TURNS, [ids]);
  const turn = turns.find(({ turn_id: id }) => id === seen.turn_id);
  if (turn === undefined || isFinal(turn.status)) return undefined;
  if (turn.epoch !== seen.epoch || turn.holder_id !== seen.holder_id) return undefined;
  if (awaited.length === 0) return [];
  const ending = new Set((await spareWanted(tx, awaited, [seen.turn_id])).map((row) => row.id));
  return turns.filter(({ turn_id: id, status }) => ending.has(id) && !isFinal(status));
}

const OPEN_CALLS = statement(`
  select /* subtrees.open_calls */
    k.id, k.turn_id, k.project_id, k.name, k.route, k.target,
    exists (
      select from boxcar.approvals a
      where a.turn_id = k.turn_id and a.tool_call_id = k.id and a.status = 'pending'
    ) as is_asked
  from boxcar.tool_calls k
  where k.turn_id = any ($1::uuid[]) and k.status = 'pending'
  order by k.id`);

export interface OpenCallRow extends pg.QueryResultRow {
  readonly id: ToolCallId;
  readonly turn_id: TurnId;
  readonly project_id: ProjectId;
  readonly name: string;
  readonly route: CallRouteKind;
  /** The target whose queue it was sent to; null unless the route is `queue`. */
  readonly target: string | null;
  /** True when the call waits for an approval. */
  readonly is_asked: boolean;
}

/** The unanswered calls of turns that this transaction has ended. */
export function loadOpenCalls(tx: Tx, turnIds: readonly TurnId[]): Promise<OpenCallRow[]> {
  return run<OpenCallRow>(tx, OPEN_CALLS, [turnIds]);
}

/**
 * Turns that ended while a worker held them are announced here, as comma-separated ids. A notice is a hint: heartbeats find these turns
 * too.
 */
export const CANCELED_CHANNEL = 'boxcar_canceled';
/** A NOTIFY payload must stay below 8,000 bytes, or it aborts its transaction. */
const IDS_PER_NOTICE = 200;

const NOTIFY = statement(`
  select /* subtrees.notify */ pg_notify('${CANCELED_CHANNEL}', string_agg(u.id, ','))
  from unnest($1::text[]) with ordinality as u(id, n)
  group by (u.n - 1) / ${IDS_PER_NOTICE}`);

/** Tells the workers, once this transaction has committed, that they no longer hold these turns. */
export async function notifyCanceled(tx: Tx, turnIds: readonly TurnId[]): Promise<void> {
  if (turnIds.length > 0) await run(tx, NOTIFY, [turnIds]);
}

/** A turn, or the first root of a run, with the agents above it. */
export interface SubtreeRoot {
  readonly turnId: TurnId;
  readonly runId: RunId;
  /** The agents of the turns that asked for this turn, directly or through other turns. */
  readonly ancestorAgentIds: readonly AgentId[];
}

// No turn asked for a turn that the end of its parent started, so no agent above it has a right to it.
const FIND_ROOT = statement(`
  with recursive /* subtrees.find_root */
  root as (
    select t.id, t.run_id, t.parent_turn_id, t.is_woken
    from boxcar.turns t
    where t.project_id = $1
      and t.id = coalesce($2, (select r.root_turn_id from boxcar.runs r where r.id = $3 and r.project_id = $1))
  ),
  above as (
    select p.id, p.agent_id, p.parent_turn_id, p.is_woken
    from root r
    cross join lateral (select t.* from boxcar.turns t where t.id = r.parent_turn_id offset 0) p
    where r.is_woken is not true
    union all
    select p.id, p.agent_id, p.parent_turn_id, p.is_woken
    from above a
    cross join lateral (select t.* from boxcar.turns t where t.id = a.parent_turn_id offset 0) p
    where a.is_woken is not true
  )
  select r.id, r.run_id, array(select a.agent_id from above a) as ancestors
  from root r`);

/** Finds the turn that a cancel names, by the id of the turn or of its run. Undefined when the project has no such turn. */
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
