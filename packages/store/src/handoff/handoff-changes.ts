/**
 * The changes of a handoff, each with its events in the log.
 *
 * C1  A change and its events are one statement. The counter in the handoff's row numbers the events, so their order has no gaps.
 * C2  A change names the phases from which it is allowed. A later concurrent change has no effect.
 * C3  The process that saw the end of a turn records it in the turn's handoff, or the sweep does (`turns.notifies`). It may be recorded
 *     twice.
 */
import type {
  AgentId,
  ErrorBody,
  HandoffId,
  HandoffPhase,
  HandoffRequestType,
  HandoffSessionId,
  JsonObject,
  JsonValue,
  ProjectId,
  TicketId,
  ToolCallId,
  TurnId,
  WorkerId,
} from '@boxcar/kernel';
import { isFinalPhase, PHASE_MOVES } from '@boxcar/kernel';
import type pg from 'pg';
import { type Queryable, run, statement, type Tx } from '../db/index.js';
import { hasStatus } from '../turn/index.js';
import { IS_LEFT_HANDOFF, IS_ORPHAN } from '../work/index.js';
import { END_PHASE } from './handoffs.js';

/** An event to write. */
export interface NewHandoffEvent {
  readonly type: string;
  readonly data: JsonObject;
}

/** An event that a change has written, for the log of the process. */
export interface LoggedEvent extends pg.QueryResultRow {
  readonly handoff_id: HandoffId;
  readonly type: string;
  readonly data: JsonObject;
  /** For a handoff that this change has ended: its end must be sent to a receiver, or reported to the agent that requested it. */
  readonly calls_back: boolean;
  readonly notifies: boolean;
}

/** Writes the events of rows `c (id, seq)`: `seq` is the number before the first event, `events` a list of `{type, data}`. */
export const writeEvents = (changed: string, events: string): string => `
  logged as (
    insert into boxcar.handoff_events (handoff_id, seq, type, data)
    select c.id, c.seq + e.n, e.value->>'type', coalesce(e.value->'data', '{}')
    from ${changed} c
    cross join lateral jsonb_array_elements(${events}) with ordinality as e(value, n)
    returning handoff_id, seq, type, data
  )`;

/** The notifications that are needed at the end of handoff `h`. */
const WANTS = `
  (
    h.callback_url is not null
    or (h.public_agent is not null and exists (select from boxcar.push_configs p where p.handoff_id = h.id))
  ) as calls_back,
  h.notifies is true as notifies`;

// Two processes may record the end of one turn (C3). The handoffs are locked by id. The second process waits, then finds `ended_at` set,
// and writes nothing. The turn has ended, so its row does not change any more and needs no lock.
const CLOSE = statement(`
  with /* handoff-changes.close */
  t as materialized (
    select t.*
    from boxcar.turns t
    where t.id = $1 and t.ended_at is not null
  ),
  ids as materialized (
    select h.id
    from boxcar.handoffs h
    where (h.turn_id = $1 or h.joined_to in (select o.id from boxcar.handoffs o where o.turn_id = $1))
      and h.ended_at is null
    order by h.id
    for no key update of h
  ),
  c as (
    update boxcar.handoffs h
    set phase = ${END_PHASE},
      ended_at = t.ended_at,
      is_attempt_open = false,
      is_leading = false,
      event_count = h.event_count + 1
    from t, ids
    where h.id = ids.id and h.ended_at is null
    returning
      h.id, h.event_count - 1 as seq, h.phase, ${WANTS}, t.error,
      floor(extract(epoch from t.ended_at - h.created_at) * 1000)::bigint as duration_ms,
      h.ended_at
  ),
  told as (
    select
      c.id, c.seq,
      jsonb_build_array(jsonb_build_object(
        'type', case c.phase when 'completed' then 'handoff.completed' else 'handoff.failed' end,
        'data', jsonb_strip_nulls(jsonb_build_object(
          'status', case c.phase when 'completed' then 'completed' else 'failed' end,
          'phase', c.phase, 'duration_ms', c.duration_ms, 'completed_at', c.ended_at, 'code', c.error->>'code'
        ))
      )) as events
    from c
  ),
  ${writeEvents('told', 'c.events')}
  select l.handoff_id, l.type, l.data, c.calls_back, c.notifies
  from logged l
  join c on c.id = l.handoff_id`);

/**
 * Records the end of the handoff that a turn served, and of the handoffs that were joined to it (C3). @returns The events that were
 * written.
 */
export function closeOfTurn(db: Queryable, turnId: TurnId): Promise<LoggedEvent[]> {
  return run<LoggedEvent>(db, CLOSE, [turnId]);
}

/** The phases from which a phase can be reached. */
const sourcesOf = (to: HandoffPhase): readonly HandoffPhase[] =>
  (Object.keys(PHASE_MOVES) as HandoffPhase[]).filter((from) => PHASE_MOVES[from].includes(to));

// The rows are locked in the order in which they were made. Of two changes the second finds another phase, or a turn that now serves the
// handoff, and leaves the handoff out (C2).
const MOVE = statement(`
  with /* handoff-changes.move */
  lk as materialized (
    select h.id
    from boxcar.handoffs h
    where h.id = any ($1::uuid[])
      and h.phase = any ($10::text[])
      and h.ended_at is null
      and h.turn_id is null
      and h.joined_to is null
    order by h.created_at, h.id
    for no key update of h
  ),
  c as (
    update boxcar.handoffs h
    set
      phase = $2,
      ended_at = case when $3 then now() end,
      error = jsonb_set(
        $4::jsonb, '{details}', coalesce($4::jsonb->'details', '{}') || jsonb_build_object('handoff_id', h.id)
      ),
      turn_id = coalesce($5, h.turn_id),
      ticket_id = coalesce($6, h.ticket_id),
      joined_to = coalesce($7, h.joined_to),
      decision = coalesce($8::jsonb, h.decision),
      event_count = h.event_count + jsonb_array_length($9::jsonb)
    from lk
    where h.id = lk.id
    returning h.id, h.event_count - jsonb_array_length($9::jsonb) as seq, ${WANTS}
  ),
  ${writeEvents('c', '$9::jsonb')}
  select l.handoff_id, l.type, l.data, $3 and c.calls_back as calls_back, $3 and c.notifies as notifies
  from logged l
  join c on c.id = l.handoff_id
  order by l.handoff_id, l.seq`);

/**
 * Moves handoffs that no turn serves (C1, C2). @returns The events that were written; none for a handoff that has changed its phase
 * meanwhile.
 */
export function moveHandoffs(
  db: Queryable,
  handoffIds: readonly HandoffId[],
  to: {
    readonly phase: HandoffPhase;
    readonly events: readonly NewHandoffEvent[];
    /** The error of an end. Its details name the handoff. */
    readonly error?: ErrorBody | undefined;
    readonly turnId?: TurnId | undefined;
    readonly ticketId?: TicketId | undefined;
    readonly joinedTo?: HandoffId | undefined;
    readonly decision?: JsonObject | undefined;
  },
): Promise<LoggedEvent[]> {
  const json = (value: unknown): string | null => (value === undefined ? null : JSON.stringify(value));
  return run<LoggedEvent>(db, MOVE, [
    handoffIds,
    to.phase,
    isFinalPhase(to.phase),
    json(to.error),
    to.turnId ?? null,
    to.ticketId ?? null,
    to.joinedTo ?? null,
    json(to.decision),
    JSON.stringify(to.events),
    sourcesOf(to.phase),
  ]);
}

/** A handoff that waits for the decision about a ticket. */
export interface ParkedHandoff extends pg.QueryResultRow {
  readonly handoff_id: HandoffId;
  readonly project_id: ProjectId;
  readonly ticket_id: TicketId;
  readonly source_agent_id: string;
  readonly hop: number | null;
  readonly parent_turn_id: TurnId | null;
  readonly tool_call_id: ToolCallId | null;
  /** The call waits for the result of the handoff. */
  readonly is_awaited: boolean;
  /** The requesting turn has ended, or its call has another answer. */
  readonly is_orphan: boolean;
}

const PARKED_COLUMNS = `
  h.id as handoff_id, h.project_id, h.ticket_id, h.source_agent_id, h.hop, h.parent_turn_id, h.tool_call_id,
  h.is_awaited, ${IS_ORPHAN} as is_orphan`;

const PARKED = statement(`
  select /* handoff-changes.parked */ ${PARKED_COLUMNS}
  from boxcar.handoffs h
  where h.ticket_id = $1 and h.phase = 'awaiting_approval'
  order by h.created_at, h.id`);

/** Handoffs that wait for a ticket, the oldest first. */
export const findParked = (db: Queryable, ticketId: TicketId): Promise<ParkedHandoff[]> =>
  run<ParkedHandoff>(db, PARKED, [ticketId]);

/** A handoff that is about to begin after its approval. */
export interface BeginningHandoff extends ParkedHandoff {
  readonly source_agent: string;
  readonly target_agent: string;
  readonly platform: string;
  readonly context_box_id: string;
  readonly worker_target: string | null;
  readonly timeout_ms: number;
  readonly run_id: string | null;
  readonly callback_url: string | null;
  /** Null after erasure. */
  readonly task: string | null;
  readonly context: JsonObject | null;
  readonly payload: JsonValue;
  readonly decision: JsonObject | null;
  /** For a task from another platform: the agent of its conversation. */
  readonly serving_agent_id: AgentId | null;
  /** The session that is handed on. */
  readonly session_id: HandoffSessionId | null;
  readonly session_request: HandoffRequestType | null;
}

// The ticket's hashes were computed from the request; the cards contain the same text.
const LOCK_PARKED = statement(`
  select /* handoff-changes.lock_parked */
    ${PARKED_COLUMNS}, h.source_agent, h.target_agent, h.platform, h.context_box_id, h.worker_target,
    h.timeout_ms::float8 as timeout_ms, h.run_id, h.callback_url, h.decision, h.serving_agent_id, h.session_id,
    h.session_request,
    (select c.content->>'text' from boxcar.cards c where c.id = h.task_card_id) as task,
    (select c.content->'data' from boxcar.cards c where c.id = h.context_card_id) as context,
    (
      select case when c.metadata->>'wrapped' = 'true' then c.content->'data'->'payload' else c.content->'data' end
      from boxcar.cards c
      where c.id = h.payload_card_id
    ) as payload
  from boxcar.handoffs h
  where h.ticket_id = $1 and h.phase = 'awaiting_approval'
  order by h.created_at, h.id
  for no key update of h`);

/** Locks the handoffs that wait for a ticket, the oldest first. */
export const lockParked = (tx: Tx, ticketId: TicketId): Promise<BeginningHandoff[]> =>
  run<BeginningHandoff>(tx, LOCK_PARKED, [ticketId]);

const LEFT = statement(`
  select /* handoff-changes.left */ distinct h.ticket_id
  from boxcar.handoffs h
  join boxcar.approvals a on a.id = h.ticket_id
  where ${IS_LEFT_HANDOFF}
  limit $2`);

/** Tickets whose handoffs still wait: a process died after the decision, or the requesting call is over. */
export async function findLeftTickets(
  db: Queryable,
  options: { readonly limit: number; readonly now?: Date | undefined },
): Promise<readonly TicketId[]> {
  const rows = await run<{ ticket_id: TicketId }>(db, LEFT, [options.now ?? null, options.limit]);
  return rows.map(({ ticket_id }) => ticket_id);
}

/** The deadline of handoff `h` if its wait for replies ends now. */
const DEADLINE_FROM_NOW = `h.deadline_at + coalesce(now() - h.asking_since, interval '0')`;

/**
 * Closes the open questions of handoffs `c`, because no attempt waits for the replies any more; the next attempt asks again
 * (`messages.ts`, Q2).
 */
const leaveQuestions = (changed: string): string => `
  left_open as (
    update boxcar.handoff_messages q
    set closed_at = now()
    from ${changed} c
    where q.handoff_id = c.id and q.replies_to is null and q.closed_at is null
  )`;

// The turn is locked first, by its epoch and holder, then its handoff. So a takeover comes before this statement, which then finds another
// epoch, or after it, and then the new holder sees the open attempt. After a lost answer the same claim asks again: the attempt is already
// counted.
const BEGIN_ATTEMPT = statement(`
  with /* handoff-changes.begin_attempt */
  held as materialized (
    select t.id
    from boxcar.turns t
    where t.id = $1 and t.epoch = $2 and t.holder_id = $3 and ${hasStatus('running')}
    for no key update
  ),
  lk as (
    select
      h.id, h.attempts, d.deadline_at,
      (extract(epoch from d.deadline_at - clock_timestamp()) * 1000)::float8 as remaining_ms
    from held
    join boxcar.handoffs h on h.turn_id = held.id
    cross join lateral (
      select coalesce(${DEADLINE_FROM_NOW}, now() + h.timeout_ms * interval '1 millisecond') as deadline_at
    ) d
    where h.ended_at is null and h.attempts between $4 - 1 and $4
    for no key update of h
  ),
  c as (
    update boxcar.handoffs h
    set attempts = $4,
      is_attempt_open = true,
      phase = 'in_progress',
      event_count = h.event_count + 1,
      deadline_at = lk.deadline_at,
      asking_since = null
    from lk
    where h.id = lk.id and lk.attempts < $4 and lk.remaining_ms > 0
    returning h.id, h.event_count - 1 as seq, h.attempts
  ),
  ${leaveQuestions('c')},
  ${writeEvents(
    'c',
    `
      jsonb_build_array(jsonb_build_object(
        'type', 'handoff.started', 'data', jsonb_build_object('attempt', c.attempts)
      ))`,
  )}
  select lk.remaining_ms
  from lk`);

/**
 * Begins an attempt, under the fence of the turn, if time is left. @returns How long the attempt may take; undefined when another worker
 * holds the turn.
 */
export async function beginAttempt(
  db: Queryable,
  held: {
    readonly turnId: TurnId;
    readonly epoch: number;
    readonly holderId: WorkerId;
    /** The number of the attempt: the count that the claim has found, plus one. */
    readonly attempt: number;
  },
): Promise<number | undefined> {
  const { turnId, epoch, holderId, attempt } = held;
  const [row] = await run<{ remaining_ms: number }>(db, BEGIN_ATTEMPT, [turnId, epoch, holderId, attempt]);
  return row?.remaining_ms;
}

// The turn is locked first, by its epoch, holder and status, then its handoff by the UPDATE. After a takeover, an end or a cancel nothing
// is written.
const RETRY_ATTEMPT = statement(`
  with /* handoff-changes.retry_attempt */
  lk as (
    select t.id, t.project_id
    from boxcar.turns t
    where t.id = $1 and t.epoch = $2 and t.holder_id = $3 and ${hasStatus('running')}
    for update
  ),
  closed as (
    update boxcar.steps s
    set error = $4::jsonb, finish_reason = 'error'
    from lk
    where s.turn_id = lk.id and s.step = $5 and s.attempt = $6
  ),
  up as (
    update boxcar.turns t
    set status = 'suspended',
      holder_id = null,
      retries = t.retries + 1,
      losses = 0,
      spent_tokens = t.spent_tokens + $8::bigint,
      spent_cost = t.spent_cost + $9::bigint
    from lk
    where t.id = lk.id
  ),
  c as (
    update boxcar.handoffs h
    set is_attempt_open = false,
      remote_task = null,
      phase = 'queued',
      event_count = h.event_count + 1,
      deadline_at = ${DEADLINE_FROM_NOW},
      asking_since = null
    from lk
    where h.turn_id = lk.id and h.ended_at is null
    returning h.id, h.event_count - 1 as seq, h.attempts
  ),
  ${leaveQuestions('c')},
  ${writeEvents(
    'c',
    `
      jsonb_build_array(jsonb_build_object(
        'type', 'handoff.retrying',
        'data', jsonb_build_object('attempt', c.attempts, 'code', $4::jsonb->>'code', 'delay_ms', round($7::float8))
      ))`,
  )}
  insert into boxcar.waits (turn_id, project_id, kind, due_at, detail)
  select
    lk.id, lk.project_id, 'retry',
    clock_timestamp() + $7::float8 * interval '1 millisecond',
    jsonb_build_object(
      'step', $5::int,
      'retry', (select attempts from c),
      'attempt', $6::int, 'code', $4::jsonb->>'code', 'message', left($4::jsonb->>'message', 300)
    )
  from lk
  returning turn_id`);

/**
 * Suspends a turn whose attempt failed until the next attempt, and closes the failed attempt. @returns False when another worker holds the
 * turn.
 */
export async function retryAttempt(
  db: Queryable,
  failed: {
    readonly turnId: TurnId;
    readonly epoch: number;
    readonly holderId: WorkerId;
    readonly step: number;
    readonly attempt: number;
    readonly error: ErrorBody;
    readonly delayMs: number;
    readonly spent: { readonly tokens: number; readonly costMicros: number } | undefined;
  },
): Promise<boolean> {
  const rows = await run(db, RETRY_ATTEMPT, [
    failed.turnId,
    failed.epoch,
    failed.holderId,
    JSON.stringify(failed.error),
    failed.step,
    failed.attempt,
    failed.delayMs,
    failed.spent?.tokens ?? 0,
    failed.spent?.costMicros ?? 0,
  ]);
  return rows.length > 0;
}
