/**
 * Forks: tapes that begin with what another one says up to a position, and that are merged into it or discarded.
 *
 * F1  A fork is a row that names the tapes its line runs through: making one copies no entry, however many there are.
 * F2  A merge is one transaction: the fork's own entries as pointers to the same cards, a receipt on the parent and on the fork. Whoever
 *     comes second gets the first one's receipt.
 * F3  A merge goes to what the parent is now: after a reset of it, to its next incarnation. While a turn of the parent's agent is under way or queued
 *     it waits (`busy`); the turn that the fork was opened for does not stand in its own way, unless the fork was reset.
 * F4  A fork that was reset has a tape of its own since; at the merge that becomes the parent's next incarnation.
 * F5  A fork opened for a turn ends with it: its next attempt finds the fork under its key, its end discards it.
 */
import type { AgentId, BoxId, ProjectId, TurnId } from '@boxcar/kernel';
import type pg from 'pg';
import {
  type LockLimit,
  type Queryable,
  run,
  runRetrying,
  statement,
  type Tx,
  transaction,
  transactWithin,
} from '../db/index.js';
import { grantOf, notSetAside, OWNS } from '../rows/index.js';
import { partsOf, viewStartAt } from '../visible/index.js';
import { findActiveTurn } from './reset.js';
import { OPEN_STEP } from './tapes.js';

export type ForkStatus = 'open' | 'merged' | 'discarded';

/** What the end of a fork came to. */
export interface ForkReceipt {
  readonly status: 'merged' | 'discarded';
  /** The box the fork was made as. */
  readonly fork: BoxId;
  /** The tape it was merged into, as it was then; of a discarded one that it was forked from. */
  readonly parent: BoxId;
  /** Entries that were merged. */
  readonly merged: number;
  /** Their positions on the parent; null when there is none. */
  readonly first: number | null;
  readonly last: number | null;
  /** Where the receipt stands on the parent; null for a discarded fork, which leaves nothing there. */
  readonly event: number | null;
  /** The fork was reset: it took the parent's place. */
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

const FORK = `f.id, f.box_id as "boxId", f.parent_box_id as "parentBoxId", f.opened_by as "openedBy", f.turn_id as "turnId", f.fork_key as "key",
  f.status, f.merge_back as "mergeBack", f.on_error as "onError", f.receipt, f.created_at as "createdAt"`;

/** The line of a fork of `p` at `p.at`: the parts that lie before it. */
export const LINE = `line as (
    select array_agg(l.box_id order by l.n) as boxes, array_agg(least(l.upto, p.at) order by l.n) as ends
    from p cross join lateral ${partsOf('p')} l where l.behind < p.at
  )`;

export interface NewFork {
  /** Of the fork's box: the same again makes no second one. */
  readonly boxId: BoxId;
  readonly projectId: ProjectId;
  readonly parentBoxId: BoxId;
  readonly openedBy: AgentId;
  readonly turnId: TurnId | null;
  readonly key: string;
  readonly mergeBack: boolean;
  readonly onError: 'merge' | 'discard';
  /** Up to where, with its last anchor and how many there are, for who may not see all; null: up to the head. */
  readonly upto: { readonly position: number; readonly lastAnchor: number; readonly anchors: number } | null;
}

/** SQL of the ids of a tape and of those that its resets have archived, each found by its key. */
const incarnationsOf = (id: string): string => `(
    with recursive older as (
      select i.id, i.previous_box_id from boxcar.boxes i where i.id = ${id}
      union all
      select i.id, i.previous_box_id from older join boxcar.boxes i on i.id = older.previous_box_id
    )
    select id from older)`;

const MAKE = statement(`
  with p as materialized (
    select b.*, coalesce($8::int, b.head_position) as at from boxcar.boxes b where b.id = $2 and b.project_id = $3 and b.kind = 'tape'
  ),
  known as materialized (
    select f.id from boxcar.forks f where f.id = $1
    union all
    select f.id from boxcar.forks f where f.turn_id = $5 and f.fork_key = $6 and f.parent_box_id in ${incarnationsOf('$2')}
  ),
  asker as materialized (select $5::uuid is null or exists (select from boxcar.turns t where t.id = $5 and t.project_id = $3 and t.ended_at is null) as is_there),
  ${LINE},
  made as (
    insert into boxcar.boxes (id, project_id, kind, maker_agent_id, incarnation, head_position, last_anchor_position, anchor_count, view_position, view_anchor_position,
      parent_box_id, fork_position, line_boxes, line_ends, fork_status)
    select $1, p.project_id, 'tape', $4, 1, p.at, coalesce($9::int, p.last_anchor_position), coalesce($10::int, p.anchor_count, 1),
      case when p.view_position <= p.at and coalesce(p.view_anchor_position, p.last_anchor_position) <= p.at then p.view_position else ${viewStartAt('p.id', '$9::int')} end,
      case when p.view_anchor_position <= p.at then p.view_anchor_position end, p.id, p.at, line.boxes, line.ends, 'open'
    from p cross join line cross join asker where asker.is_there and not exists (select from known)
    returning id
  ),
  noted as (
    insert into boxcar.forks (id, project_id, box_id, parent_box_id, opened_by, turn_id, fork_key, status, merge_back, on_error)
    select made.id, $3, made.id, $2, $4, $5, $6, 'open', $7::json->>'merge_back' = 'true', $7::json->>'on_error' from made
  )
  select coalesce((select id from known limit 1), (select id from made)) as id, (select is_there from asker) as is_there`);

export type MadeFork =
  | { readonly outcome: 'made'; readonly id: BoxId }
  | { readonly outcome: 'not_found' | 'turn_ended' };

const isKeyTaken = (error: unknown): boolean =>
  error instanceof Error && 'constraint' in error && error.constraint === 'forks_key';

/** Makes a fork in one statement of constant cost; under a key that its turn has used it is the fork from then. */
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

const FIND = statement(
  `select ${FORK} from boxcar.forks f where f.project_id = $2 and (f.id = $1 or f.box_id = $1) order by (f.id = $1) desc, (f.status = 'open') desc limit 1`,
);

/** A fork by the box it was made as, or is now. */
export async function findFork(
  db: Queryable,
  projectId: ProjectId,
  boxId: BoxId,
): Promise<ForkRow | undefined> {
  const [row] = await run<ForkRow & pg.QueryResultRow>(db, FIND, [boxId, projectId]);
  return row;
}

const FORKS_OF = statement(`
  select ${FORK} from boxcar.forks f
  where f.parent_box_id in ${incarnationsOf('$1')} and f.project_id = $2 and ($3::text is null or f.status = $3) and ($4::uuid is null or f.id = $4)
  order by f.created_at, f.id limit $5`);

/** The forks of a tape, those of its earlier incarnations among them, the oldest first; or the one of an id. */
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

/** SQL of the box that a tape `p` is now: itself, or after a reset the one that has its name, its place as a fork (whoever owns that), or its agent. */
export const currentOf = (p: string): string => `case when ${p}.archived_at is null then ${p}.id
    when ${p}.tape_name is not null then (select n.id from boxcar.boxes n where n.project_id = ${p}.project_id and n.tape_name = ${p}.tape_name and n.archived_at is null)
    else coalesce((select g.box_id from boxcar.forks g where g.id in ${incarnationsOf(`${p}.id`)}), (select a.tape_box_id from boxcar.agents a where a.id = ${p}.owner_agent_id)) end`;

/** SQL of what names a tape `b` over its resets: a fork that was handed to an agent is not that agent's own tape. */
export const lastingNameOf = (b: string): string =>
  `coalesce(${b}.tape_name, (select g.id::text from boxcar.forks g where g.id in ${incarnationsOf(`${b}.id`)}), ${b}.owner_agent_id::text, ${b}.id::text)`;

const CURRENT = statement(`select ${currentOf('b')} as id from boxcar.boxes b where b.id = $1`);

/** What a tape is now; undefined when nothing has taken the place of an archived one, or it is gone. */
export async function findCurrentTape(db: Queryable, boxId: BoxId): Promise<BoxId | undefined> {
  const [row] = await run<{ id: BoxId | null }>(db, CURRENT, [boxId]);
  return row?.id ?? undefined;
}

const LOCK_OWNER = statement(`
  with tape as materialized (select b.owner_agent_id from boxcar.boxes b where b.id = $1),
  lk as materialized (select a.id from boxcar.agents a where a.id = (select owner_agent_id from tape) and a.tape_box_id = $1 for no key update)
  select tape.owner_agent_id, (select count(*) from lk) as locked from tape`);
const LOCK_TAPES = statement(`
  select b.id, b.owner_agent_id, b.archived_at is not null as is_archived,
    coalesce(b.fork_status <> 'open', false) or exists (select from boxcar.forks f where f.box_id = b.id and f.status = 'discarded') as is_closed
  from boxcar.boxes b where b.id = any ($1::uuid[]) order by b.id for no key update`);
const LOCK_FORK = statement(`
  select ${FORK}, f.turn_id is not null and not exists (select from boxcar.turns t where t.id = f.turn_id and t.ended_at is null) as is_over from boxcar.forks f where f.id = $1 for update`);

// Begun after the locks: what was taken from the actor meanwhile it has no more.
const RIGHTS = statement(`
  select ${OWNS} as is_own, ${grantOf('append')} is not null as may_append
  from boxcar.boxes b join boxcar.projects p on p.id = b.project_id where b.id = $1 and b.project_id = (select f.project_id from boxcar.forks f where f.id = $2)`);

// The text of a line comes along with its entry and goes with its card: an erasure under way is waited for and seen; one that comes later
// waits, and finds what was merged.
const LOCK_LINES = statement(`
  select c.id from boxcar.cards c where c.id in (
    select e.card_id from boxcar.boxes f join boxcar.tape_entries e on e.box_id = f.id and e.position > f.fork_position and e.position <= f.head_position
    where f.id = $1 and e.meta ? 'imported') order by c.id for share`);

interface LockedFork extends ForkRow, pg.QueryResultRow {
  /** The turn it was opened for has ended. */
  is_over: boolean;
}

interface LockedTape extends pg.QueryResultRow {
  id: BoxId;
  owner_agent_id: AgentId | null;
  is_archived: boolean;
  is_closed: boolean;
}

const BEGINNINGS = "('session/start', 'fork/start')";
const RECEIPT = `jsonb_build_object('status', 'merged', 'fork', $2::uuid::text, 'parent', x.parent, 'merged', x.n, 'first', x.first, 'last', x.last, 'event', x.event, 'replaced', x.replaced)`;

/** Ends the fork `$2` and its box, and says so on the parent, in CTEs behind `x(parent, n, first, last, event, replaced)`. */
const END = `
  told as (
    insert into boxcar.tape_entries (box_id, position, kind, payload, author_id, dedup_key)
    select x.parent, x.event, 'event', json_build_object('name', 'fork/merge', 'data', json_build_object('fork', $2::uuid::text, 'entries', x.n, 'first', x.first, 'last', x.last, 'replaced', x.replaced)),
      $3, 'fork/merge:' || $2::uuid::text from x
  ),
  ended as (update boxcar.forks f set status = 'merged', ended_at = now(), receipt = ${RECEIPT} from x where f.id = $2::uuid returning f.receipt)`;

const MERGE = statement(`
  with tape as materialized (select b.* from boxcar.boxes b where b.id = $1),
  d as materialized (
    select row_number() over (order by e.position)::int as n, e.*
    from boxcar.boxes f join boxcar.tape_entries e on e.box_id = f.id and e.position > f.fork_position and e.position <= f.head_position
    where f.id = $2::uuid and not (e.kind = 'anchor' and e.anchor_name in ${BEGINNINGS})
      and not (e.kind = 'event' and e.payload->>'name' = 'handoff' and e.payload->'data'->>'name' in ${BEGINNINGS})
  ),
  s as materialized (select count(*)::int as n, max(d.n) filter (where d.kind = 'anchor') as anchor, (count(*) filter (where d.kind = 'anchor'))::int as anchors from d),
  ${OPEN_STEP}
  moved as (
    update boxcar.boxes b set head_position = b.head_position + s.n + 1, last_anchor_position = coalesce(b.head_position + s.anchor, b.last_anchor_position),
      anchor_count = coalesce(b.anchor_count, 1) + s.anchors, view_anchor_position = case when s.anchor is null then b.view_anchor_position end,
      view_position = case when s.anchor is null then b.view_position else least((select first from open_step), b.head_position + s.anchor) end
    from s where b.id = $1 returning b.id, b.head_position, b.head_position - s.n - 1 as base
  ),
  entries as (
    insert into boxcar.tape_entries (box_id, position, kind, card_id, tokens, payload, anchor_name, turn_id, step, author_id, dedup_key, meta, created_at)
    select m.id, m.base + d.n, d.kind, d.card_id, d.tokens, d.payload, d.anchor_name, d.turn_id, d.step, d.author_id, 'fork:' || d.box_id || ':' || d.position,
      coalesce(d.meta, '{}') || jsonb_build_object('merged_from', jsonb_build_object('tape', d.box_id, 'entry', d.position)), d.created_at
    from moved m cross join d
  ),
  x as materialized (
    select m.id as parent, s.n, case when s.n > 0 then m.base + 1 end as first, case when s.n > 0 then m.base + s.n end as last, m.head_position as event, false as replaced
    from moved m cross join s
  ),
  closed as (update boxcar.boxes b set fork_status = 'merged' where b.id = $2::uuid and b.id <> $1),
  ${END}
  select receipt from ended`);

// Archived first: of the incarnations of a name one is not. The seals of a box see each row alone.
const ARCHIVE = statement('update boxcar.boxes set archived_at = now() where id = $1');
const REPLACE = statement(`
  with taken as (
    update boxcar.boxes n set tape_name = o.tape_name, incarnation = o.incarnation + 1, owner_agent_id = o.owner_agent_id, maker_agent_id = o.maker_agent_id, previous_box_id = o.id,
      session_graph = o.session_graph, head_position = n.head_position + 1
    from boxcar.boxes o where n.id = $4 and o.id = $1 returning n.id, n.head_position, n.owner_agent_id
  ),
  moved as (update boxcar.agents a set tape_box_id = taken.id from taken where a.id = taken.owner_agent_id and a.tape_box_id = $1),
  outer_fork as (update boxcar.forks f set box_id = taken.id from taken where f.box_id = $1 and f.status = 'open'),
  x as materialized (select taken.id as parent, taken.head_position - 1 as n, 1 as first, taken.head_position - 1 as last, taken.head_position as event, true as replaced from taken),
  closed as (update boxcar.boxes b set fork_status = 'merged' where b.id = $2::uuid),
  ${END}
  select receipt from ended`);

/** How a fork has ended. */
export type ForkEnd =
  | { readonly outcome: 'merged' | 'discarded'; readonly receipt: ForkReceipt }
  | { readonly outcome: 'not_found' };

export type MergeResult =
  | ForkEnd
  | { readonly outcome: 'busy'; readonly turnId: TurnId }
  /** The author may not append to the parent; of a fork that was reset: not reset it. */
  | { readonly outcome: 'forbidden'; readonly isReset: boolean }
  /** The parent is a fork itself and has ended. */
  | { readonly outcome: 'parent_closed' }
  /** The parent was reset between the look and the lock, or has become somebody's tape. */
  | { readonly outcome: 'moved' };

/** Locks in the order of everything: agent, tapes by id, and then the fork. */
async function lockFork(
  tx: Tx,
  { id, boxId }: Pick<ForkRow, 'id' | 'boxId'>,
  parent: BoxId,
): Promise<{
  readonly fork: LockedFork | undefined;
  readonly tape: LockedTape | undefined;
  /** It has become the tape of an agent while this waited for it: that agent is not locked. */
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
  /** The tape it goes to: what its parent is now. */
  readonly parentBoxId: BoxId;
  readonly authorId: AgentId;
}

/** Merges a fork, once: later ones get the first one's receipt. */
export const mergeFork = (pool: pg.Pool, fork: ForkRow, options: MergeOptions): Promise<MergeResult> =>
  transaction(pool, (tx) => mergeWithin(tx, fork, options));

// What it has become by a reset is nobody's then; its first box says itself that it is closed.
const DISCARD = statement(`
  with closed as (update boxcar.boxes b set fork_status = 'discarded' where b.id = $1),
  archived as (update boxcar.boxes b set archived_at = now() where b.id = $2 and b.id <> $1),
  x as (select f.parent_box_id as parent from boxcar.forks f where f.id = $1)
  update boxcar.forks f set status = 'discarded', ended_at = now(),
    receipt = jsonb_build_object('status', 'discarded', 'fork', f.id, 'parent', x.parent, 'merged', 0, 'first', null, 'last', null, 'event', null, 'replaced', false)
  from x where f.id = $1 returning f.receipt`);

async function discardWithin(tx: Tx, fork: ForkRow): Promise<ForkEnd> {
  const [row] = await run<{ receipt: ForkReceipt }>(tx, DISCARD, [fork.id, fork.boxId]);
  return row === undefined ? { outcome: 'not_found' } : { outcome: 'discarded', receipt: row.receipt };
}

/** Discards a fork: what it read stays, what it wrote is read by nobody who does not ask for it. One that has ended stays what it is. */
export function discardFork(pool: pg.Pool, seen: ForkRow, limit: LockLimit = {}): Promise<ForkEnd> {
  return transactWithin(pool, limit, async (tx): Promise<ForkEnd> => {
    await run(tx, LOCK_TAPES, [[seen.id, seen.boxId]]);
    const [fork] = await run<LockedFork>(tx, LOCK_FORK, [seen.id]);
    if (fork === undefined) return { outcome: 'not_found' };
    return endOf(fork) ?? discardWithin(tx, fork);
  });
}

/** Forks whose turn has ended without ending them, as a search of the sweep sees them. */
export const leftForks = (now: string): string =>
  `select k.id from boxcar.forks k where k.status = 'open' and k.turn_id is not null
    and not exists (select from boxcar.turns t where t.id = k.turn_id and t.ended_at is null) and ${notSetAside('left_forks', 'k.id', now)}`;

const FIND_LEFT = statement(`
  select ${FORK}, f.project_id from boxcar.forks f where f.id in (${leftForks('coalesce($1::timestamptz, now())')}) order by f.id limit $2`);

export function findLeftForks(
  pool: pg.Pool,
  options: { readonly now?: Date; readonly limit: number },
): Promise<readonly (ForkRow & { readonly project_id: ProjectId })[]> {
  return runRetrying<ForkRow & { project_id: ProjectId } & pg.QueryResultRow>(pool, FIND_LEFT, [
    options.now ?? null,
    options.limit,
  ]);
}
