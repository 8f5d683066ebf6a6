/**
 * Packages: sessions that were handed on, but not to an agent of this installation. An external agent fetches a package and later reports
 * the outcome.
 *
 * P1  A package is a handoff that no turn serves. Its row is locked before it is judged: of two concurrent fetches, the second finds the
 *     package already fetched.
 * P2  The agent that fetches a package gets its own right to read the session up to the handoff.
 */
import type {
  AgentId,
  BoxId,
  HandoffId,
  HandoffPhase,
  HandoffRequestType,
  HandoffSessionId,
  JsonObject,
  NewCard,
} from '@boxcar/kernel';
import type pg from 'pg';
import { type Queryable, run, statement, type Tx, transaction } from '../db/index.js';
import { type LoggedEvent, moveHandoffs, type NewHandoffEvent } from '../handoff/index.js';
import { CARD_COLUMNS, CARD_TARGET, CARD_VALUES, cardRecord } from '../rows/index.js';
import type { TapeActor } from '../tape/index.js';
import { grantSession } from './write-session.js';

export interface SessionPackage extends pg.QueryResultRow {
  readonly handoff_id: HandoffId;
  readonly phase: HandoffPhase;
  readonly source_agent: string;
  readonly target_agent: string;
  readonly session_request: HandoffRequestType;
  /** Null: the session has not been handed on yet. */
  readonly session_head: number | null;
  /** Null after a purge. */
  readonly session_id: HandoffSessionId | null;
  readonly session_key: string | null;
  readonly tape_box_id: BoxId | null;
  /** The agent that has fetched the package. */
  readonly holder_id: AgentId | null;
  /** A turn serves the handoff, so it is not a package. */
  readonly is_served: boolean;
  /** The context as packed for the request; null after erasure. */
  readonly context: JsonObject | null;
  readonly created_at: Date;
  /** Whether the actor is the agent for which the package was made; below, whether it is the operator or the requesting agent. */
  readonly is_target: boolean;
  readonly is_operator: boolean;
  readonly is_source: boolean;
  readonly now: Date;
}

const PACKAGE = `
  h.id as handoff_id, h.phase, h.source_agent, h.target_agent, h.session_request, h.session_head, h.session_id,
  s.session_key, s.tape_box_id, h.serving_agent_id as holder_id,
  h.turn_id is not null or h.joined_to is not null as is_served,
  (select c.content->'data' from boxcar.cards c where c.id = h.context_card_id) as context,
  h.created_at,
  coalesce((select a.name = h.target_agent from boxcar.agents a where a.id = $2), false) as is_target,
  exists (select from boxcar.projects p where p.id = $1 and p.operator_agent_id = $2) as is_operator,
  h.source_agent_id = $2 as is_source, statement_timestamp() as now
  from boxcar.handoffs h
  left join boxcar.handoff_sessions s on s.id = h.session_id`;

const FIND = statement(
  `select /* packages.find */ ${PACKAGE} where h.project_id = $1 and h.id = $3 and h.session_request is not null`,
);

export async function findSessionPackage(
  db: Queryable,
  { projectId, actorId }: TapeActor,
  handoffId: HandoffId,
): Promise<SessionPackage | undefined> {
  return (await run<SessionPackage>(db, FIND, [projectId, actorId, handoffId]))[0];
}

const NEWEST = statement(`
  select /* packages.newest */ ${PACKAGE}
  where h.project_id = $1
    and s.project_id = $1
    and s.session_key = $3
    and h.target_agent = $4
    and h.session_head is not null
  order by h.created_at desc, h.id desc
  limit 1`);

/** The newest handoff of a session to a target. */
export async function findNewestPackage(
  db: Queryable,
  { projectId, actorId }: TapeActor,
  of: { readonly sessionKey: string; readonly targetAgent: string },
): Promise<SessionPackage | undefined> {
  return (await run<SessionPackage>(db, NEWEST, [projectId, actorId, of.sessionKey, of.targetAgent]))[0];
}

const LOCK = statement(
  'select /* packages.lock */ h.id from boxcar.handoffs h where h.id = $1 and h.project_id = $2 for no key update',
);
const HOLD = statement('update /* packages.hold */ boxcar.handoffs set serving_agent_id = $2 where id = $1');
const RESULT = statement(`
  with /* packages.result */
  cards as (
    insert into ${CARD_TARGET}
    select ${CARD_VALUES}
    from json_to_record($2) as x(${CARD_COLUMNS})
    returning id
  )
  update boxcar.handoffs h
  set result_card_id = c.id
  from cards c
  where h.id = $1`);

// Deletes the right that the agent got when it fetched the package. A right that another agent has given stays. The right also stays while
// another handoff of the session, which has not been canceled, lets the agent append.
const END_APPENDING = statement(`
  delete /* packages.end_appending */ from boxcar.grants g
  where g.box_id = $1
    and g.agent_id = $2
    and g.mode = 'append'
    and g.source = $2::text
    and not exists (
      select from boxcar.handoff_sessions s
      join boxcar.handoffs o on o.session_id = s.id
      left join boxcar.turns t on t.id = o.turn_id
      where s.tape_box_id = $1
        and o.id <> $3
        and o.session_request = 'collaboration'
        and o.session_head is not null
        and o.phase not in ('canceled', 'rejected', 'failed')
        and coalesce(t.agent_id, o.serving_agent_id) = $2
    )`);

/** A change of a package. */
export interface PackageMove {
  readonly phase: Extract<HandoffPhase, 'in_progress' | 'rejected' | 'canceled' | 'completed'>;
  readonly event: NewHandoffEvent;
  readonly error?: Parameters<typeof moveHandoffs>[2]['error'];
  readonly result?: NewCard | undefined;
}

async function move(
  tx: Tx,
  { projectId, actorId }: TapeActor,
  of: PackageMove & { readonly found: SessionPackage },
): Promise<readonly LoggedEvent[]> {
  const { found, phase, event, error, result } = of;
  const { handoff_id, tape_box_id, session_head, is_operator, session_request } = found;
  if (result !== undefined) await run(tx, RESULT, [handoff_id, JSON.stringify(cardRecord(result))]);
  if (phase === 'canceled' && found.holder_id !== null && tape_box_id !== null)
    await run(tx, END_APPENDING, [tape_box_id, found.holder_id, handoff_id]);
  if (phase !== 'completed') await run(tx, HOLD, [handoff_id, actorId]);
  if (phase === 'in_progress' && !is_operator && tape_box_id !== null)
    await grantSession(
      tx,
      { projectId, actorId },
      {
        boxId: tape_box_id,
        agentIds: [actorId],
        upto: session_request === 'collaboration' ? null : session_head,
      },
    );
  return moveHandoffs(tx, [handoff_id], { phase, events: [event], error });
}

/**
 * Moves a package as `decide` says. `decide` sees the locked package. It returns undefined when the move was already made.
 *
 * @param decide - Throws where the move is not allowed.
 */
export function movePackage(
  pool: pg.Pool,
  actor: TapeActor,
  {
    handoffId,
    decide,
  }: {
    readonly handoffId: HandoffId;
    readonly decide: (found: SessionPackage | undefined) => PackageMove | undefined;
  },
): Promise<readonly LoggedEvent[]> {
  return transaction(pool, async (tx) => {
    const locked = run(tx, LOCK, [handoffId, actor.projectId]);
    const [, found] = await Promise.all([locked, findSessionPackage(tx, actor, handoffId)]);
    const decided = decide(found);
    return found === undefined || decided === undefined ? [] : move(tx, actor, { ...decided, found });
  });
}
