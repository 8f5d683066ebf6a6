/**
 * Approval tickets: requests that wait for the decision of a person.
 *
 * A1  Identical requests share a ticket while it is pending: same run, tool, arguments, context, payload and policy. After the decision or
 *     the expiry, no request joins the ticket.
 * A2  A ticket is decided once: by the first decision before it expires, or by its expiry. Later callers get the earlier decision. A
 *     decision that comes too late expires the ticket itself.
 * A3  An approved ticket is consumed once, and only for the approved request: the consuming statement compares all hashes.
 * A4  The arguments are in a card, masked, so that they can be erased.
 * Rule: docs/reference/approvals.md.
 */
import type {
  AgentId,
  CardId,
  JsonObject,
  JsonValue,
  NewCard,
  Principal,
  ProjectId,
  TicketId,
  TicketStatus,
  ToolCallId,
  TurnId,
} from '@boxcar/kernel';
import type pg from 'pg';
import { type Queryable, run, statement, type Tx } from '../db/index.js';
import { CARD_COLUMNS, CARD_TARGET, CARD_VALUES, cardRecord } from '../rows/index.js';

export const APPROVALS_CHANNEL = 'boxcar_approvals';
/** The resolver of an expired ticket. */
const AUTO_EXPIRE = 'system:auto-expire';
const EXPIRED_REASON = 'Approval request expired';

/** The hashes to which an approval is bound. */
export interface TicketHashes {
  readonly argsHash: string;
  /** Empty without a context. */
  readonly contextHash: string;
  readonly payloadHash: string;
  readonly policyVersion: string;
}

export interface NewTicket extends TicketHashes {
  readonly id: TicketId;
  readonly projectId: ProjectId;
  /** Any text that the caller chooses. */
  readonly runId: string;
  /** The waiting call and its turn; null for an external request. */
  readonly turnId: TurnId | null;
  readonly toolCallId: ToolCallId | null;
  readonly agent: string;
  readonly toolName: string;
  /** The arguments, masked. */
  readonly card: NewCard;
  readonly timeoutMs: number;
  /** How long the call may take after its begin; null without a call. */
  readonly callMs: number | null;
  readonly metadata: JsonObject;
}

/** A ticket as read from the database. */
export interface TicketRow extends pg.QueryResultRow {
  readonly id: TicketId;
  readonly project_id: ProjectId;
  readonly run_id: string;
  readonly turn_id: TurnId | null;
  readonly tool_call_id: ToolCallId | null;
  readonly agent: string;
  readonly tool_name: string;
  readonly card_id: CardId;
  /** Null after erasure. */
  readonly args: JsonValue;
  readonly args_hash: string;
  readonly context_hash: string;
  readonly payload_hash: string;
  readonly policy_version: string;
  readonly status: TicketStatus;
  readonly created_at: Date;
  readonly expires_at: Date;
  readonly resolved_at: Date | null;
  readonly resolved_by: string | null;
  readonly decision_reason: string | null;
  readonly response: JsonObject | null;
  readonly consumed_at: Date | null;
  readonly voided_at: Date | null;
  readonly metadata: JsonObject;
}

const NOW = 'coalesce($1::timestamptz, now())';

/** Columns of a ticket `a` and its card `c`. */
const TICKET = `
  a.id, a.project_id, a.run_id, a.turn_id, a.tool_call_id, a.agent, a.tool_name, a.card_id, c.content->'data' as args,
  a.args_hash, a.context_hash, a.payload_hash, a.policy_version, a.status, a.created_at, a.expires_at, a.resolved_at,
  a.resolved_by, a.decision_reason, a.response, a.consumed_at, a.voided_at, a.metadata`;

/** The values of an expired ticket `a`. */
const EXPIRE = `
  status = 'expired',
  resolved_at = ${NOW},
  resolved_by = '${AUTO_EXPIRE}',
  decision_reason = '${EXPIRED_REASON}',
  response = '{"reason": "expired"}'`;

const IS_SAME = `
  a.project_id = $2
  and a.run_id = $3
  and a.tool_name = $4
  and a.args_hash = $5
  and a.context_hash = $6
  and a.payload_hash = $7
  and a.policy_version = $8`;

const EXPIRE_SAME = statement(`
  with /* tickets.expire_same */
  over as (
    update boxcar.approvals a
    set ${EXPIRE}
    where ${IS_SAME} and a.status = 'pending' and a.expires_at <= ${NOW}
    returning a.id
  )
  select pg_notify('${APPROVALS_CHANNEL}', o.id::text)
  from over o`);

// A request that conflicts with a ticket waits for a decision in progress, and then makes a new ticket. A repeated request after a lost
// answer finds its own ticket.
const REQUEST = statement(`
  with /* tickets.request */
  made as (
    insert into boxcar.approvals as a (
      id, project_id, run_id, turn_id, tool_call_id, agent, tool_name, card_id, args_hash, context_hash, payload_hash,
      policy_version, created_at, expires_at, metadata, call_ms
    )
    values (
      $9, $2, $3, $10, $11, $12, $4, ($13::json->>'id')::uuid, $5, $6, $7, $8, ${NOW},
      ${NOW} + $14 * interval '1 millisecond', $15, $16
    )
    on conflict (project_id, run_id, tool_name, args_hash, context_hash, payload_hash, policy_version)
      where status = 'pending'
      do update set agent = a.agent
    returning a.id, a.card_id
  ),
  cards as (
    insert into ${CARD_TARGET}
    select ${CARD_VALUES}
    from json_to_record($13) as x(${CARD_COLUMNS})
    join made m on m.card_id = x.id
    on conflict (id) do nothing
  )
  select m.id, m.id = $9 as is_new
  from made m`);

export interface RequestedTicket {
  readonly id: TicketId;
  /** False: an identical request is already pending (A1). */
  readonly isNew: boolean;
}

/** Makes a ticket, or finds the ticket of an identical pending request (A1). */
export async function requestApproval(
  tx: Tx,
  ticket: NewTicket,
  options: { readonly now?: Date | undefined } = {},
): Promise<RequestedTicket> {
  const same = [
    options.now ?? null,
    ticket.projectId,
    ticket.runId,
    ticket.toolName,
    ticket.argsHash,
    ticket.contextHash,
    ticket.payloadHash,
    ticket.policyVersion,
  ];
  await run(tx, EXPIRE_SAME, same);
  const [row] = await run<{ id: TicketId; is_new: boolean }>(tx, REQUEST, [
    ...same,
    ticket.id,
    ticket.turnId,
    ticket.toolCallId,
    ticket.agent,
    JSON.stringify(cardRecord(ticket.card)),
    ticket.timeoutMs,
    JSON.stringify(ticket.metadata),
    ticket.callMs,
  ]);
  if (row === undefined) throw new Error('a ticket was neither made nor found');
  return { id: row.id, isNew: row.is_new };
}

const DECIDE = statement(`
  with /* tickets.decide */
  decided as (
    update boxcar.approvals a
    set status = case when a.expires_at > ${NOW} then $4 else 'expired' end,
      resolved_at = ${NOW},
      resolved_by = case when a.expires_at > ${NOW} then $5::jsonb->>'id' else '${AUTO_EXPIRE}' end,
      principal = case when a.expires_at > ${NOW} then $5::jsonb end,
      decision_reason = case when a.expires_at > ${NOW} then $6 else '${EXPIRED_REASON}' end,
      response = case when a.expires_at > ${NOW} then $7::json else '{"reason": "expired"}' end
    where a.id = $2 and a.project_id = $3 and a.status = 'pending'
    returning a.id, a.status, a.turn_id, a.tool_call_id
  ),
  told as (select pg_notify('${APPROVALS_CHANNEL}', d.id::text) from decided d)
  select
    d.status, d.turn_id, d.tool_call_id,
    (select count(*) from told)::int as told
  from decided d`);

export interface Decision {
  readonly ticketId: TicketId;
  readonly projectId: ProjectId;
  readonly status: 'approved' | 'denied';
  readonly principal: Principal;
  readonly reason: string | null;
  readonly response: JsonObject | null;
}

/**
 * Decides a ticket (A2).
 *
 * @returns The status that this call has set, `expired` when it came too late; undefined when the ticket was already decided or does not
 * exist.
 */
export async function decideTicket(
  tx: Queryable,
  decision: Decision,
  options: { readonly now?: Date | undefined } = {},
): Promise<
  | { readonly status: TicketStatus; readonly turnId: TurnId | null; readonly toolCallId: ToolCallId | null }
  | undefined
> {
  const [row] = await run<{
    status: TicketStatus;
    turn_id: TurnId | null;
    tool_call_id: ToolCallId | null;
    told: number;
  }>(tx, DECIDE, [
    options.now ?? null,
    decision.ticketId,
    decision.projectId,
    decision.status,
    JSON.stringify(decision.principal),
    decision.reason,
    decision.response === null ? null : JSON.stringify(decision.response),
  ]);
  return row && { status: row.status, turnId: row.turn_id, toolCallId: row.tool_call_id };
}

const CONSUME = statement(`
  update /* tickets.consume */ boxcar.approvals a
  set consumed_at = ${NOW}
  where a.id = $2
    and a.project_id = $3
    and a.status = 'approved'
    and a.consumed_at is null
    and a.voided_at is null
    and a.args_hash = $4
    and a.context_hash = $5
    and a.payload_hash = $6
    and a.policy_version = $7
  returning a.id`);

/**
 * Consumes an approved ticket for the approved request (A3). @returns False when the ticket is not approved, was consumed, or is for
 * another request.
 */
export async function consumeTicket(
  tx: Queryable,
  {
    ticketId,
    projectId,
    ...hashes
  }: TicketHashes & { readonly ticketId: TicketId; readonly projectId: ProjectId },
  options: { readonly now?: Date | undefined } = {},
): Promise<boolean> {
  const rows = await run(tx, CONSUME, [
    options.now ?? null,
    ticketId,
    projectId,
    hashes.argsHash,
    hashes.contextHash,
    hashes.payloadHash,
    hashes.policyVersion,
  ]);
  return rows.length === 1;
}

const VOID = statement(`
  update /* tickets.void */ boxcar.approvals a
  set voided_at = ${NOW}
  where a.id = $2
    and a.project_id = $3
    and a.consumed_at is null
    and a.voided_at is null
  returning a.id`);

/** Voids a ticket because the policy has changed since its decision: the approval has no effect any more. */
export async function voidTicket(
  tx: Queryable,
  { ticketId, projectId }: { readonly ticketId: TicketId; readonly projectId: ProjectId },
  options: { readonly now?: Date | undefined } = {},
): Promise<boolean> {
  return (await run(tx, VOID, [options.now ?? null, ticketId, projectId])).length === 1;
}

const CLOSE = statement(`
  with /* tickets.close */
  closed as (
    update boxcar.approvals a
    set voided_at = ${NOW},
      status = case a.status when 'pending' then 'expired' else a.status end,
      resolved_at = coalesce(a.resolved_at, ${NOW}),
      resolved_by = coalesce(a.resolved_by, 'system:turn-ended'),
      decision_reason = case a.status when 'pending' then 'The turn has ended' else a.decision_reason end
    where a.id = $2
      and a.project_id = $3
      and a.consumed_at is null
      and a.voided_at is null
      and not exists (select from boxcar.handoffs h where h.ticket_id = a.id and h.phase = 'awaiting_approval')
    returning a.id
  )
  select pg_notify('${APPROVALS_CHANNEL}', c.id::text)
  from closed c`);

/** Sets a ticket aside when no handoff waits for it any more. It must not be decided. */
export async function closeTicket(
  tx: Queryable,
  { ticketId, projectId }: { readonly ticketId: TicketId; readonly projectId: ProjectId },
  options: { readonly now?: Date | undefined } = {},
): Promise<void> {
  await run(tx, CLOSE, [options.now ?? null, ticketId, projectId]);
}

const EXPIRE_DUE = statement(`
  with /* tickets.expire_due */
  due as (
    select a.id
    from boxcar.approvals a
    where a.status = 'pending' and a.expires_at <= ${NOW}
    order by a.expires_at
    limit $2
    for no key update skip locked
  ),
  over as (
    update boxcar.approvals a
    set ${EXPIRE}
    from due
    where a.id = due.id and a.status = 'pending'
    returning a.id, a.project_id, a.turn_id, a.tool_call_id
  ),
  told as (select pg_notify('${APPROVALS_CHANNEL}', o.id::text) from over o)
  select
    o.id, o.project_id, o.turn_id, o.tool_call_id,
    (select count(*) from told)::int as told
  from over o`);

export interface ExpiredTicket {
  readonly id: TicketId;
  readonly projectId: ProjectId;
  readonly turnId: TurnId | null;
  readonly toolCallId: ToolCallId | null;
}

/** Expires tickets whose time is over. Tickets that are being decided at this moment are left to the next call. */
export async function expireDueTickets(
  tx: Queryable,
  options: { readonly limit: number; readonly now?: Date | undefined },
): Promise<readonly ExpiredTicket[]> {
  const rows = await run<{
    id: TicketId;
    project_id: ProjectId;
    turn_id: TurnId | null;
    tool_call_id: ToolCallId | null;
    told: number;
  }>(tx, EXPIRE_DUE, [options.now ?? null, options.limit]);
  return rows.map((row) => ({
    id: row.id,
    projectId: row.project_id,
    turnId: row.turn_id,
    toolCallId: row.tool_call_id,
  }));
}

const FIND = statement(`
  select /* tickets.find */ ${TICKET}
  from boxcar.approvals a
  join boxcar.cards c on c.id = a.card_id
  where a.id = $1 and a.project_id = $2`);

export async function findTicket(
  db: Queryable,
  { ticketId, projectId }: { readonly ticketId: TicketId; readonly projectId: ProjectId },
): Promise<TicketRow | undefined> {
  const [row] = await run<TicketRow>(db, FIND, [ticketId, projectId]);
  return row;
}

const PENDING = statement(`
  select /* tickets.pending */ a.id
  from boxcar.approvals a
  where a.id = any ($1::uuid[]) and a.status = 'pending' and a.expires_at > now()`);

/** The ids of the given tickets that are still pending. */
export const findPending = async (db: Queryable, ids: readonly TicketId[]): Promise<readonly TicketId[]> =>
  (await run<{ id: TicketId }>(db, PENDING, [ids])).map(({ id }) => id);

const KEEP_POLICY = statement(`
  insert /* tickets.keep_policy */ into boxcar.policies (version, content)
  values ($1, $2)
  on conflict (version) do nothing`);

/** Keeps the text of a policy by which a decision was made. */
export async function keepPolicy(
  db: Queryable,
  policy: { readonly version: string; readonly text: string },
): Promise<void> {
  await run(db, KEEP_POLICY, [policy.version, policy.text]);
}

/** The filters of a list of tickets. */
export interface TicketFilters {
  readonly projectId: ProjectId;
  readonly status?: TicketStatus | undefined;
  /** The run as the caller named it, or the run of the turn. */
  readonly runId?: string | undefined;
  /** The name of the requesting agent. */
  readonly agent?: string | undefined;
  /** Only tickets of turns and handoffs of this agent. External requests may use any name. */
  readonly agentId?: AgentId | undefined;
  readonly limit: number;
  /** The last ticket of the previous page. */
  readonly after?: { readonly at: string; readonly id: string } | undefined;
}

/** A ticket of a list, with its place in the list. */
export interface ListedTicket extends TicketRow {
  /** ISO 8601, to the microsecond. */
  readonly place_at: string;
}

const LIST = statement(`
  select /* tickets.list */
    ${TICKET},
    to_char(a.created_at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"') as place_at
  from (
    select x.*
    from boxcar.approvals x
    where x.project_id = $1
      and (x.status = $2 or $2 is null)
      and (x.run_id = $3 or $3 is null)
      and (x.agent = $4 or $4 is null)
      and ($5::timestamptz is null or (x.created_at, x.id) < ($5, $6::uuid))
      and (
        $8::uuid is null
        or exists (select from boxcar.turns t where t.id = x.turn_id and t.agent_id = $8)
        or exists (select from boxcar.handoffs h where h.ticket_id = x.id and h.source_agent_id = $8)
      )
    order by x.created_at desc, x.id desc
    limit $7
  ) a
  join boxcar.cards c on c.id = a.card_id
  order by a.created_at desc, a.id desc`);

/** Tickets of a project, the newest first, including decided tickets. */
export function listTickets(db: Queryable, filters: TicketFilters): Promise<ListedTicket[]> {
  const { projectId, status = null, runId = null, agent = null, agentId = null, after, limit } = filters;
  return run<ListedTicket>(db, LIST, [
    projectId,
    status,
    runId,
    agent,
    after?.at ?? null,
    after?.id ?? null,
    limit,
    agentId,
  ]);
}
