/**
 * Decides about a request: its route, the answer of the policy, and whether a cached result exists. Reads rows and writes none.
 *
 * The policy is asked twice: about the given name before the target is looked up, and afterwards about all names of the target. So a
 * forbidden target is refused even if it does not exist.
 */
import {
  argsHash,
  type ErrorBody,
  type HandoffId,
  type JsonValue,
  KernelError,
  readHandoffTarget,
  toErrorBody,
} from '@boxcar/kernel';
import { findCached, type HandoffPlace } from '@boxcar/store';
import { CHAIN_TARGET } from '../core/index.js';
import { agentTarget, platformTarget, RUNNER_TARGET } from './agents.js';
import { withConversationAgent } from './conversation-agent.js';
import { decidePolicy, forbidden, noGate, type PolicyDecision } from './decide-policy.js';
import { type Asked, isOfChain, type RequestScope } from './handoff-request.js';
import { findNative, type NativeTarget } from './native-target.js';

/** The route of a handoff. */
export interface Route {
  readonly platform: string;
  /** The name in rows and policies. */
  readonly targetAgent: string;
  /** Null: workers of the target's profile. */
  readonly workerTarget: string | null;
  readonly native: NativeTarget | undefined;
  /** The target is not an agent of this installation; a session that is handed on waits until its package is fetched. */
  readonly isFetched?: boolean | undefined;
}

interface Decision {
  readonly route: Route;
  /** Undefined: there is no policy, or it was not asked. */
  readonly policy: PolicyDecision | undefined;
}

export type Decided =
  | (Decision & { readonly kind: 'run' })
  | (Decision & { readonly kind: 'fetch' })
  | (Decision & {
      readonly kind: 'cached';
      readonly cached: { readonly handoff_id: HandoffId; readonly result: JsonValue };
    })
  | (Decision & { readonly kind: 'park'; readonly policy: PolicyDecision; readonly approvalMs: number })
  | (Decision & {
      readonly kind: 'refused';
      readonly phase: 'failed' | 'rejected';
      readonly error: ErrorBody;
    });

/** Errors that are stored in the row of the request. All other errors are thrown and leave no row. */
const TELLABLE: ReadonlySet<string> = new Set([
  'bad_request',
  'not_found',
  'delegation_denied',
  'delegation_cycle',
  'bad_config',
]);

/** @param asked - Includes the callback address that will be used, because the policy must see it. */
export async function decideHandoff(
  scope: RequestScope,
  asked: Asked,
  place: HandoffPlace | undefined,
): Promise<Decided> {
  if (asked.mode === 'chain') return chainOf(asked);
  return fromCache(scope, asked, await decide(scope, asked, place));
}

/** A chain does nothing by itself: the policy is asked about its hops. */
const chainOf = ({ input }: Asked): Decided => ({
  kind: 'run',
  route: {
    platform: 'agdd',
    targetAgent: input.target_agent,
    workerTarget: CHAIN_TARGET,
    native: undefined,
  },
  policy: undefined,
});

const refuse = (phase: 'failed' | 'rejected', error: KernelError, decision: Decision): Decided => ({
  kind: 'refused',
  phase,
  ...decision,
  error: toErrorBody(error),
});

async function decide(scope: RequestScope, asked: Asked, place: HandoffPlace | undefined): Promise<Decided> {
  const given = asked.input.target_agent;
  const { platform, error: unsupported } = await findPlatform(scope, asked);
  let route: Route = { platform, targetAgent: given, workerTarget: null, native: undefined };
  if (unsupported !== undefined) return refuse('failed', unsupported, { route, policy: undefined });

  const first = await askPolicy(scope, asked, { platform, names: [given] });
  if (first?.level === 'never') return refuse('rejected', forbidden(given, first), { route, policy: first });

  try {
    route = await findRoute(scope, asked, route);
    checkCycle(asked, route, place);
  } catch (error) {
    if (!(error instanceof KernelError) || !TELLABLE.has(error.code)) throw error;
    return refuse('failed', error, { route, policy: first });
  }

  const names = [given, route.targetAgent, ...(route.native?.names ?? [])];
  const policy = await askPolicy(scope, asked, { platform, names });
  if (policy === undefined || policy.level === 'always')
    return { kind: route.isFetched === true ? 'fetch' : 'run', route, policy };
  if (policy.level === 'never') return refuse('rejected', forbidden(given, policy), { route, policy });
  return park(scope, given, { route, policy });
}

/** Resolves the platform of the request. For an unknown platform, returns its name for the row together with the error. */
async function findPlatform(
  { parts }: RequestScope,
  { input: { platform, target_agent } }: Asked,
): Promise<{ readonly platform: string; readonly error?: KernelError }> {
  try {
    return {
      platform:
        platform === undefined
          ? ((await parts.platformOfTarget(target_agent)) ?? 'agdd')
          : await parts.platformOf(platform),
    };
  } catch (error) {
    if (!(error instanceof KernelError)) throw error;
    return { platform: platform?.toLowerCase() ?? 'agdd', error };
  }
}

const askPolicy = (
  { runtime, gate }: RequestScope,
  { sourceAgent, input }: Asked,
  of: { readonly platform: string; readonly names: readonly string[] },
): Promise<PolicyDecision | undefined> =>
  decidePolicy(runtime, gate.evaluator, { ...of, sourceAgent, input });

/** Lets the request wait for an approval; refuses it when there is no gate. */
function park(
  { runtime, parts, gate }: RequestScope,
  given: string,
  decision: Decision & { readonly policy: PolicyDecision },
): Decided {
  const { evaluator, approvalMs } = gate;
  if (approvalMs === undefined) return refuse('rejected', noGate(given), decision);
  // The same policy is asked again after the approval.
  if (evaluator !== undefined && evaluator !== runtime.gate.evaluator)
    parts.addAsker(decision.policy.policy_version, evaluator);
  return { kind: 'park', ...decision, approvalMs };
}

async function findRoute(scope: RequestScope, asked: Asked, route: Route): Promise<Route> {
  const { parts, tools, origin } = scope;
  const given = asked.input.target_agent;
  const { platform } = route;
  if (platform !== 'agdd') {
    await parts.resolveTarget(platform, given);
    return { ...route, workerTarget: platformTarget(platform) };
  }
  if (parts.agents.has(given)) return toFunction(scope, route, agentTarget(given));
  const native = await findNative(given, tools, { isTrusted: isOfChain(asked) });
  if (native.kind === 'elsewhere') return toFunction(scope, route, agentTarget(given));
  if (native.kind === 'found') {
    const target =
      origin === undefined
        ? native.target
        : await withConversationAgent(tools, native.target, origin.servingAgentId);
    return { ...route, targetAgent: target.name, native: target };
  }
  if (parts.runner !== undefined) return toFunction(scope, route, RUNNER_TARGET);
  // An explicit `agent:` or `profile:` means this project, so no client outside may fetch a session under that name.
  const isElsewhere = readHandoffTarget(given).kind === 'any';
  if (scope.session !== undefined && isElsewhere) return { ...route, isFetched: true };
  throw native.error;
}

/** A function is an agent of this installation: the caller's delegation policy must allow its name. */
function toFunction({ tools }: RequestScope, route: Route, workerTarget: string): Route {
  tools.checkDelegation({ profileName: route.targetAgent, tags: [] });
  return { ...route, workerTarget };
}

/** @throws KernelError `delegation_cycle` for a target that is already in the chain. */
function checkCycle(
  { sourceAgent }: Asked,
  { platform, targetAgent, workerTarget, isFetched }: Route,
  place: HandoffPlace | undefined,
): void {
  const chain = place?.chain ?? [];
  const first = chain.at(-1);
  // A package may be fetched by another instance of the same client that left the session.
  if (isFetched === true) return;
  const isSource =
    platform === 'agdd' &&
    workerTarget === null &&
    (targetAgent === sourceAgent || targetAgent === first?.source_agent);
  const isTarget = chain.some((one) => one.platform === platform && one.target_agent === targetAgent);
  if (!isSource && !isTarget) return;
  const words = [
    first?.source_agent ?? sourceAgent,
    ...chain.map((one) => one.target_agent).reverse(),
    targetAgent,
  ];
  throw new KernelError('delegation_cycle', {
    message: `arguments.target_agent: '${targetAgent}' is already in the chain of handoffs: ${words.join(' → ')}.`,
    next: 'Hand off to another agent.',
    details: { field: 'arguments.target_agent', chain: words },
  });
}

/** The cache answers only requests that are allowed to run: the policy was asked before. */
async function fromCache({ tools }: RequestScope, asked: Asked, decided: Decided): Promise<Decided> {
  const { cache } = asked.input;
  if (cache === undefined || decided.kind !== 'run') return decided;
  const cached = await findCached(tools.db, {
    projectId: tools.ctx.projectId,
    cacheKey: cacheKeyOf(asked, decided.route),
    seconds: cache.ttl_seconds,
  });
  return cached === undefined ? decided : { ...decided, kind: 'cached', cached };
}

/** Identical handoffs have equal keys: the same request to the same target. */
export function cacheKeyOf(
  { input }: Pick<Asked, 'input'>,
  { platform, targetAgent, workerTarget, native }: Route,
): string {
  const { idempotency_key: _key, ...context } = input.context ?? {};
  return argsHash({
    platform,
    target: [native?.agent?.agentId ?? null, native?.profile?.profileId ?? null, targetAgent, workerTarget],
    task: input.task,
    context,
    payload: input.payload ?? null,
    boxes: [input.context_box_id ?? []].flat(),
  });
}
