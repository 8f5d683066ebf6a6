/** The ends of forks: merged, discarded, left. Rules: forks.ts, F2 to F5. */
import type { AgentId, BoxId, ProjectId, TurnId } from '@boxcar/kernel';
import type pg from 'pg';
import {
  type LockLimit,
  run,
  runRetrying,
  statement,
  type Tx,
  transaction,
  transactWithin,
} from '../db/index.js';
import { grantOf, notSetAside, OWNS } from '../rows/index.js';
import type { Row } from '../schema/index.js';
import { OPEN_STEP } from './appends.js';
import { FORK, type ForkReceipt, type ForkRow } from './forks.js';
import { findActiveTurn } from './reset.js';

const LOCK_OWNER = statement(`
  with /* fork-ends.lock_owner */
  tape as materialized (
    select b.owner_agent_id
    from boxcar.boxes b
    where b.id = $1
  ),
  lk as materialized (
    select a.id
    from boxcar.agents a
    where a.id = (select owner_agent_id from tape) and a.tape_box_id = $1
    for no key update
  )
  select tape.owner_agent_id, (select count(*) from lk) as locked
  from tape`);
const LOCK_TAPES = statement(`
  select /* fork-ends.lock_tapes */
    b.id, b.owner_agent_id, b.archived_at is not null as is_archived,
    coalesce(b.fork_status <> 'open', false)
    or exists (select from boxcar.forks f where f.box_id = b.id and f.status = 'discarded') as is_closed
  from boxcar.boxes b
  where b.id = any ($1::uuid[])
  order by b.id
  for no key update`);
const LOCK_FORK = statement(`
  select /* fork-ends.lock_fork */
    ${FORK},
    f.turn_id is not null
    and not exists (select from boxcar.turns t where t.id = f.turn_id and t.ended_at is null) as is_over
  from boxcar.forks f
  where f.id = $1
  for update`);

// Must begin after the locks: rights that the actor has lost meanwhile do not count.
const RIGHTS = statement(`
  select /* fork-ends.rights */ ${OWNS} as is_own, ${grantOf('append')} is not null as may_append
  from boxcar.boxes b
  join boxcar.projects p on p.id = b.project_id
  where b.id = $1 and b.project_id = (select f.project_id from boxcar.forks f where f.id = $2)`);

// The text of a line belongs to its entry and is erased with its card. An erasure in progress is waited for and seen; a later erasure
// waits, and finds the merged entries.
const LOCK_LINES = statement(`
  select /* fork-ends.lock_lines */ c.id
  from boxcar.cards c
  where c.id in (
    select e.card_id
    from boxcar.boxes f
    join boxcar.tape_entries e on e.box_id = f.id and e.position > f.fork_position and e.position <= f.head_position
    where f.id = $1 and e.meta ? 'imported'
  )
  order by c.id
  for share`);

interface LockedFork extends ForkRow, pg.QueryResultRow {
  /** The turn for which the fork was opened has ended. */
  is_over: boolean;
}

type LockedTape = Row<'boxes', 'id' | 'owner_agent_id'> & {
  readonly is_archived: boolean;
  readonly is_closed: boolean;
};

const BEGINNINGS = "('session/start', 'fork/start')";
const RECEIPT = `
  jsonb_build_object(
    'status', 'merged', 'fork', $2::uuid::text, 'parent', x.parent, 'merged', x.n, 'first', x.first, 'last', x.last,
    'event', x.event, 'replaced', x.replaced
  )`;

/** Ends the fork `$2` and its box, and records the end on the parent, in CTEs that follow `x(parent, n, first, last, event, replaced)`. */
const END = `
  told as (
    insert into boxcar.tape_entries (box_id, position, kind, payload, author_id, dedup_key)
    select
      x.parent, x.event, 'event',
      json_build_object(
        'name', 'fork/merge',
        'data', json_build_object(
          'fork', $2::uuid::text, 'entries', x.n, 'first', x.first, 'last', x.last, 'replaced', x.replaced
        )
      ),
      $3, 'fork/merge:' || $2::uuid::text
    from x
  ),
  ended as (
    update boxcar.forks f
    set status = 'merged', ended_at = now(), receipt = ${RECEIPT}
    from x
    where f.id = $2::uuid
    returning f.receipt
  )`;

// The caller has locked the owner of the parent, both tapes by id and the fork (`lockFork`), and then the cards of imported lines
// (`LOCK_LINES`). So no turn of the parent is under way, no entry is appended to either tape, and a second merge waits and gets the
// receipt.
const MERGE = statement(`
  with /* fork-ends.merge */
  tape as materialized (select b.* from boxcar.boxes b where b.id = $1),
  d as materialized (
    select row_number() over (order by e.position)::int as n, e.*
    from boxcar.boxes f
    join boxcar.tape_entries e on e.box_id = f.id and e.position > f.fork_position and e.position <= f.head_position
    where f.id = $2::uuid
      and not (e.kind = 'anchor' and e.anchor_name in ${BEGINNINGS})
      and not (e.kind = 'event' and e.payload->>'name' = 'handoff' and e.payload->'data'->>'name' in ${BEGINNINGS})
  ),
  s as materialized (
    select
      count(*)::int as n,
      max(d.n) filter (where d.kind = 'anchor') as anchor,
      (count(*) filter (where d.kind = 'anchor'))::int as anchors
    from d
  ),
  ${OPEN_STEP}
  moved as (
    update boxcar.boxes b
    set
      head_position = b.head_position + s.n + 1,
      last_anchor_position = coalesce(b.head_position + s.anchor, b.last_anchor_position),
      anchor_count = coalesce(b.anchor_count, 1) + s.anchors,
      view_anchor_position = case when s.anchor is null then b.view_anchor_position end,
      view_position = case
        when s.anchor is null then b.view_position
        else least((select first from open_step), b.head_position + s.anchor)
      end
    from s
    where b.id = $1
    returning b.id, b.head_position, b.head_position - s.n - 1 as base
  ),
  entries as (
    insert into boxcar.tape_entries (
      box_id, position, kind, card_id, tokens, payload, anchor_name, turn_id, step, author_id, dedup_key, meta,
      created_at
    )
    select
      m.id, m.base + d.n, d.kind, d.card_id, d.tokens, d.payload, d.anchor_name, d.turn_id, d.step, d.author_id,
      'fork:' || d.box_id || ':' || d.position,
      coalesce(d.meta, '{}')
        || jsonb_build_object('merged_from', jsonb_build_object('tape', d.box_id, 'entry', d.position)),
      d.created_at
    from moved m
    cross join d
  ),
  x as materialized (
    select
      m.id as parent, s.n,
      case when s.n > 0 then m.base + 1 end as first,
      case when s.n > 0 then m.base + s.n end as last,
      m.head_position as event, false as replaced
    from moved m
    cross join s
  ),
  closed as (
    update boxcar.boxes b
    set fork_status = 'merged'
    where b.id = $2::uuid and b.id <> $1
  ),
  ${END}
  select receipt
  from ended`);

// Must run first, because only one incarnation of a name is not archived. The seals of a box check each row separately.
const ARCHIVE = statement(
  'update /* fork-ends.archive */ boxcar.boxes set archived_at = now() where id = $1',
);
// Under the same locks as MERGE. The parent was archived before, because two present tapes cannot have one name.
const REPLACE = statement(`
  with /* fork-ends.replace */
  taken as (
    update boxcar.boxes n
    set tape_name = o.tape_name,
      incarnation = o.incarnation + 1,
      owner_agent_id = o.owner_agent_id,
      maker_agent_id = o.maker_agent_id,
      previous_box_id = o.id,
      session_graph = o.session_graph,
      head_position = n.head_position + 1
    from boxcar.boxes o
    where n.id = $4 and o.id = $1
    returning n.id, n.head_position, n.owner_agent_id
  ),
  moved as (
    update boxcar.agents a
    set tape_box_id = taken.id
    from taken
    where a.id = taken.owner_agent_id and a.tape_box_id = $1
  ),
  outer_fork as (
    update boxcar.forks f
    set box_id = taken.id
    from taken
    where f.box_id = $1 and f.status = 'open'
  ),
  x as materialized (
    select taken.id as parent, taken.head_position - 1 as n, 1 as first, taken.head_position - 1 as last,
      taken.head_position as event, true as replaced
    from taken
  ),
  closed as (
    update boxcar.boxes b
    set fork_status = 'merged'
    where b.id = $2::uuid
  ),
  ${END}
  select receipt
  from ended`);

/** The outcome of the end of a fork. */
export type ForkEnd =
  | { readonly outcome: 'merged' | 'discarded'; readonly receipt: ForkReceipt }
  | { readonly outcome: 'not_found' };

export type MergeResult =
  | ForkEnd
  | { readonly outcome: 'busy'; readonly turnId: TurnId }
  /** The author may not append to the parent; for a fork that was reset, the author may not reset the parent. */
  | { readonly outcome: 'forbidden'; readonly isReset: boolean }
  /** The parent is itself a fork and has ended. */
  | { readonly outcome: 'parent_closed' }
  /** Between the look and the lock, the parent was reset, or another agent has received it as its tape. */
  | { readonly outcome: 'moved' };

/** Locks in the usual order: agent, tapes by id, and then the fork. */
async function lockFork(
  tx: Tx,
  { id, boxId }: Pick<ForkRow, 'id' | 'boxId'>,
  parent: BoxId,
): Promise<{
  readonly fork: LockedFork | undefined;
  readonly tape: LockedTape | undefined;
  /** The tape was given to another agent while this transaction waited for it, and that agent is not locked. */
  readonly isAnothers: boolean;
}> {
  const [owner] = await run<{ owner_agent_id: AgentId | null }>(tx, LOCK_OWNER, [parent]);
  const tapes = await run<LockedTape>(tx, LOCK_TAPES, [[id, boxId, parent]]);
  const [fork] = await run<LockedFork>(tx, LOCK_FORK, [id]);
  const tape = tapes.find(({ id: tapeId }) => tapeId === parent);
  return { fork, tape, isAnothers: tape?.owner_agent_id !== owner?.owner_agent_id };
}

const endOf = ({ receipt }: ForkRow): ForkEnd | undefined =>
  receipt === null ? undefined : { outcome: receipt.status, receipt };

async function mergeWithin(tx: Tx, seen: ForkRow, options: MergeOptions): Promise<MergeResult> {
  const { parentBoxId: parent, authorId } = options;
  const { fork, tape, isAnothers } = await lockFork(tx, seen, parent);
  if (fork === undefined) return { outcome: 'not_found' };
  const end = endOf(fork);
  if (end !== undefined) return end;
  if (fork.is_over) return discardWithin(tx, fork);
  if (tape?.is_closed === true) return { outcome: 'parent_closed' };
  if (tape?.is_archived !== false || isAnothers || fork.boxId !== seen.boxId) return { outcome: 'moved' };
  const isReset = fork.boxId !== fork.id;
  const [rights] = await run<{ is_own: boolean; may_append: boolean }>(tx, RIGHTS, [
    parent,
    fork.id,
    authorId,
  ]);
  if (rights?.is_own !== true && (isReset || rights?.may_append !== true))
    return { outcome: 'forbidden', isReset };
  const busy = await findActiveTurn(tx, parent);
  if (busy !== null && (isReset || busy !== fork.turnId)) return { outcome: 'busy', turnId: busy };
  if (isReset) await run(tx, ARCHIVE, [parent]);
  else await run(tx, LOCK_LINES, [fork.id]);
  const values = [parent, fork.id, authorId, ...(isReset ? [fork.boxId] : [])];
  const [row] = await run<{ receipt: ForkReceipt }>(tx, isReset ? REPLACE : MERGE, values);
  return row === undefined ? { outcome: 'not_found' } : { outcome: 'merged', receipt: row.receipt };
}

export interface MergeOptions {
  /** The tape that receives the merge: the present incarnation of the parent. */
  readonly parentBoxId: BoxId;
  readonly authorId: AgentId;
}

/** Merges a fork, once: later calls get the first receipt. */
export const mergeFork = (pool: pg.Pool, fork: ForkRow, options: MergeOptions): Promise<MergeResult> =>
  transaction(pool, (tx) => mergeWithin(tx, fork, options));

// The tape of a fork that was reset then has no owner; the first box of the fork is itself marked as closed.
const DISCARD = statement(`
  with /* fork-ends.discard */
  closed as (
    update boxcar.boxes b
    set fork_status = 'discarded'
    where b.id = $1
  ),
  archived as (
    update boxcar.boxes b
    set archived_at = now()
    where b.id = $2 and b.id <> $1
  ),
  x as (select f.parent_box_id as parent from boxcar.forks f where f.id = $1)
  update boxcar.forks f
  set
    status = 'discarded',
    ended_at = now(),
    receipt = jsonb_build_object(
      'status', 'discarded', 'fork', f.id, 'parent', x.parent, 'merged', 0, 'first', null, 'last', null,
      'event', null, 'replaced', false
    )
  from x
  where f.id = $1
  returning f.receipt`);

async function discardWithin(tx: Tx, fork: ForkRow): Promise<ForkEnd> {
  const [row] = await run<{ receipt: ForkReceipt }>(tx, DISCARD, [fork.id, fork.boxId]);
  return row === undefined ? { outcome: 'not_found' } : { outcome: 'discarded', receipt: row.receipt };
}

/** Discards a fork: the entries that it read stay, and its own entries are read only on request. A fork that has ended keeps its state. */
export function discardFork(pool: pg.Pool, seen: ForkRow, limit: LockLimit = {}): Promise<ForkEnd> {
  return transactWithin(pool, limit, async (tx): Promise<ForkEnd> => {
    await run(tx, LOCK_TAPES, [[seen.id, seen.boxId]]);
    const [fork] = await run<LockedFork>(tx, LOCK_FORK, [seen.id]);
    if (fork === undefined) return { outcome: 'not_found' };
    return endOf(fork) ?? discardWithin(tx, fork);
  });
}

/** A search of the sweep: forks whose turn has ended without ending them. */
export const leftForks = (now: string): string => `
  select /* fork-ends.line */ k.id
  from boxcar.forks k
  where k.status = 'open'
    and k.turn_id is not null
    and not exists (select from boxcar.turns t where t.id = k.turn_id and t.ended_at is null)
    and ${notSetAside('left_forks', 'k.id', now)}`;

const FIND_LEFT = statement(`
  select /* fork-ends.find_left */ ${FORK}, f.project_id
  from boxcar.forks f
  where f.id in (${leftForks('coalesce($1::timestamptz, now())')})
  order by f.id
  limit $2`);

export function findLeftForks(
  pool: pg.Pool,
  options: { readonly now?: Date; readonly limit: number },
): Promise<readonly (ForkRow & { readonly project_id: ProjectId })[]> {
  return runRetrying<ForkRow & { project_id: ProjectId } & pg.QueryResultRow>(pool, FIND_LEFT, [
    options.now ?? null,
    options.limit,
  ]);
}
