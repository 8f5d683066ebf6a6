/**
 * What is told when a handoff ends that was asked for with `notify`: on the tape of the agent that asked, and to that agent.
 *
 * O1  An end makes its notice due by itself (`handoffs.notifies` of a handoff that has ended), whether a turn has served it or not.
 * O2  The message is appended once, under a key of the handoff, in a transaction of its own: agent, turns, handoff, tape are locked in this
 *     order. The agent in whose name the handoff was asked for must have the right to give turns to the told agent; otherwise nothing is told.
 * O3  The rest is as for the ends of sessions (`notices.ts`, N3): a turn that is under way reads it, else the agent gets one. A turn whose
 *     call waits for the handoff gets the result as that of its call.
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

/** Handoffs whose ends are to be told, as a search of the sweep sees them. */
export const dueHandoffNotices = (now: string): string =>
  `select /* handoff-notices.due_handoff_notices */ h.id, h.project_id from boxcar.handoffs h where h.ended_at is not null and h.notifies and ${notSetAside('handoff_notices', 'h.id', now)}`;

const FIND_DUE = statement(`${dueHandoffNotices('coalesce($1::timestamptz, now())')} order by h.id limit $2`);

export function findDueHandoffNotices(
  pool: pg.Pool,
  options: { readonly now?: Date; readonly limit: number },
): Promise<readonly { readonly id: HandoffId; readonly project_id: ProjectId }[]> {
  return runRetrying(pool, FIND_DUE, [options.now ?? null, options.limit]);
}

/** A handoff that has ended, with what is to be told of it. */
export interface HandoffNotice {
  readonly handoffId: HandoffId;
  readonly projectId: ProjectId;
  readonly targetAgent: string;
  readonly phase: HandoffPhase;
  readonly result: JsonValue;
  readonly error: ErrorBody | null;
  /** The agent that is told, and its tape as it is now; null: there is none any more. */
  readonly agentId: AgentId;
  readonly boxId: BoxId | null;
  /** In whose name the handoff was asked for. */
  readonly makerId: AgentId;
  /** The call that asked waited for it to its end. */
  readonly isAwaited: boolean;
  /** In whose run the agent gets a turn; null: in a run of its own. */
  readonly causeId: TurnId | null;
}

// As an end and the answer of the call that waits for it are one transaction, a wait that has ended before was in vain.
const LOAD = statement(`
  select /* handoff-notices.load */ h.id as "handoffId", h.project_id as "projectId", h.target_agent as "targetAgent", h.phase,
    case c.content->>'kind' when 'text' then to_json(c.content->>'text') else c.content->'data' end as result, coalesce(h.error, t.error) as error,
    h.told_agent_id as "agentId", a.tape_box_id as "boxId", h.source_agent_id as "makerId",
    h.is_awaited and exists (select from boxcar.tool_calls k where k.id = h.tool_call_id and (k.ended_at is null or k.ended_at >= h.ended_at)) as "isAwaited",
    (select x.id from boxcar.turns x where x.id = ${TURN_OF_HANDOFF}) as "causeId"
  from boxcar.handoffs h left join boxcar.agents a on a.id = h.told_agent_id left join boxcar.handoffs j on j.id = h.joined_to
    left join boxcar.turns t on t.id = coalesce(h.turn_id, j.turn_id) left join boxcar.cards c on c.id = t.deliverable_card_id
  where h.id = $1 and h.ended_at is not null and h.notifies`);

/** What is to be told of a handoff; undefined when nothing is. */
export async function loadHandoffNotice(
  db: Queryable,
  handoffId: HandoffId,
): Promise<HandoffNotice | undefined> {
  return (await run<HandoffNotice & pg.QueryResultRow>(db, LOAD, [handoffId]))[0];
}

const LOCK_HANDOFF = statement(
  'select /* handoff-notices.lock_handoff */ h.id from boxcar.handoffs h where h.id = $1 and h.notifies for no key update',
);
const TOLD = statement(
  'update /* handoff-notices.told */ boxcar.handoffs set notifies = false where id = $1 and notifies returning id',
);

export type HandoffTold =
  /** A turn reads it, or none is to. */
  | 'told'
  /** The agent has no turn that would read it. */
  | 'wake'
  /** The tape was reset meanwhile: look again. */
  | 'moved'
  /** It may not be told, or there is no tape to tell it on: nothing is told. */
  | 'forbidden';

/** What is written on the tape. */
export interface HandoffEntries {
  readonly entry: NewTapeEntry;
  /** The event of a refusal. */
  readonly why: (refusal: KernelError) => NewTapeEntry;
}

/** Appends the message to the tape of the agent that asked, once, and says who will read it (O2, O3). */
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
    // The maker tells by its own right; that it has none any more is said by the tape's agent.
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

/** Once the agent has a turn that reads it, or none is started: then its tape says why. */
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
