/** Reads and decides approval tickets, and waits for decisions, from any process. Rule: docs/reference/approvals.md. */
import { setTimeout as delay } from 'node:timers/promises';
import {
  type AgentId,
  type ApprovalTicket,
  argsHash,
  checkDuration,
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
} from '@boxcar/kernel';
import {
  consumeTicket,
  decideTicket,
  findTicket,
  listTickets,
  type TicketRow,
  wakeDecided,
} from '@boxcar/store';
import { z } from 'zod';
import type { RuntimeCore } from '../core/index.js';
import { type PagePlace, readCursor } from '../lib/index.js';
import { expireDue } from './expire-due.js';

/** The scope that a principal needs to decide. */
const MAY_DECIDE = 'approvals:write';

const OPERATOR: Principal = { id: 'operator', kind: 'person', scopes: [MAY_DECIDE] };
export const DEFAULT_PROJECT = '00000000-0000-7000-8000-000000000001' as ProjectId;
const MAX_REASON = 1_000;
/** How often a waiting process reads the ticket. */
const LOOK_MS = 250;
/** Most requests that one `expireDue` call expires. */
const EXPIRED_AT_ONCE = 100;

export interface DecideOptions {
  /** Default: the operator. */
  readonly principal?: Principal | undefined;
  readonly reason?: string | undefined;
  readonly response?: JsonObject | undefined;
}

const iso = (at: Date | null): string | null => at?.toISOString() ?? null;

/** A ticket on the wire (`approval_ticket.schema.json`). Values that have no field in the schema are in `metadata`. */
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
    // The id that an erasure request names.
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
  /** The run id that the caller gave, or the run of the turn that asks. */
  readonly run_id?: string | undefined;
  /** The name of the agent that asks for approval. */
  readonly agent?: string | undefined;
  /** 1 to 1,000; default 50. */
  readonly limit?: number | undefined;
  /** `next_cursor` of the previous page. */
  readonly cursor?: string | undefined;
}

const cleanText = z.string().refine(isCleanText, 'must be without NUL characters and lone surrogates');

const placeIn = (cursor: string): PagePlace | undefined => readCursor('approvals', cursor);

const optionsSchema = z.strictObject({
  status: z.enum(TICKET_STATUSES).optional(),
  run_id: cleanText.min(1).optional(),
  agent: cleanText.min(1).optional(),
  limit: z.int().min(1).max(1_000).default(50),
  cursor: z
    .string()
    .refine((text) => placeIn(text) !== undefined, 'must be the next_cursor of a page of approvals')
    .optional(),
});

const isNotBlank = (text: string): boolean => text.trim() !== '';

const decisionSchema = z.strictObject({
  // Other fields of the principal are dropped.
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
  /** Null on the last page. */
  readonly next_cursor: string | null;
}

export interface ApprovalGateOptions {
  readonly runtime: RuntimeCore;
  readonly projectId?: ProjectId | undefined;
  /**
   * How long requests made with this gate wait, in minutes; fractions are allowed. Default: the setting of the runtime.
   */
  readonly defaultTimeoutMinutes?: number | undefined;
}

/** Decides and reads the tickets of one project. */
export class ApprovalGate {
  readonly #runtime: RuntimeCore;
  readonly #projectId: ProjectId;
  /** How long requests made with this gate wait; undefined: the setting of the runtime. */
  readonly timeoutMs: number | undefined;

  /** @throws KernelError `bad_request` when the timeout is 0 or less. */
  constructor(options: ApprovalGateOptions) {
    const { runtime, projectId = DEFAULT_PROJECT, defaultTimeoutMinutes: minutes } = options;
    this.#runtime = runtime;
    this.#projectId = projectId;
    this.timeoutMs =
      minutes === undefined ? undefined : checkDuration(minutes * 60_000, 'defaultTimeoutMinutes');
  }

  /**
   * Expires overdue requests of all projects and resumes the turns that waited for them. The sweep of any worker does
   * the same.
   */
  async expireDue(options: { readonly now?: Date | undefined } = {}): Promise<readonly TicketId[]> {
    const { ticketIds, turnIds } = await expireDue(this.#runtime, { ...options, limit: EXPIRED_AT_ONCE });
    await this.#wake(turnIds);
    return ticketIds;
  }

  /**
   * Consumes an approved ticket, once, for the arguments that it approved. Only programs that carry out the approved
   * action themselves need this method: calls and handoffs consume their own tickets.
   *
   * @returns False when the ticket is not approved, was already consumed, or approves something else.
   * @throws KernelError `not_found`; `bad_request` for values that are not plain JSON.
   */
  async consume(
    ticketId: string,
    { args, context }: { readonly args: unknown; readonly context?: unknown },
  ): Promise<boolean> {
    const ticket = await this.#load(parseId<'ticket'>(ticketId, 'ticket_id'));
    return consumeTicket(this.#runtime.pool, {
      ticketId: ticket.id,
      projectId: this.#projectId,
      argsHash: argsHash(args),
      contextHash: context === undefined ? '' : argsHash(context),
      payloadHash: ticket.payload_hash,
      policyVersion: ticket.policy_version,
    });
  }

  /** @throws KernelError `not_found`; `bad_request` for an id that is not valid. */
  async get(ticketId: string): Promise<ApprovalTicket> {
    return toApprovalTicket(await this.#load(parseId<'ticket'>(ticketId, 'ticket_id')));
  }

  /** Lists the tickets of the project, including decided tickets. @throws KernelError `bad_request`. */
  async list(
    options: ListTicketsOptions = {},
    by: { readonly agentId?: AgentId | undefined } = {},
  ): Promise<TicketPage> {
    const parsed = safeParse(optionsSchema, options);
    if (!parsed.success) throw toBadRequest(parsed.error, 'options');
    const { status, run_id, agent, limit, cursor } = parsed.data;
    const rows = await listTickets(this.#runtime.pool, {
      projectId: this.#projectId,
      status,
      runId: run_id,
      agent,
      agentId: by.agentId,
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
   * Resolves when the ticket is decided or its time is over. The expiry needs no running worker: this method expires
   * the ticket itself.
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
      if (Date.parse(ticket.expires_at) <= Date.now()) await this.expireDue();
      await delay(LOOK_MS, undefined, { signal }).catch(() => undefined);
    }
  }

  /** @throws KernelError as {@link deny}. */
  approve(ticketId: string, options: DecideOptions = {}): Promise<ApprovalTicket> {
    return this.#decide(ticketId, 'approved', options);
  }

  /**
   * @throws KernelError `approval_resolved` with the text `Approval ticket <id> already <status>`, also for a ticket
   * whose time is over; `permission_denied` for every agent and for a principal without `approvals:write`; `not_found`;
   * `bad_request`.
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
    const ticket = await this.#load(ticketId);
    // After the commit: a worker that suspends the turn at this moment reads its tickets again.
    if (decided !== undefined && ticket.tool_name === 'handoff') await this.#moveOn(ticketId);
    if (decided?.turnId) await this.#wake([decided.turnId]);
    if (decided === undefined) throw resolved(ticket, ticket.status);
    this.#runtime.log('info', 'approval.updated', {
      ticket_id: ticketId,
      status: decided.status,
      resolved_by: ticket.resolved_by,
    });
    if (decided.status !== status) throw resolved(ticket, decided.status);
    return toApprovalTicket(ticket);
  }

  /** The decision is final even when its turn cannot be woken now: the sweep wakes the turn later. */
  async #wake(turnIds: readonly TurnId[]): Promise<void> {
    try {
      this.#runtime.ring(await wakeDecided(this.#runtime.pool, turnIds));
    } catch (error) {
      this.#runtime.log('warn', 'approval.not_woken', { turn_ids: turnIds, error: errorText(error) });
    }
  }

  /** The decision is final even when its handoff cannot continue now: the sweep continues it later. */
  async #moveOn(ticketId: TicketId): Promise<void> {
    try {
      await this.#runtime.handoffs.decided(ticketId);
    } catch (error) {
      this.#runtime.log('warn', 'approval.not_woken', { ticket_id: ticketId, error: errorText(error) });
    }
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
