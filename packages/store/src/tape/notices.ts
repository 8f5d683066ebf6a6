/**
 * What is told when the turn of a session ends: on the tape it was forked from, and to that tape's agent. Where that was a fork
 * that has been merged since, on the tape it was merged into.
 *
 * N1  An end makes its notice due by itself (`turns.notifies` of a turn that has ended): there is no moment in which it could be lost.
 * N2  The message is appended once, under a key of the turn, in a transaction of its own: agent, turns, tape are locked in this order.
 *     Once the tape is locked, the maker of the session must have the right to append to it; otherwise nothing is told.
 * N3  A turn of the parent's agent that is under way or queued then is to read it; when it ends without having read so far
 *     (`turns.unseen_position`), another one is due. Without such a turn the agent gets one, submitted under a key. A turn that waits for
 *     the session's gets the result as that of its call, and is waited for no more.
 */
import type { AgentId, BoxId, FinalStatus, JsonValue, KernelError, ProjectId, TurnId } from '@boxcar/kernel';
import type pg from 'pg';
import {
  type LockLimit,
  type Queryable,
  run,
  runRetrying,
  statement,
  type Tx,
  transactWithin,
} from '../db/index.js';
import { findNotifyRefusal, notSetAside } from '../rows/index.js';
import { appendWithin, type NewTapeEntry } from './appends.js';
import { currentOf } from './forks.js';
import { lockGrants } from './refs.js';
import { findActiveTurn } from './reset.js';

const IS_DUE = 't.ended_at is not null and (t.notifies or t.unseen_position is not null)';

/** Turns of which something is to be told, as a search of the sweep sees them. */
export const dueNotices = (now: string): string =>
  `select /* notices.due_notices */ t.id as turn_id, t.project_id from boxcar.turns t where ${IS_DUE} and ${notSetAside('notices', 't.id', now)}`;

const FIND_DUE = statement(`${dueNotices('coalesce($1::timestamptz, now())')} order by t.id limit $2`);

export function findDueNotices(
  pool: pg.Pool,
  options: { readonly now?: Date; readonly limit: number },
): Promise<readonly { readonly turn_id: TurnId; readonly project_id: ProjectId }[]> {
  return runRetrying(pool, FIND_DUE, [options.now ?? null, options.limit]);
}

/** A turn that has ended, with what is to be told of it. */
export interface Notice {
  readonly turnId: TurnId;
  readonly projectId: ProjectId;
  readonly agentId: AgentId;
  readonly channelId: string;
  readonly status: FinalStatus;
  /** The deliverable's content. */
  readonly content: JsonValue;
  /** Its tape, where it began on it, and its last entry. */
  readonly outputBoxId: BoxId;
  readonly startPosition: number | null;
  readonly lastPosition: number;
  /** The session that it is a turn of, and is to be told of. */
  readonly session: {
    readonly name: string;
    /** The parent's tape as it is now, and its agent; null: there is none any more. */
    readonly parentBoxId: BoxId | null;
    readonly parentAgentId: AgentId | null;
    /** The agent that forked the session, by whose right its ends are told. */
    readonly makerId: AgentId;
    /** A turn of that agent waited for this one to its end: it gets the result as that of its call. */
    readonly isAwaited: boolean;
  } | null;
  /** Its end is to be told; false: only what it has not read is left. */
  readonly isTold: boolean;
  /** It serves a handoff, whose end is to be recorded. */
  readonly isHandoff: boolean;
  /** What came to its tape from sessions and handoffs that it was not under way long enough to read; null: nothing. */
  readonly unseenPosition: number | null;
  /** Among it, or what came before it, are ends of handoffs. */
  readonly hasHandoffs: boolean;
  /**
   * The sessions' turns whose ends are to be read, the newest first: what is told here, or what was told there and has not been read.
   * The turn itself when those have been purged. At most {@link MAX_CAUSES}.
   */
  readonly causeIds: readonly TurnId[];
}

/** A turn can be started in the run of each of them. */
const MAX_CAUSES = 100;

/** As far as any turn has read tape `box`; 0: none has. */
const lastRead = (box: string): string => `
  coalesce((select r.at from boxcar.tape_entries x cross join lateral (select max(s.to_position) as at from boxcar.steps s where s.turn_id = x.turn_id and s.committed_at is not null) r
    where x.box_id = ${box} and x.kind = 'event' and x.payload->>'name' = 'turn.started' and r.at is not null order by x.position desc limit 1), 0)`;

/** The turn of a handoff `h`: the one that served it, or else the one that asked for it. */
export const TURN_OF_HANDOFF =
  'coalesce(h.turn_id, (select o.turn_id from boxcar.handoffs o where o.id = h.joined_to), h.parent_turn_id)';

/**
 * The turns of sessions and handoffs whose ends turn `t` should have read on its tape, and that no turn has read; the newest first. Only the
 * kernel writes their keys; callers can write the rest of an entry.
 */
export const UNREAD_CAUSES = `
  select s.id, s.run_id from (select ${lastRead('t.output_box_id')} as at) r cross join lateral (
      select e.position, case when e.dedup_key like 'fork-%' then substr(e.dedup_key, 13)::uuid
          else (select ${TURN_OF_HANDOFF} from boxcar.handoffs h where h.id = substr(e.dedup_key, 16)::uuid) end as turn_id from boxcar.tape_entries e
      where e.box_id = t.output_box_id and e.kind = 'message' and e.position > r.at and e.position <= t.unseen_position and e.dedup_key ~ '^(fork|handoff)-result:[0-9a-f-]{36}$'
      order by e.position desc limit ${MAX_CAUSES}) e
    join boxcar.turns s on s.id = e.turn_id
  order by e.position desc`;

// The tape that `p` is now; of a fork that was merged the one it was merged into, of a discarded one none.
const TOLD_ON = `(
    with recursive place as (
      select ${currentOf('p')} as id
      union
      select ${currentOf('q')} from place join boxcar.forks f on f.id = place.id and f.box_id = f.id and f.status = 'merged' join boxcar.boxes q on q.id = (f.receipt->>'parent')::uuid
    )
    select place.id from place where not exists (
      select from boxcar.forks f where f.box_id = place.id and (f.status = 'discarded' or (f.status = 'merged' and f.id = f.box_id))))`;

// A wait that has ended before was in vain. An end and the answer of the call that waits for it are one transaction: the same moment.
const IS_AWAITED = `exists (
    select from (
      select k.turn_id, k.ended_at from boxcar.tool_calls k where t.is_awaited and k.id = t.parent_tool_call_id
      union all
      select j.turn_id, j.ended_at from boxcar.batches j where j.id = any (t.batch_ids) and j.tool_call_id is not null
    ) wait join boxcar.turns w on w.id = wait.turn_id
    where w.agent_id = n.owner_agent_id and (wait.ended_at is null or wait.ended_at >= t.ended_at))`;

const LOAD = statement(`
  select /* notices.load */ t.id as "turnId", t.project_id as "projectId", t.agent_id as "agentId", t.channel_id as "channelId", t.status, coalesce(c.content, c.placeholder) as content,
    t.output_box_id as "outputBoxId", t.start_position as "startPosition",
    coalesce((select e.position from boxcar.tape_entries e where e.box_id = b.id and e.turn_id = t.id order by e.position desc limit 1), b.head_position) as "lastPosition",
    case when t.notifies then (
      select json_build_object('name', s.name, 'parentBoxId', n.id, 'parentAgentId', (select a.id from boxcar.agents a where a.id = n.owner_agent_id and a.tape_box_id = n.id), 'makerId', coalesce((select a.owner_agent_id from boxcar.agents a where a.id = t.agent_id), t.agent_id), 'isAwaited', ${IS_AWAITED})
      from boxcar.sessions s left join boxcar.boxes p on p.id = s.parent_box_id left join boxcar.boxes n on n.id = ${TOLD_ON} where s.agent_id = t.agent_id) end as session,
    t.unseen_position as "unseenPosition",
    t.unseen_position is not null and exists (select from boxcar.tape_entries e where e.box_id = t.output_box_id and e.position between t.start_position and t.unseen_position and e.dedup_key like 'handoff-result:%') as "hasHandoffs", t.notifies is true as "isTold", exists (select from boxcar.handoffs h where h.turn_id = t.id) as "isHandoff",
    case when t.notifies then array[t.id] else array(select c.id from (${UNREAD_CAUSES}) c) end as "causeIds"
  from boxcar.turns t join boxcar.boxes b on b.id = t.output_box_id left join boxcar.cards c on c.id = t.deliverable_card_id
  where t.id = $1 and ${IS_DUE}`);

/** What is to be told of a turn; undefined when nothing is. */
export async function loadNotice(db: Queryable, turnId: TurnId): Promise<Notice | undefined> {
  const [row] = await run<Notice & pg.QueryResultRow>(db, LOAD, [turnId]);
  return row && (row.causeIds.length > 0 ? row : { ...row, causeIds: [row.turnId] });
}

export const LOCK_AGENT = statement(
  'select /* notices.lock_agent */ a.id from boxcar.agents a where a.id = $1 and a.tape_box_id = $2 for no key update',
);
const LOCK_TURNS = statement(
  'select /* notices.lock_turns */ t.id, t.ended_at is not null as is_ended, t.notifies, t.unseen_position from boxcar.turns t where t.id = any ($1::uuid[]) order by t.id for update',
);
export const SET_UNSEEN = statement(
  'update /* notices.set_unseen */ boxcar.turns set unseen_position = greatest(unseen_position, $2) where id = $1',
);
const TOLD = statement(
  'update /* notices.told */ boxcar.turns set notifies = false where id = $1 and notifies returning id',
);
const MAY_READ = statement('update /* notices.may_read */ boxcar.turns set told_agent_id = $2 where id = $1');
const SEEN = statement(
  'update /* notices.seen */ boxcar.turns set unseen_position = null where id = $1 and unseen_position = $2 returning id',
);
const HAS_READ = statement(
  'select /* notices.has_read */ coalesce(max(s.to_position), 0) >= $2 as has_read from boxcar.steps s where s.turn_id = $1 and s.committed_at is not null',
);
interface LockedTurn extends pg.QueryResultRow {
  readonly id: TurnId;
  readonly notifies: boolean | null;
  readonly unseen_position: number | null;
  readonly is_ended: boolean;
}

/** The turn of an agent that will read what is on its tape now, locked together with `turnId`, if given; null when there is none. */
export async function lockReader(
  tx: Tx,
  turnId: TurnId | null,
  boxId: BoxId,
): Promise<{ readonly told: LockedTurn | undefined; readonly reader: TurnId | null }> {
  for (;;) {
    const active = await findActiveTurn(tx, boxId);
    const ids = [turnId, active].filter((id) => id !== null);
    const turns = ids.length === 0 ? [] : await run<LockedTurn>(tx, LOCK_TURNS, [ids]);
    const told = turns.find(({ id }) => id === turnId);
    // One that has ended since will not read it; no other can have come, the agent is locked.
    if (active === null || turns.find(({ id }) => id === active)?.is_ended === false)
      return { told, reader: active };
  }
}

export type Told =
  /** Somebody reads it, or nobody is to. */
  | 'told'
  /** The agent has no turn that would read it. */
  | 'wake'
  /** The parent was reset meanwhile, or has ended as a fork: look again. */
  | 'moved'
  /** The maker of the session may not tell it, or not wake the parent's agent, any more: nothing is told. */
  | 'forbidden';

/**
 * Appends the message of a turn's end to the parent's tape, once, and says who will read it. The maker of a session that may not give
 * the parent's agent turns any more may not have it told either: then the tape gets one event for the session.
 *
 * @param why - The event of a refusal.
 */
export function tellEnd(
  pool: pg.Pool,
  notice: Notice,
  { entry, why }: { readonly entry: NewTapeEntry; readonly why: (refusal: KernelError) => NewTapeEntry },
  limit: LockLimit = {},
): Promise<Told> {
  const { turnId, projectId, agentId, session } = notice;
  const parentBoxId = session?.parentBoxId ?? null;
  const parentAgentId = session?.parentAgentId ?? null;
  return transactWithin(pool, limit, async (tx): Promise<Told> => {
    if (session === null || parentBoxId === null) {
      await run(tx, TOLD, [turnId]);
      return 'told';
    }
    const { makerId } = session;
    await lockGrants(tx, [parentBoxId], makerId);
    if (parentAgentId !== null && (await run(tx, LOCK_AGENT, [parentAgentId, parentBoxId])).length === 0)
      return 'moved';
    const { told, reader } = await lockReader(tx, turnId, parentBoxId);
    if (told?.notifies !== true) return 'told';
    const refusal = await findNotifyRefusal(tx, { projectId, boxId: parentBoxId, makerId });
    const appended = await appendWithin(tx, {
      boxId: parentBoxId,
      projectId,
      // The maker tells by its own right; that it has none any more is said by the tape's agent.
      actorId: refusal === undefined ? session.makerId : (parentAgentId ?? session.makerId),
      dedupKey: refusal === undefined ? `fork-result:${turnId}` : `not-told:${agentId}`,
      entries: [refusal === undefined ? entry : why(refusal)],
    });
    // On a tape without an agent nobody can write the event.
    if (appended.outcome === 'forbidden' || (refusal !== undefined && appended.outcome === 'appended')) {
      await run(tx, TOLD, [turnId]);
      return 'forbidden';
    }
    if (appended.outcome !== 'appended') return 'moved';
    if (parentAgentId !== null) await run(tx, MAY_READ, [turnId, parentAgentId]);
    if (parentAgentId !== null && !session.isAwaited) {
      if (reader === null) return 'wake';
      await run(tx, SET_UNSEEN, [reader, appended.first]);
    }
    await run(tx, TOLD, [turnId]);
    return 'told';
  });
}

/** Has the turn, or one that comes after it, read what came to its tape while it was under way? */
export function passUnseen(
  pool: pg.Pool,
  notice: Notice & { readonly unseenPosition: number },
  limit: LockLimit = {},
): Promise<Exclude<Told, 'moved' | 'forbidden'>> {
  const { turnId, agentId, outputBoxId, unseenPosition } = notice;
  return transactWithin(pool, limit, async (tx) => {
    const [read] = await run<{ has_read: boolean }>(tx, HAS_READ, [turnId, unseenPosition]);
    const isThere = (await run(tx, LOCK_AGENT, [agentId, outputBoxId])).length > 0;
    // After a reset it is archived with the rest.
    if (read?.has_read !== true && isThere) {
      const { told, reader } = await lockReader(tx, turnId, outputBoxId);
      if (told?.unseen_position !== unseenPosition) return 'told';
      if (reader === null) return 'wake';
      await run(tx, SET_UNSEEN, [reader, unseenPosition]);
    }
    await run(tx, SEEN, [turnId, unseenPosition]);
    return 'told';
  });
}

/** The end of a turn has been told to all that were to hear of it. */
export async function markTold(db: Queryable, turnId: TurnId): Promise<void> {
  await run(db, TOLD, [turnId]);
}

/** Once the agent has a turn that reads it, or none is started: then its tape says why, for each turn that would have started it. */
export function closeNotice(
  pool: pg.Pool,
  notice: Notice,
  why: readonly NewTapeEntry[],
  limit: LockLimit = {},
): Promise<void> {
  const { turnId, projectId, agentId, session, unseenPosition, outputBoxId } = notice;
  const boxId = session === null ? outputBoxId : session.parentBoxId;
  return transactWithin(pool, limit, async (tx) => {
    const closed = await (session !== null
      ? run(tx, TOLD, [turnId])
      : run(tx, SEEN, [turnId, unseenPosition]));
    if (why.length === 0 || boxId === null || closed.length === 0) return;
    // A tape that was archived meanwhile keeps what it has.
    await appendWithin(tx, {
      boxId,
      projectId,
      actorId: session?.parentAgentId ?? agentId,
      dedupKey: `not-started:${turnId}:${unseenPosition ?? 'end'}`,
      entries: why,
    });
  });
}
