/**
 * Reports the end of a session's turn: on the tape from which the session was forked, and to that tape's agent. When that tape was a fork
 * and has been merged since, the report goes to the tape into which it was merged.
 *
 * N1  The end of a turn itself makes the notice due (`turns.notifies` of an ended turn), so the notice can never be lost.
 * N2  The message is appended once, under a key of the turn, in a separate transaction: agent, turns, tape are locked in this order. When
 *     the tape is locked, the maker of the session must have the right to append to it; otherwise the notice is not sent.
 * N3  A turn of the parent's agent that is then in progress or queued must read the message. When that turn ends without having read so
 *     far (`turns.unseen_position`), another turn is due. Without such a turn the agent gets a turn, submitted under a key. A turn that
 *     waits for the session's turn gets the result as the result of its call, and the session's turn is no longer awaited.
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

/** A search of the sweep: turns with a due notice. */
export const dueNotices = (now: string): string => `
  select /* notices.due_notices */ t.id as turn_id, t.project_id
  from boxcar.turns t
  where ${IS_DUE} and ${notSetAside('notices', 't.id', now)}`;

const FIND_DUE = statement(`${dueNotices('coalesce($1::timestamptz, now())')} order by t.id limit $2`);

export function findDueNotices(
  pool: pg.Pool,
  options: { readonly now?: Date; readonly limit: number },
): Promise<readonly { readonly turn_id: TurnId; readonly project_id: ProjectId }[]> {
  return runRetrying(pool, FIND_DUE, [options.now ?? null, options.limit]);
}

/** A turn that has ended, with the contents of its notice. */
export interface Notice {
  readonly turnId: TurnId;
  readonly projectId: ProjectId;
  readonly agentId: AgentId;
  readonly channelId: string;
  readonly status: FinalStatus;
  /** The deliverable's content. */
  readonly content: JsonValue;
  /** Its tape, the position at which it began on the tape, and its last entry. */
  readonly outputBoxId: BoxId;
  readonly startPosition: number | null;
  readonly lastPosition: number;
  /** The session to which the turn belongs and whose notice is due. */
  readonly session: {
    readonly name: string;
    /** The parent's present tape and its agent; null when the tape no longer exists. */
    readonly parentBoxId: BoxId | null;
    readonly parentAgentId: AgentId | null;
    /** The agent that forked the session; its right allows the notices. */
    readonly makerId: AgentId;
    /** A turn of that agent waited for this turn to its end: it gets the result as the result of its call. */
    readonly isAwaited: boolean;
  } | null;
  /** The end must be reported; false: only unread entries are left. */
  readonly isTold: boolean;
  /** The turn serves a handoff, whose end must be recorded. */
  readonly isHandoff: boolean;
  /** The position of entries from sessions and handoffs that arrived on its tape too late for the turn to read; null when all were read. */
  readonly unseenPosition: number | null;
  /** The unread entries, or earlier ones, include ends of handoffs. */
  readonly hasHandoffs: boolean;
  /**
   * The sessions' turns whose ends must be read, the newest first: the end reported here, or ends that were reported there and have not
   * been read. The turn itself when those turns have been purged. At most `MAX_CAUSES`.
   */
  readonly causeIds: readonly TurnId[];
}

/** A turn can be started in the run of each of them. */
const MAX_CAUSES = 100;

/** The last position of tape `box` that any turn has read; 0: no turn has read it. */
const lastRead = (box: string): string => `
  coalesce((
    select r.at
    from boxcar.tape_entries x
    cross join lateral (
      select max(s.to_position) as at
      from boxcar.steps s
      where s.turn_id = x.turn_id and s.committed_at is not null
    ) r
    where x.box_id = ${box}
      and x.kind = 'event'
      and x.payload->>'name' = 'turn.started'
      and r.at is not null
    order by x.position desc
    limit 1
  ), 0)`;

/** The turn of a handoff `h`: the turn that served it, otherwise the turn that requested it. */
export const TURN_OF_HANDOFF =
  'coalesce(h.turn_id, (select o.turn_id from boxcar.handoffs o where o.id = h.joined_to), h.parent_turn_id)';

/**
 * The turns of sessions and handoffs whose ends turn `t` should have read on its tape, and that no turn has read; the newest first. Only
 * the kernel writes their keys; callers can write the rest of an entry.
 */
export const UNREAD_CAUSES = `
  select s.id, s.run_id
  from (select ${lastRead('t.output_box_id')} as at) r
  cross join lateral (
    select
      e.position,
      case
        when e.dedup_key like 'fork-%' then substr(e.dedup_key, 13)::uuid
        else (select ${TURN_OF_HANDOFF} from boxcar.handoffs h where h.id = substr(e.dedup_key, 16)::uuid)
      end as turn_id
    from boxcar.tape_entries e
    where e.box_id = t.output_box_id
      and e.kind = 'message'
      and e.position > r.at
      and e.position <= t.unseen_position
      and e.dedup_key ~ '^(fork|handoff)-result:[0-9a-f-]{36}$'
    order by e.position desc
    limit ${MAX_CAUSES}
  ) e
  join boxcar.turns s on s.id = e.turn_id
  order by e.position desc`;

// The present tape of `p`. For a merged fork it is the tape into which it was merged; a discarded fork has no such tape.
const TOLD_ON = `
  (
    with recursive place as (
      select ${currentOf('p')} as id
      union
      select ${currentOf('q')}
      from place
      join boxcar.forks f on f.id = place.id and f.box_id = f.id and f.status = 'merged'
      join boxcar.boxes q on q.id = (f.receipt->>'parent')::uuid
    )
    select place.id
    from place
    where not exists (
      select from boxcar.forks f
      where f.box_id = place.id and (f.status = 'discarded' or (f.status = 'merged' and f.id = f.box_id))
    )
  )`;

// A wait that has ended earlier did not get the result. An end and the answer of the waiting call are one transaction, with the same time.
const IS_AWAITED = `
  exists (
    select from (
      select k.turn_id, k.ended_at
      from boxcar.tool_calls k
      where t.is_awaited and k.id = t.parent_tool_call_id
      union all
      select j.turn_id, j.ended_at
      from boxcar.batches j
      where j.id = any (t.batch_ids) and j.tool_call_id is not null
    ) wait
    join boxcar.turns w on w.id = wait.turn_id
    where w.agent_id = n.owner_agent_id and (wait.ended_at is null or wait.ended_at >= t.ended_at)
  )`;

// Takes no locks, and decides nothing: `tellEnd` locks agent, turns and tape (N2), and checks again whether the notice is due and where the
// parent's tape is. When the parent was reset in between, it answers `moved`, and the caller loads the notice again.
const LOAD = statement(`
  select /* notices.load */
    t.id as "turnId", t.project_id as "projectId", t.agent_id as "agentId", t.channel_id as "channelId", t.status,
    coalesce(c.content, c.placeholder) as content, t.output_box_id as "outputBoxId",
    t.start_position as "startPosition",
    coalesce((
      select e.position
      from boxcar.tape_entries e
      where e.box_id = b.id and e.turn_id = t.id
      order by e.position desc
      limit 1
    ), b.head_position) as "lastPosition",
    case
      when t.notifies then (
        select json_build_object(
          'name', s.name, 'parentBoxId', n.id,
          'parentAgentId', (select a.id from boxcar.agents a where a.id = n.owner_agent_id and a.tape_box_id = n.id),
          'makerId', coalesce((select a.owner_agent_id from boxcar.agents a where a.id = t.agent_id), t.agent_id),
          'isAwaited', ${IS_AWAITED}
        )
        from boxcar.sessions s
        left join boxcar.boxes p on p.id = s.parent_box_id
        left join boxcar.boxes n on n.id = ${TOLD_ON}
        where s.agent_id = t.agent_id
      )
    end as session,
    t.unseen_position as "unseenPosition",
    t.unseen_position is not null
    and exists (
      select from boxcar.tape_entries e
      where e.box_id = t.output_box_id
        and e.position between t.start_position and t.unseen_position
        and e.dedup_key like 'handoff-result:%'
    ) as "hasHandoffs",
    t.notifies is true as "isTold",
    exists (select from boxcar.handoffs h where h.turn_id = t.id) as "isHandoff",
    case when t.notifies then array[t.id] else array(select c.id from (${UNREAD_CAUSES}) c) end as "causeIds"
  from boxcar.turns t
  join boxcar.boxes b on b.id = t.output_box_id
  left join boxcar.cards c on c.id = t.deliverable_card_id
  where t.id = $1 and ${IS_DUE}`);

/** The notice of a turn; undefined without a due notice. */
export async function loadNotice(db: Queryable, turnId: TurnId): Promise<Notice | undefined> {
  const [row] = await run<Notice & pg.QueryResultRow>(db, LOAD, [turnId]);
  return row && (row.causeIds.length > 0 ? row : { ...row, causeIds: [row.turnId] });
}

export const LOCK_AGENT = statement(
  'select /* notices.lock_agent */ a.id from boxcar.agents a where a.id = $1 and a.tape_box_id = $2 for no key update',
);
const LOCK_TURNS = statement(`
  select /* notices.lock_turns */ t.id, t.ended_at is not null as is_ended, t.notifies, t.unseen_position
  from boxcar.turns t
  where t.id = any ($1::uuid[])
  order by t.id
  for update`);
export const SET_UNSEEN = statement(
  'update /* notices.set_unseen */ boxcar.turns set unseen_position = greatest(unseen_position, $2) where id = $1',
);
const TOLD = statement(`
  update /* notices.told */ boxcar.turns
  set notifies = false
  where id = $1 and notifies
  returning id`);
const MAY_READ = statement('update /* notices.may_read */ boxcar.turns set told_agent_id = $2 where id = $1');
const SEEN = statement(`
  update /* notices.seen */ boxcar.turns
  set unseen_position = null
  where id = $1 and unseen_position = $2
  returning id`);
const HAS_READ = statement(`
  select /* notices.has_read */ coalesce(max(s.to_position), 0) >= $2 as has_read
  from boxcar.steps s
  where s.turn_id = $1 and s.committed_at is not null`);
interface LockedTurn extends pg.QueryResultRow {
  readonly id: TurnId;
  readonly notifies: boolean | null;
  readonly unseen_position: number | null;
  readonly is_ended: boolean;
}

/**
 * The turn of an agent that will read the present entries of its tape, locked together with `turnId`, if given; null without such a turn.
 */
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
    // A turn that has ended since will not read the entries. No other turn can have been added, because the agent is locked.
    if (active === null || turns.find(({ id }) => id === active)?.is_ended === false)
      return { told, reader: active };
  }
}

export type Told =
  /** A turn reads the message, or no turn must read it. */
  | 'told'
  /** The agent has no turn that would read the message. */
  | 'wake'
  /** The parent was reset meanwhile, or has ended as a fork: the caller must look again. */
  | 'moved'
  /** The maker of the session has lost the right to append the message, or to wake the parent's agent: the notice is not sent. */
  | 'forbidden';

/**
 * Appends the message of a turn's end to the parent's tape, once, and returns which turn will read it. When the maker of a session may no
 * longer give turns to the parent's agent, the message is not appended either: then the tape gets one event for the session.
 *
 * @param why - The event that records a refusal.
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
      // The maker notifies by its own right. When it has lost that right, the tape's agent writes the event.
      actorId: refusal === undefined ? session.makerId : (parentAgentId ?? session.makerId),
      dedupKey: refusal === undefined ? `fork-result:${turnId}` : `not-told:${agentId}`,
      entries: [refusal === undefined ? entry : why(refusal)],
    });
    // A tape without an agent has no writer for the event.
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

/** Checks whether the turn, or a later turn, has read the entries that arrived on its tape while it was in progress. */
export function passUnseen(
  pool: pg.Pool,
  notice: Notice & { readonly unseenPosition: number },
  limit: LockLimit = {},
): Promise<Exclude<Told, 'moved' | 'forbidden'>> {
  const { turnId, agentId, outputBoxId, unseenPosition } = notice;
  return transactWithin(pool, limit, async (tx) => {
    const [read] = await run<{ has_read: boolean }>(tx, HAS_READ, [turnId, unseenPosition]);
    const isThere = (await run(tx, LOCK_AGENT, [agentId, outputBoxId])).length > 0;
    // After a reset the entry is archived with the tape.
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

/** Records that the end of a turn has been reported to all receivers. */
export async function markTold(db: Queryable, turnId: TurnId): Promise<void> {
  await run(db, TOLD, [turnId]);
}

/**
 * Call it after the agent has a turn that reads the message, or when no turn is started: then its tape records the reason, for each turn
 * that would have started it.
 */
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
    // A tape that was archived meanwhile gets no more entries.
    await appendWithin(tx, {
      boxId,
      projectId,
      actorId: session?.parentAgentId ?? agentId,
      dedupKey: `not-started:${turnId}:${unseenPosition ?? 'end'}`,
      entries: why,
    });
  });
}
