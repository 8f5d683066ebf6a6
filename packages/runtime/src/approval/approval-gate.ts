/** Who decides: tickets are read, decided and waited for from any process. Rule: docs/approvals.md. */
import { setTimeout as delay } from 'node:timers/promises';
import {
  type ApprovalTicket,
  errorText,
  isCleanText,
  isJsonObject,
  type JsonObject,
  KernelError,
  type Principal,
  type ProjectId,
  parseId,
  parseJsonValue,
  safeParse,
  TICKET_STATUSES,
  type TicketId,
  type TicketStatus,
  type TurnId,
  toBadRequest,
  tryParseId,
} from '@boxcar/kernel';
import { decideTicket, findTicket, listTickets, type TicketRow, wakeDecided } from '@boxcar/store';
import { z } from 'zod';
import type { RuntimeCore } from '../core/index.js';
import { expireDue } from './expire-due.js';

/** What a decision needs. */
const MAY_DECIDE = 'approvals:write';

const OPERATOR: Principal = { id: 'operator', kind: 'person', scopes: [MAY_DECIDE] };
const DEFAULT_PROJECT = '00000000-0000-7000-8000-000000000001' as ProjectId;
const MAX_REASON = 1_000;
/** How often a waiting process looks. */
const LOOK_MS = 250;
/** Requests that a process expires together while it waits for one. */
const EXPIRED_AT_ONCE = 100;

export interface DecideOptions {
  /** Default: the operator. */
  readonly principal?: Principal | undefined;
  readonly reason?: string | undefined;
  readonly response?: JsonObject | undefined;
}

const iso = (at: Date | null): string | null => at?.toISOString() ?? null;

/** A ticket on the wire (`approval_ticket.schema.json`). What the schema has no field for is in `metadata`. */
const toApprovalTicket = (row: TicketRow): ApprovalTicket => ({
  ticket_id: row.id,
  run_id: row.run_id,
  agent_slug: row.agent,
  tool_name: row.tool_name,
  tool_args: isJsonObject(row.args) ? row.args : { erased: true },
  args_hash: row.args_hash,
  requested_at: row.created_at.toISOString(),
  expires_at: row.expires_at.toISOString(),
  status: row.status,
  step_id: null,
  resolved_at: iso(row.resolved_at),
  resolved_by: row.resolved_by,
  decision_reason: row.decision_reason,
  metadata: {
    ...row.metadata,
    // What an erasure is given.
    card_id: row.card_id,
    ...(row.turn_id === null ? {} : { turn_id: row.turn_id, tool_call_id: row.tool_call_id }),
    ...(row.context_hash === '' ? {} : { context_hash: row.context_hash }),
    ...(row.payload_hash === '' ? {} : { payload_hash: row.payload_hash }),
    ...(row.policy_version === '' ? {} : { policy_version: row.policy_version }),
  },
  response: row.response,
});

const resolved = (ticket: TicketRow, status: string): KernelError =>
  new KernelError('approval_resolved', {
    message: `Approval ticket ${ticket.id} already ${status}`,
    next: '',
    details: { ticket_id: ticket.id, status },
  });

export interface ListTicketsOptions {
  readonly status?: TicketStatus | undefined;
  /** The run as its caller named it, or the run of the turn that asks. */
  readonly run_id?: string | undefined;
  /** The name of the agent that asks. */
  readonly agent?: string | undefined;
  /** 1 to 1,000; default 50. */
  readonly limit?: number | undefined;
  /** `next_cursor` of the page before. */
  readonly cursor?: string | undefined;
}

const cleanText = z.string().refine(isCleanText, 'must be without NUL characters and lone surrogates');

const CURSOR = /^approvals:(?<at>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)\.\d{6}Z:(?<id>[0-9a-f-]{36})$/;

/** Days that there are not have the form of a time, too. */
function isCursor(text: string): boolean {
  const { at = '', id = '' } = CURSOR.exec(text)?.groups ?? {};
  const time = new Date(`${at}Z`);
  return tryParseId(id) !== undefined && !Number.isNaN(time.valueOf()) && time.toISOString().startsWith(at);
}

const optionsSchema = z.strictObject({
  status: z.enum(TICKET_STATUSES).optional(),
  run_id: cleanText.min(1).optional(),
  agent: cleanText.min(1).optional(),
  limit: z.int().min(1).max(1_000).default(50),
  cursor: z.string().refine(isCursor, 'must be the next_cursor of a page of approvals').optional(),
});

const isNotBlank = (text: string): boolean => text.trim() !== '';

const decisionSchema = z.strictObject({
  // What else it may hold is not kept.
  principal: z
    .object({
      id: cleanText.max(MAX_REASON).refine(isNotBlank, 'must not be blank'),
      kind: z.enum(['person', 'agent', 'key']),
      scopes: z.array(cleanText).readonly(),
    })
    .default(OPERATOR),
  reason: cleanText
    .max(MAX_REASON)
    .refine(isNotBlank, `must have 1 to ${MAX_REASON} characters`)
    .nullable()
    .default(null),
  response: z
    .custom<JsonObject>((value) => isJsonObject(value), 'must be an object')
    .nullable()
    .default(null),
});

/** A page of tickets, the newest first. */
export interface TicketPage {
  readonly approvals: readonly ApprovalTicket[];
  /** Null: there is no more. */
  readonly next_cursor: string | null;
}

const placeIn = (cursor: string): { readonly at: string; readonly id: string } => ({
  at: cursor.slice(10, 37),
  id: cursor.slice(38),
});

/** Decides and reads tickets of a project. */
export class ApprovalGate {
  readonly #runtime: RuntimeCore;
  readonly #projectId: ProjectId;

  constructor(options: { readonly runtime: RuntimeCore; readonly projectId?: ProjectId | undefined }) {
    this.#runtime = options.runtime;
    this.#projectId = options.projectId ?? DEFAULT_PROJECT;
  }

  /** @throws KernelError `not_found`; `bad_request` for what is not an id. */
  async get(ticketId: string): Promise<ApprovalTicket> {
    return toApprovalTicket(await this.#load(parseId<'ticket'>(ticketId, 'ticket_id')));
  }

  /** Tickets of the project, decided ones too. @throws KernelError `bad_request`. */
  async list(options: ListTicketsOptions = {}): Promise<TicketPage> {
    const parsed = safeParse(optionsSchema, options);
    if (!parsed.success) throw toBadRequest(parsed.error, 'options');
    const { status, run_id, agent, limit, cursor } = parsed.data;
    const rows = await listTickets(this.#runtime.pool, {
      projectId: this.#projectId,
      status,
      runId: run_id,
      agent,
      limit: limit + 1,
      after: cursor === undefined ? undefined : placeIn(cursor),
    });
    const shown = rows.slice(0, limit);
    const last = rows.length > limit ? shown.at(-1) : undefined;
    return {
      approvals: shown.map(toApprovalTicket),
      next_cursor: last === undefined ? null : `approvals:${last.place_at}:${last.id}`,
    };
  }

  /**
   * Resolves when the ticket is decided or its time is over, which it is also when no worker runs that would say so.
   *
   * @throws KernelError `not_found`; the signal's reason.
   */
  async wait(
    ticketId: string,
    { signal }: { readonly signal?: AbortSignal | undefined } = {},
  ): Promise<ApprovalTicket> {
    for (;;) {
      signal?.throwIfAborted();
      const ticket = await this.get(ticketId);
      if (ticket.status !== 'pending') return ticket;
      if (Date.parse(ticket.expires_at) <= Date.now()) await this.#expireDue();
      await delay(LOOK_MS, undefined, { signal }).catch(() => undefined);
    }
  }

  /** @throws KernelError as {@link deny}. */
  approve(ticketId: string, options: DecideOptions = {}): Promise<ApprovalTicket> {
    return this.#decide(ticketId, 'approved', options);
  }

  /**
   * @throws KernelError `approval_resolved` with the text `Approval ticket <id> already <status>`, also for a ticket whose time is over;
   * `permission_denied` for a principal without `approvals:write` and for every agent; `not_found`; `bad_request`.
   */
  deny(ticketId: string, options: DecideOptions = {}): Promise<ApprovalTicket> {
    return this.#decide(ticketId, 'denied', options);
  }

  async #decide(
    given: string,
    status: 'approved' | 'denied',
    options: DecideOptions,
  ): Promise<ApprovalTicket> {
    const ticketId = parseId<'ticket'>(given, 'ticket_id');
    const { principal, reason, response } = parseDecision(options);
    checkPrincipal(principal);
    const decided = await decideTicket(this.#runtime.pool, {
      ticketId,
      projectId: this.#projectId,
      status,
      principal,
      reason,
      response,
    });
    // After the commit: a worker that suspends the turn at this moment looks at its tickets then.
    if (decided?.turnId) await this.#wake([decided.turnId]);
    const ticket = await this.#load(ticketId);
    if (decided === undefined) throw resolved(ticket, ticket.status);
    this.#runtime.log('info', 'approval.updated', {
      ticket_id: ticketId,
      status: decided.status,
      resolved_by: ticket.resolved_by,
    });
    if (decided.status !== status) throw resolved(ticket, decided.status);
    return toApprovalTicket(ticket);
  }

  /** A decision stays made when its turn cannot be woken now: the sweep does it then. */
  async #wake(turnIds: readonly TurnId[]): Promise<void> {
    try {
      this.#runtime.ring(await wakeDecided(this.#runtime.pool, turnIds));
    } catch (error) {
      this.#runtime.log('warn', 'approval.not_woken', { turn_ids: turnIds, error: errorText(error) });
    }
  }

  async #expireDue(): Promise<void> {
    await this.#wake(await expireDue(this.#runtime, { limit: EXPIRED_AT_ONCE }));
  }

  async #load(ticketId: TicketId): Promise<TicketRow> {
    const ticket = await findTicket(this.#runtime.pool, { ticketId, projectId: this.#projectId });
    if (ticket === undefined)
      throw new KernelError('not_found', {
        message: `No approval ticket ${ticketId} in this project.`,
        details: { ticket_id: ticketId },
      });
    return ticket;
  }
}

/** @throws KernelError `bad_request`. */
function parseDecision(options: DecideOptions): z.infer<typeof decisionSchema> {
  const parsed = safeParse(decisionSchema, options);
  if (!parsed.success) throw toBadRequest(parsed.error, 'options');
  const { response, ...rest } = parsed.data;
  const checked = response === null ? null : parseJsonValue(response, 'response');
  return { ...rest, response: isJsonObject(checked) ? checked : null };
}

function checkPrincipal({ id, kind, scopes }: Principal): void {
  if (kind !== 'agent' && scopes.includes(MAY_DECIDE)) return;
  throw new KernelError('permission_denied', {
    message:
      kind === 'agent' ? 'An agent never decides about approvals.' : `${id} has no right ${MAY_DECIDE}.`,
    details: { principal: id, kind },
  });
}
