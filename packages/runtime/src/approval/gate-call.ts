/**
 * Decides whether a call may begin. Its policy, its profile and its tool determine whether a person must decide first.
 *
 * C1  Nothing begins before its ticket is consumed. A ticket is consumed once, for the arguments that were approved.
 * C2  A call that waits stays open. Its turn is suspended like a turn that waits for another turn, and resumes after
 *     the decision. A call that may already have begun, at a time when it needed no approval, does not begin again. It
 *     is answered like a call that was cut off.
 * C3  A refusal is the result of the call, with the code `permission_denied`; the turn continues.
 * C4  Handoffs ask their policy themselves, wherever they are submitted, and their requests wait in a row of their own.
 *
 * Rule: docs/reference/approvals.md, "Calls that wait".
 */
import {
  argsHash,
  buildCard,
  HANDOFF_PRIMITIVES,
  isJsonObject,
  type JsonObject,
  KernelError,
  maskArguments,
  type NewCard,
  type Profile,
  type ProjectId,
  tryParseId,
} from '@boxcar/kernel';
import { namesTool, type PermissionEvaluator, type PermissionLevel, type PolicyAnswer } from '@boxcar/policy';
import {
  type CallTicket,
  consumeForCall,
  findCallTicket,
  keepPolicy,
  loadAgentNames,
  lookAfter,
  type PendingCall,
  parkCall,
  retryTransient,
  setAside,
  transaction,
} from '@boxcar/store';
import type { RuntimeCore } from '../core/index.js';
import { newId } from '../lib/index.js';
import { targetsOf } from './call-targets.js';

/**
 * `wait`: the call stays open. `begin`: it begins now, for the first time since its approval, with this much time.
 * `again`: it has already begun.
 */
export type GatePass =
  | { readonly kind: 'open' | 'wait' | 'again' }
  | { readonly kind: 'begin'; readonly remainingMs: number };

export interface GatedCall {
  readonly call: PendingCall;
  readonly projectId: ProjectId;
  readonly runId: string;
  readonly agentId: string;
  /** The epoch of the claim that holds the turn. */
  readonly epoch: number;
  readonly profile: Profile;
  /** Names of agents that this run of the turn has asked for. */
  readonly names: AskedNames;
}

/** By agent id. The inner map has the name of an agent that exists. */
export type AskedNames = Map<string, Promise<ReadonlyMap<string, string>>>;

interface Need {
  readonly answer: PolicyAnswer | undefined;
}

const refused = (message: string, call: PendingCall, details: JsonObject = {}): KernelError =>
  new KernelError('permission_denied', {
    message,
    details: { tool: call.name, tool_call_id: call.id, ...details },
  });

const asksAlways = (runtime: RuntimeCore, profile: Profile, name: string): boolean =>
  profile.requires_approval?.includes(name) === true || runtime.tools.get(name)?.requiresApproval === true;

/** Whether a call may have to wait, as far as is known before its arguments are read. */
export function mayWait(runtime: RuntimeCore, profile: Profile, name: string): boolean {
  const { evaluator } = runtime.gate;
  return (
    asksAlways(runtime, profile, name) ||
    (evaluator !== undefined && !HANDOFF_PRIMITIVES.has(name) && namesTool(evaluator.policy, name))
  );
}

/**
 * @returns Undefined when no approval is needed. @throws KernelError `permission_denied` when a policy forbids the
 * call.
 */
async function findNeed(
  runtime: RuntimeCore,
  of: GatedCall,
  ticket: CallTicket | undefined,
): Promise<Need | undefined> {
  const { call, profile } = of;
  const { evaluator } = runtime.gate;
  const asks = asksAlways(runtime, profile, call.name);
  if (evaluator === undefined || HANDOFF_PRIMITIVES.has(call.name) || !namesTool(evaluator.policy, call.name))
    return asks ? { answer: undefined } : undefined;
  const answer = await askPolicy(evaluator, runtime, of);
  if (answer.level === 'never') {
    if (ticket !== undefined) await setAside(runtime.pool, { ticketId: ticket.id, toolCallId: call.id });
    throw refused(`Tool ${call.name} is not allowed by policy`, call, {
      rule_id: answer.rule_id,
      policy_version: answer.policy_version,
    });
  }
  return answer.level === 'require_approval' || asks ? { answer } : undefined;
}

const STRICTNESS: readonly PermissionLevel[] = ['always', 'require_approval', 'never'];
const stricter = (one: PolicyAnswer, other: PolicyAnswer): PolicyAnswer =>
  STRICTNESS.indexOf(other.level) > STRICTNESS.indexOf(one.level) ? other : one;

/** The policy's answer for a call. The strictest answer of several targets counts. */
async function askPolicy(
  evaluator: PermissionEvaluator,
  runtime: RuntimeCore,
  of: GatedCall,
): Promise<PolicyAnswer> {
  const { call } = of;
  const args = isJsonObject(call.arguments) ? call.arguments : {};
  const given = targetsOf(call.name, args);
  const names = await namesOf(runtime, of, given);
  const targets = new Set(given.map((target) => names.get(target) ?? target));
  const source_agent = names.get(of.agentId) ?? of.agentId;
  const ask = (target_agent?: string): PolicyAnswer =>
    evaluator.evaluate({ tool: call.name, context: { source_agent, target_agent, args } });
  const [first, ...others] = targets;
  return others.map(ask).reduce(stricter, ask(first));
}

/** The names of the calling agent and of the agents that the call names by id. */
async function namesOf(
  runtime: RuntimeCore,
  { projectId, agentId, names }: GatedCall,
  targets: readonly string[],
): Promise<ReadonlyMap<string, string>> {
  const ids = new Set([agentId, ...targets.filter((target) => tryParseId(target) !== undefined)]);
  const unknown = [...ids].filter((id) => !names.has(id));
  if (unknown.length > 0) {
    const asked = loadAgentNames(runtime.pool, projectId, unknown);
    for (const id of unknown) names.set(id, asked);
    // The calls of a step share one query; a failed query is not cached.
    asked.catch(() => {
      for (const id of unknown) names.delete(id);
    });
  }
  const found = new Map<string, string>();
  for (const id of ids) {
    const name = (await names.get(id))?.get(id);
    if (name !== undefined) found.set(id, name);
  }
  return found;
}

/**
 * Asks whether a call may begin now.
 *
 * @throws KernelError `permission_denied` when a policy forbids the call, a person has refused it, or no answer came in
 * time.
 */
export const passGate = (runtime: RuntimeCore, of: GatedCall): Promise<GatePass> =>
  // Safe to repeat: each part finds what an earlier try has done.
  retryTransient(() => passOnce(runtime, of));

async function passOnce(runtime: RuntimeCore, of: GatedCall): Promise<GatePass> {
  const { call, epoch } = of;
  const ticket = call.has_ticket
    ? await findCallTicket(runtime.pool, { toolCallId: call.id, turnId: call.turn_id, epoch })
    : undefined;
  if (isUnderway(call, ticket)) return { kind: 'again' };
  // The ticket keeps its status until the refusal is recorded. If this worker dies before that, the next worker refuses
  // the call too.
  if (ticket?.status === 'denied' || ticket?.status === 'expired') throw notApproved(ticket, call);
  const need = await findNeed(runtime, of, ticket);
  if (need === undefined) return begin(runtime, of, ticket);
  const { approvalMs } = runtime.gate;
  if (approvalMs === undefined)
    throw refused(`Tool ${call.name} requires approval but approval gate is not configured`, call);
  const version = need.answer?.policy_version ?? '';
  if (ticket === undefined)
    return mayHaveBegun(of) ? { kind: 'again' } : park(runtime, of, { version, approvalMs, need });
  if (ticket.is_consumed) return { kind: 'again' };
  if (ticket.status === 'pending') return { kind: 'wait' };
  // A decision that was made under another policy must be asked for again.
  if (ticket.policy_version !== version)
    return park(runtime, of, { version, approvalMs, need, replaced: ticket });
  return consume(runtime, of, ticket);
}

/** The call has begun, and this worker does not run it again. A policy that has changed since cannot affect it. */
const isUnderway = (call: PendingCall, ticket: CallTicket | undefined): boolean =>
  ticket === undefined
    ? call.route === 'queue' && call.is_out
    : ticket.is_consumed && (call.route === 'queue' || call.retry === 'never');

/** For a call without a ticket: an earlier claim may have begun it, because it needed no approval then. */
const mayHaveBegun = ({ call, epoch, profile }: GatedCall): boolean =>
  call.epoch !== epoch &&
  call.route === 'function' &&
  call.retry === 'never' &&
  profile.requires_approval?.includes(call.name) !== true;

/** No approval is needed. An earlier ticket is void. */
async function begin(
  runtime: RuntimeCore,
  { call, epoch, profile }: GatedCall,
  ticket: CallTicket | undefined,
): Promise<GatePass> {
  if (ticket?.is_consumed === true) return { kind: 'again' };
  if (ticket !== undefined) {
    const remainingMs = await setAside(runtime.pool, { ticketId: ticket.id, toolCallId: call.id });
    return remainingMs === undefined ? { kind: 'wait' } : { kind: 'begin', remainingMs };
  }
  // The call was written as a call that may have to wait, so no sweep checks its job yet.
  if (call.route === 'queue' && (call.epoch !== epoch || mayWait(runtime, profile, call.name)))
    await lookAfter(runtime.pool, call.id);
  return { kind: 'open' };
}

async function consume(
  runtime: RuntimeCore,
  { call, epoch }: GatedCall,
  ticket: CallTicket,
): Promise<GatePass> {
  const remainingMs = await consumeForCall(runtime.pool, {
    ticketId: ticket.id,
    toolCallId: call.id,
    argsHash: argsHash(call.arguments),
    epoch,
  });
  // Another worker has taken the turn meanwhile, or the call was answered. The rows decide what happens next.
  return remainingMs === undefined ? { kind: 'wait' } : { kind: 'begin', remainingMs };
}

function notApproved(ticket: CallTicket, call: PendingCall): KernelError {
  const why =
    ticket.status === 'expired' ? 'Approval request expired' : (ticket.decision_reason ?? 'Approval denied');
  return refused(`Tool ${call.name} denied: ${why}`, call, {
    ticket_id: ticket.id,
    resolved_by: ticket.resolved_by,
  });
}

/**
 * @throws KernelError `permission_denied` when the arguments are too large to be shown whole: a person must not approve
 * arguments in part.
 */
function shownCard(runtime: RuntimeCore, { call, projectId, agentId }: GatedCall): NewCard {
  const shown = maskArguments(call.arguments);
  const data = isJsonObject(shown) ? shown : { arguments: shown };
  try {
    return buildCard(
      {
        type: 'approval.request',
        role: null,
        content: { kind: 'json', data },
        metadata: {},
        authorId: agentId,
      },
      { id: newId<'card'>(), projectId },
      runtime.limits.maxCardBytes,
    );
  } catch (error) {
    if (!(error instanceof KernelError) || error.code !== 'payload_too_large') throw error;
    throw refused(`Tool ${call.name} needs an approval, and its arguments are too large to be shown`, call);
  }
}

async function park(
  runtime: RuntimeCore,
  of: GatedCall,
  {
    version,
    approvalMs,
    need,
    replaced,
  }: {
    readonly version: string;
    readonly approvalMs: number;
    readonly need: Need;
    readonly replaced?: CallTicket;
  },
): Promise<GatePass> {
  const { call, projectId, runId } = of;
  const agent = (await namesOf(runtime, of, [])).get(of.agentId) ?? of.agentId;
  const card = shownCard(runtime, of);
  const policy = runtime.gate.evaluator?.policy;
  const isOpen = await transaction(runtime.pool, async (tx) => {
    if (policy !== undefined && need.answer !== undefined) await keepPolicy(tx, policy);
    const ticket = {
      id: newId<'ticket'>(),
      projectId,
      runId,
      turnId: call.turn_id,
      toolCallId: call.id,
      agent,
      toolName: call.name,
      card,
      argsHash: argsHash(call.arguments),
      // Two equal calls need two decisions: the approval of one payment does not approve the next.
      contextHash: argsHash({ tool_call_id: call.id }),
      payloadHash: '',
      policyVersion: version,
      timeoutMs: approvalMs,
      callMs: replaced?.call_ms ?? Math.max(Math.round(call.remaining_ms), 0),
      metadata:
        need.answer === undefined
          ? {}
          : { policy: { rule_id: need.answer.rule_id, level: need.answer.level } },
    };
    return parkCall(tx, ticket, { epoch: of.epoch, replaces: replaced?.id });
  });
  runtime.log('info', 'approval.required', {
    tool: call.name,
    tool_call_id: call.id,
    turn_id: call.turn_id,
    is_open: isOpen,
  });
  return { kind: 'wait' };
}
