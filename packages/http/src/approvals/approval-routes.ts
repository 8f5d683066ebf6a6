/**
 * Approvals over HTTP: the paths of the reference below a run, and the same paths for the whole project. Rule: docs/reference/http.md,
 * "Approvals".
 */
import {
  type ApprovalTicket,
  isJsonObject,
  type JsonObject,
  KernelError,
  type Principal,
  parseInput,
  TICKET_STATUSES,
  type TicketId,
} from '@boxcar/kernel';
import { ApprovalGate, type KeyPrincipal, type Runtime } from '@boxcar/runtime';
import { findTicketId } from '@boxcar/store';
import { z } from 'zod';
import type { ServerEvent } from '../event-stream.js';
import { type Call, type Route, readQuery } from '../route.js';
import { TicketWatch } from './ticket-watch.js';

const querySchema = z.strictObject({
  status: z.enum(TICKET_STATUSES).optional(),
  agent: z.string().min(1).optional(),
  limit: z
    .string()
    .regex(/^\d{1,4}$/, 'must be a number from 1 to 1000')
    .transform(Number)
    .optional(),
  cursor: z.string().min(1).optional(),
});

const decisionSchema = z.strictObject({
  action: z.enum(['approve', 'deny']),
  resolved_by: z.string().min(1).optional(),
  reason: z.string().optional(),
  response: z.custom<JsonObject>((value) => isJsonObject(value), 'must be an object').optional(),
});

const disabled = (): KernelError =>
  new KernelError('feature_disabled', {
    message: 'Approvals are switched off: BOXCAR_APPROVALS_ENABLED is false.',
    next: 'Start the server with BOXCAR_APPROVALS_ENABLED=true.',
  });

const noTicket = (ticketId: string): KernelError =>
  new KernelError('not_found', {
    message: `No approval ticket ${ticketId} in this project.`,
    details: { ticket_id: ticketId },
  });

const json = (value: unknown): Response => Response.json(value, { headers: { 'cache-control': 'no-store' } });

/** The principal of a decision. The key names the person that decides; any other name is refused. */
function deciderOf(
  { id, kind, scopes, keyId, name }: KeyPrincipal,
  resolvedBy: string | undefined,
): Principal {
  if (resolvedBy !== undefined && ![id, keyId, name].includes(resolvedBy))
    throw new KernelError('bad_request', {
      message: `resolved_by: must be left out, or be the id or the name of the key (${keyId}).`,
      details: { field: 'resolved_by' },
    });
  return { id, kind, scopes };
}

/** The routes of approvals. */
class Approvals {
  readonly #runtime: Runtime;
  readonly #watch: TicketWatch;

  constructor(runtime: Runtime) {
    this.#runtime = runtime;
    this.#watch = new TicketWatch(runtime);
  }

  readonly list = async (call: Call): Promise<Response> => {
    const gate = this.#gateOf(call);
    const parsed = parseInput(querySchema, readQuery(call.url));
    return json(await gate.list({ ...parsed, run_id: call.params.run_id }));
  };

  readonly show = async (call: Call): Promise<Response> => json(await this.#load(call, this.#gateOf(call)));

  readonly decide = async (call: Call): Promise<Response> => {
    const gate = this.#gateOf(call);
    const { ticket_id } = await this.#load(call, gate);
    const parsed = parseInput(decisionSchema, await call.json());
    const { action, resolved_by, reason, response } = parsed;
    const principal = deciderOf(call.principal, resolved_by);
    return json(await gate[action](ticket_id, { principal, reason, response }));
  };

  readonly events = async (call: Call): Promise<Response> => {
    const gate = this.#gateOf(call);
    const ticket = await this.#load(call, gate);
    // A reader that has seen the last event needs no stream. Status 204 tells it not to reconnect.
    if (call.request.headers.get('last-event-id') === UPDATED) return new Response(null, { status: 204 });
    return call.events(({ lastEventId, signal }) => this.#follow(gate, ticket, { lastEventId, signal }));
  };

  async *#follow(
    gate: ApprovalGate,
    ticket: ApprovalTicket,
    { lastEventId, signal }: { readonly lastEventId: string | undefined; readonly signal: AbortSignal },
  ): AsyncGenerator<ServerEvent> {
    const id = ticket.ticket_id as TicketId;
    if (lastEventId !== REQUIRED) yield { id: REQUIRED, event: 'approval.required', data: ticket };
    for (;;) {
      await this.#watch.settled(id, signal);
      if (signal.aborted) return;
      const seen = await gate.get(id);
      if (seen.status !== 'pending') return yield { id: UPDATED, event: 'approval.updated', data: seen };
      await gate.expireDue();
    }
  }

  /** A key sees all approvals of its project. */
  #gateOf({ principal }: Call): ApprovalGate {
    if (this.#runtime.gate.approvalMs === undefined) throw disabled();
    return new ApprovalGate({ runtime: this.#runtime, projectId: principal.projectId });
  }

  /** The ticket in the path, by its id or a prefix of the id. A ticket of another run or project is answered as missing. */
  async #load({ params, principal }: Call, gate: ApprovalGate): Promise<ApprovalTicket> {
    const { run_id: runId, ticket_id: ref = '' } = params;
    try {
      const { ticketId } = await findTicketId(this.#runtime.pool, ref, principal.projectId);
      const ticket = await gate.get(ticketId);
      if (runId === undefined || ticket.run_id === runId) return ticket;
    } catch (error) {
      if (!(error instanceof KernelError && error.code === 'not_found')) throw error;
    }
    throw noTicket(ref);
  }
}

const REQUIRED = '1';
const UPDATED = '2';

/** The routes of approvals, for the frame to mount. */
export function approvalRoutes(runtime: Runtime): readonly Route[] {
  const approvals = new Approvals(runtime);
  return ['/approvals', '/runs/:run_id/approvals'].flatMap((path): readonly Route[] => [
    { method: 'GET', path, scope: 'approvals:read', handle: approvals.list },
    { method: 'GET', path: `${path}/:ticket_id`, scope: 'approvals:read', handle: approvals.show },
    { method: 'POST', path: `${path}/:ticket_id`, scope: 'approvals:write', handle: approvals.decide },
    { method: 'GET', path: `${path}/:ticket_id/events`, scope: 'approvals:read', handle: approvals.events },
  ]);
}
