/**
 * Reports the end of a handoff that was requested with `notify`: on the tape of the requesting agent, and to that agent.
 *
 * O1  The end of a handoff itself makes the notice due (`handoffs.notifies` of an ended handoff), whether or not a turn has served it.
 * O2  The message is appended once, under a key of the handoff, in a separate transaction: agent, turns, handoff, tape are locked in this
 *     order. The agent in whose name the handoff was requested must have the right to give turns to the notified agent; otherwise the
 *     notice is not sent.
 * O3  The rest is as for the ends of sessions (`notices.ts`, N3): a turn in progress reads the message, otherwise the agent gets a turn. A
 *     turn whose call waits for the handoff gets the result as the result of that call.
 * Rule: docs/reference/handoff.md, "Telling the source agent".
 */
import type {
  AgentId,
  BoxId,
  ErrorBody,
  HandoffId,
  HandoffPhase,
  JsonValue,
  KernelError,
  ProjectId,
  TurnId,
} from '@boxcar/kernel';
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
import { LOCK_AGENT, lockReader, SET_UNSEEN, TURN_OF_HANDOFF } from './notices.js';
import { lockGrants } from './refs.js';

/** A search of the sweep: handoffs with a due notice. */
export const dueHandoffNotices = (now: string): string => `
  select /* handoff-notices.due_handoff_notices */ h.id, h.project_id
  from boxcar.handoffs h
  where h.ended_at is not null and h.notifies and ${notSetAside('handoff_notices', 'h.id', now)}`;

const FIND_DUE = statement(`${dueHandoffNotices('coalesce($1::timestamptz, now())')} order by h.id limit $2`);

export function findDueHandoffNotices(
  pool: pg.Pool,
  options: { readonly now?: Date; readonly limit: number },
): Promise<readonly { readonly id: HandoffId; readonly project_id: ProjectId }[]> {
  return runRetrying(pool, FIND_DUE, [options.now ?? null, options.limit]);
}

/** A handoff that has ended, with the contents of its notice. */
export interface HandoffNotice {
  readonly handoffId: HandoffId;
  readonly projectId: ProjectId;
  readonly targetAgent: string;
  readonly phase: HandoffPhase;
  readonly result: JsonValue;
  readonly error: ErrorBody | null;
  /** The notified agent, and its present tape; null when the tape no longer exists. */
  readonly agentId: AgentId;
  readonly boxId: BoxId | null;
  /** The agent in whose name the handoff was requested. */
  readonly makerId: AgentId;
  /** The requesting call waited for the handoff to its end. */
  readonly isAwaited: boolean;
  /** The turn in whose run the agent gets a turn; null: the agent gets a separate run. */
  readonly causeId: TurnId | null;
}

// The end and the answer of the waiting call are one transaction, so a wait that has ended earlier did not get the result.
const LOAD = statement(`
  select /* handoff-notices.load */
    h.id as "handoffId", h.project_id as "projectId", h.target_agent as "targetAgent", h.phase,
    case c.content->>'kind' when 'text' then to_json(c.content->>'text') else c.content->'data' end as result,
    coalesce(h.error, t.error) as error, h.told_agent_id as "agentId", a.tape_box_id as "boxId",
    h.source_agent_id as "makerId",
    h.is_awaited
    and exists (
      select from boxcar.tool_calls k
      where k.id = h.tool_call_id and (k.ended_at is null or k.ended_at >= h.ended_at)
    ) as "isAwaited",
    (select x.id from boxcar.turns x where x.id = ${TURN_OF_HANDOFF}) as "causeId"
  from boxcar.handoffs h
  left join boxcar.agents a on a.id = h.told_agent_id
  left join boxcar.handoffs j on j.id = h.joined_to
  left join boxcar.turns t on t.id = coalesce(h.turn_id, j.turn_id)
  left join boxcar.cards c on c.id = t.deliverable_card_id
  where h.id = $1 and h.ended_at is not null and h.notifies`);

/** The notice of a handoff; undefined without a due notice. */
export async function loadHandoffNotice(
  db: Queryable,
  handoffId: HandoffId,
): Promise<HandoffNotice | undefined> {
  return (await run<HandoffNotice & pg.QueryResultRow>(db, LOAD, [handoffId]))[0];
}

const LOCK_HANDOFF = statement(`
  select /* handoff-notices.lock_handoff */ h.id
  from boxcar.handoffs h
  where h.id = $1 and h.notifies
  for no key update`);
const TOLD = statement(`
  update /* handoff-notices.told */ boxcar.handoffs
  set notifies = false
  where id = $1 and notifies
  returning id`);

export type HandoffTold =
  /** A turn reads the message, or no turn must read it. */
  | 'told'
  /** The agent has no turn that would read the message. */
  | 'wake'
  /** The tape was reset meanwhile: the caller must look again. */
  | 'moved'
  /** The notice is not allowed, or has no tape: it is not sent. */
  | 'forbidden';

/** The entries for the tape. */
export interface HandoffEntries {
  readonly entry: NewTapeEntry;
  /** The event that records a refusal. */
  readonly why: (refusal: KernelError) => NewTapeEntry;
}

/** Appends the message to the tape of the requesting agent, once, and returns which turn will read it (O2, O3). */
export function tellHandoffEnd(
  pool: pg.Pool,
  notice: HandoffNotice,
  entries: HandoffEntries,
  limit: LockLimit = {},
): Promise<HandoffTold> {
  return transactWithin(pool, limit, async (tx): Promise<HandoffTold> => {
    const told = await tell(tx, notice, entries);
    if (told === 'told' || told === 'forbidden') await run(tx, TOLD, [notice.handoffId]);
    return told;
  });
}

async function tell(tx: Tx, notice: HandoffNotice, { entry, why }: HandoffEntries): Promise<HandoffTold> {
  const { handoffId, projectId, agentId, boxId, makerId, isAwaited } = notice;
  if (boxId === null) return 'forbidden';
  await lockGrants(tx, [boxId], makerId);
  if ((await run(tx, LOCK_AGENT, [agentId, boxId])).length === 0) return 'moved';
  const { reader } = await lockReader(tx, null, boxId);
  if ((await run(tx, LOCK_HANDOFF, [handoffId])).length === 0) return 'told';
  const refusal = await findNotifyRefusal(tx, { projectId, boxId, makerId });
  const appended = await appendWithin(tx, {
    boxId,
    projectId,
    // The maker notifies by its own right. When it has lost that right, the tape's agent writes the event.
    actorId: refusal === undefined ? makerId : agentId,
    dedupKey: refusal === undefined ? `handoff-result:${handoffId}` : `not-told:handoff:${handoffId}`,
    entries: [refusal === undefined ? entry : why(refusal)],
  });
  if (refusal !== undefined || appended.outcome === 'forbidden' || appended.outcome === 'closed')
    return 'forbidden';
  if (appended.outcome !== 'appended') return 'moved';
  if (isAwaited) return 'told';
  if (reader === null) return 'wake';
  await run(tx, SET_UNSEEN, [reader, appended.first]);
  return 'told';
}

/** Call it after the agent has a turn that reads the message, or when no turn is started: then its tape records the reason. */
export function closeHandoffNotice(
  pool: pg.Pool,
  { handoffId, projectId, agentId, boxId }: HandoffNotice,
  why: NewTapeEntry | undefined,
  limit: LockLimit = {},
): Promise<void> {
  return transactWithin(pool, limit, async (tx) => {
    const closed = await run(tx, TOLD, [handoffId]);
    if (why === undefined || boxId === null || closed.length === 0) return;
    await appendWithin(tx, {
      boxId,
      projectId,
      actorId: agentId,
      dedupKey: `not-started:handoff:${handoffId}`,
      entries: [why],
    });
  });
}
