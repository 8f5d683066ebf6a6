/** Begins handoffs after their approval: consumes the ticket and makes the turn, in one transaction. */
import { type BoxId, type JsonObject, type JsonValue, KernelError } from '@boxcar/kernel';
import type { PermissionEvaluator } from '@boxcar/policy';
import {
  type BeginningHandoff,
  consumeTicket,
  lockParked,
  moveHandoffs,
  type NewHandoffEvent,
  type ParkedHandoff,
  type TicketRow,
  voidTicket,
} from '@boxcar/store';
import { z } from 'zod';
import { CHAIN_TOOL, type RuntimeCore } from '../core/index.js';
import type { Handler, KernelTools, TurnRef } from '../handler/index.js';
import { withConversationAgent } from './conversation-agent.js';
import { decidePolicy, forbidden, noGate, type PolicyDecision } from './decide-policy.js';
import { handSessionOn, priorityOf, sessionContextOf } from './handed-session.js';
import { findNative } from './native-target.js';
import { askerOf, boxIdsOf, hashesOf, requestTicket } from './request-ticket.js';
import { type ServedBy, turnOf } from './serving-turn.js';

/** The approved ticket and the event that reports the approval. */
interface Approved {
  readonly ticket: TicketRow;
  readonly event: NewHandoffEvent;
  /** The evaluator to ask again. Undefined: this process has no policy. */
  readonly evaluator: PermissionEvaluator | undefined;
}

/** @throws KernelError the reason why the handoff cannot begin; nothing has been written in that case. */
export async function beginApproved(
  runtime: RuntimeCore,
  { oldest, ...approved }: Approved & { readonly oldest: ParkedHandoff },
): Promise<void> {
  const { ticket } = approved;
  const beginning = runtime.accept(
    // The turn answers the call that asked for the handoff.
    oldest.hop === null ? 'handoff' : CHAIN_TOOL,
    { ticket_id: ticket.id },
    {
      projectId: oldest.project_id,
      sourceAgentId: oldest.source_agent_id,
      ...(oldest.parent_turn_id === null ? {} : { parentTurnId: oldest.parent_turn_id }),
      idempotencyKey: `handoff-begin:${ticket.id}`,
      handler: beginHandler(runtime, approved) as Handler,
      begins: { toolCallId: oldest.tool_call_id },
    },
  );
  await beginning.catch((error: unknown) => {
    if (!(error instanceof NothingParked)) throw error;
  });
}

/** Another process has already moved the waiting handoffs to another phase. */
class NothingParked extends Error {}

const inputSchema = z.strictObject({ ticket_id: z.string() });

const beginHandler = (runtime: RuntimeCore, of: Approved): Handler<z.output<typeof inputSchema>> => ({
  description: 'Begins what was approved.',
  input: inputSchema,
  handle: (_input, tools) => begin(runtime, tools as KernelTools, of),
});

async function begin(
  runtime: RuntimeCore,
  tools: KernelTools,
  { ticket, event, evaluator }: Approved,
): Promise<JsonValue> {
  const { tx } = tools;
  const [oldest, ...others] = await lockParked(tx, ticket.id);
  if (oldest === undefined) throw new NothingParked();
  const again = await askAgain(runtime, tools, { ticket, oldest, evaluator });
  const policy = again ?? ticket.policy_version;
  if (typeof policy !== 'string')
    return askAnew(runtime, tools, { ticket, event, parked: [oldest, ...others], policy });
  const isConsumed = await consumeTicket(tx, {
    ticketId: ticket.id,
    projectId: oldest.project_id,
    ...hashesOf({
      targetAgent: oldest.target_agent,
      platform: oldest.platform,
      task: oldest.task ?? '',
      context: oldest.context,
      payload: oldest.payload,
      boxIds: boxIdsOf(ticket),
      callbackUrl: oldest.callback_url,
      asker: askerOf({ toolCallId: oldest.tool_call_id, runId: oldest.run_id, handoffId: oldest.handoff_id }),
    }),
    policyVersion: ticket.policy_version,
  });
  if (!isConsumed)
    throw new KernelError('permission_denied', {
      message: `Approval ticket ${ticket.id} does not approve this handoff.`,
      next: 'The approved content was erased or changed since; hand off again.',
      details: { ticket_id: ticket.id },
    });
  const route = await routeOf(tools, oldest);
  const decision = again === undefined ? undefined : { ...oldest.decision, policy_version: policy };
  const turn = route && (await serve(tools, oldest, route));
  const logged =
    turn === undefined
      ? await moveHandoffs(tx, idsOf([oldest, ...others]), { phase: 'pending', events: [event], decision })
      : [
          ...(await moveHandoffs(tx, [oldest.handoff_id], {
            phase: 'queued',
            turnId: turn.turnId,
            events: [event],
            decision,
          })),
          ...(await join(tx, { oldest, others, event })),
        ];
  if (oldest.session_request !== null)
    await handSessionOn(tools, {
      sessionId: oldest.session_id,
      context: sessionContextOf(oldest.context),
      targets: [oldest, ...(turn === undefined ? others : [])].map(({ handoff_id, target_agent }) => ({
        handoffId: handoff_id,
        name: target_agent,
        agentId: turn?.agentId ?? null,
      })),
      isNew: false,
    });
  for (const { type, handoff_id, data } of logged) tools.logLater(type, { handoff_id, ...data });
  return { handoff_id: oldest.handoff_id, ...(turn === undefined ? {} : { turn_id: turn.turnId }) };
}

const idsOf = (parked: readonly BeginningHandoff[]) => parked.map(({ handoff_id }) => handoff_id);

async function serve(
  tools: KernelTools,
  { context, context_box_id, timeout_ms, is_awaited, hop, session_request }: BeginningHandoff,
  route: ServedBy,
): Promise<TurnRef> {
  return tools.submitTurn(
    await turnOf(tools, {
      route,
      contextBoxId: context_box_id as BoxId,
      timeoutMs: timeout_ms,
      wait: is_awaited,
      isTrusted: hop !== null,
      priority: session_request === null ? undefined : priorityOf(context),
    }),
  );
}

/** The other handoffs that share the ticket get the result of the oldest (D2). */
const join = (
  tx: KernelTools['tx'],
  of: {
    readonly oldest: BeginningHandoff;
    readonly others: readonly BeginningHandoff[];
    readonly event: NewHandoffEvent;
  },
): ReturnType<typeof moveHandoffs> | [] =>
  of.others.length === 0
    ? []
    : moveHandoffs(tx, idsOf(of.others), {
        phase: 'queued',
        joinedTo: of.oldest.handoff_id,
        events: [of.event, { type: 'handoff.joined', data: { joined_to: of.oldest.handoff_id } }],
      });

/** A target that another platform called is always a profile, even if an agent of the same name has been created since. */
async function findTarget(
  tools: KernelTools,
  { target_agent, serving_agent_id, hop }: BeginningHandoff,
): ReturnType<typeof findNative> {
  if (serving_agent_id === null) return findNative(target_agent, tools, { isTrusted: hop !== null });
  const found = await findNative(`profile:${target_agent}`, tools);
  if (found.kind !== 'found') return found;
  return { kind: 'found', target: await withConversationAgent(tools, found.target, serving_agent_id) };
}

/** Undefined: a session is handed to a name that is not an agent of this installation, and waits until a client fetches the package. */
async function routeOf(tools: KernelTools, oldest: BeginningHandoff): Promise<ServedBy | undefined> {
  if (oldest.worker_target !== null) return { workerTarget: oldest.worker_target, native: undefined };
  const found = await findTarget(tools, oldest);
  if (found.kind === 'found') return { workerTarget: null, native: found.target };
  if (found.kind === 'none' && oldest.session_request !== null) return undefined;
  throw found.kind === 'none' ? found.error : new KernelError('not_found');
}

/**
 * Asks the policy again if it has changed since the request. @returns Undefined: the policy has not changed. A version: the handoff needs
 * no approval anymore. A decision: the handoff needs an approval under the new policy.
 *
 * @throws KernelError `permission_denied`: the new policy forbids the handoff.
 */
async function askAgain(
  runtime: RuntimeCore,
  tools: KernelTools,
  of: Omit<Approved, 'event'> & { readonly oldest: BeginningHandoff },
): Promise<undefined | string | PolicyDecision> {
  const { ticket, oldest, evaluator } = of;
  if (evaluator === undefined || ticket.policy_version === evaluator.policy.version) return undefined;
  const found = oldest.worker_target === null ? await findTarget(tools, oldest) : undefined;
  const names = found?.kind === 'found' ? found.target.names : [];
  const [box, ...more] = boxIdsOf(ticket);
  const policy = await decidePolicy(runtime, evaluator, {
    platform: oldest.platform,
    sourceAgent: oldest.source_agent,
    names: [oldest.target_agent, ...names],
    input: {
      task: oldest.task ?? '',
      context: oldest.context ?? {},
      payload: oldest.payload,
      ...(oldest.run_id === null ? {} : { run_id: oldest.run_id }),
      ...(oldest.callback_url === null ? {} : { callback: { url: oldest.callback_url } }),
      // A rule can match the id of a single box, but not a list of ids.
      ...(box === undefined ? {} : { context_box_id: more.length === 0 ? box : [box, ...more] }),
    },
  });
  if (policy?.level === 'never') throw forbidden(oldest.target_agent, policy);
  return policy === undefined || policy.level === 'always' ? policy?.policy_version : policy;
}

/** Voids the old ticket and requests a new one under the current policy. */
async function askAnew(
  runtime: RuntimeCore,
  tools: KernelTools,
  of: {
    readonly ticket: TicketRow;
    readonly event: NewHandoffEvent;
    /** The oldest first. */
    readonly parked: readonly [BeginningHandoff, ...BeginningHandoff[]];
    readonly policy: PolicyDecision;
  },
): Promise<JsonValue> {
  const { ticket, event, parked, policy } = of;
  const [oldest] = parked;
  const { approvalMs } = runtime.gate;
  if (approvalMs === undefined) throw noGate(oldest.target_agent);
  await voidTicket(tools.tx, { ticketId: ticket.id, projectId: oldest.project_id });
  const fresh = await requestTicket(
    { tools, approvalMs },
    {
      asked: {
        handoffId: oldest.handoff_id,
        sourceAgent: oldest.source_agent,
        input: {
          task: oldest.task ?? '',
          ...(oldest.context === null ? {} : { context: oldest.context }),
          payload: oldest.payload,
          ...(oldest.run_id === null ? {} : { run_id: oldest.run_id }),
          context_box_id: boxIdsOf(ticket),
        },
      },
      platform: oldest.platform,
      targetAgent: oldest.target_agent,
      callbackUrl: oldest.callback_url,
      policy,
      isAwaited: oldest.is_awaited,
      toolCallId: oldest.tool_call_id,
    },
  );
  const logged = await moveHandoffs(
    tools.tx,
    parked.map(({ handoff_id }) => handoff_id),
    {
      phase: 'awaiting_approval',
      ticketId: fresh.id,
      decision: policy as unknown as JsonObject,
      events: [
        event,
        {
          type: 'approval.required',
          data: { ticket_id: fresh.id, timeout_minutes: fresh.timeoutMs / 60_000, voided: ticket.id },
        },
      ],
    },
  );
  for (const { type, handoff_id, data } of logged) tools.logLater(type, { handoff_id, ...data });
  return { handoff_id: oldest.handoff_id, ticket_id: fresh.id, context_box_id: oldest.context_box_id };
}
