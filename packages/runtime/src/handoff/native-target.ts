/** Agents of this installation by the name that a handoff gives: an agent, a profile, or a function of another process. */
import { type AgentId, KernelError } from '@boxcar/kernel';
import { type AgentRow, findLiveWorkers, type ProfileRow } from '@boxcar/store';
import type { RuntimeCore } from '../core/index.js';
import type { HandlerTools } from '../handler/index.js';
import { findNamedTarget } from '../submit/index.js';
import { agentTarget } from './agents.js';

/** One of both. */
export interface NativeTarget {
  /** As rows and policies have it. */
  readonly name: string;
  /** Under which a policy may know it too. */
  readonly names: readonly string[];
  readonly agent: AgentRow | undefined;
  readonly profile: ProfileRow | undefined;
  /** Of the agent that is made, where its id must be known before. */
  readonly newAgentId?: AgentId | undefined;
}

type FoundNative =
  | { readonly kind: 'found'; readonly target: NativeTarget }
  /** A living process has registered a function of this name. */
  | { readonly kind: 'elsewhere' }
  | { readonly kind: 'none'; readonly error: KernelError };

/** @throws KernelError `delegation_denied` for a target that the caller may not reach. */
export async function findNative(
  runtime: Pick<RuntimeCore, 'pool'>,
  name: string,
  tools: HandlerTools,
): Promise<FoundNative> {
  const { agent, profile, offered } = await findNamedTarget(name, tools);
  const reached = agent?.profile ?? profile;
  if (reached !== undefined) {
    tools.checkDelegation({ profileName: reached.name, tags: reached.tags });
    if (agent !== undefined && agent.agentId !== tools.ctx.source.agentId) tools.checkReuse(agent);
    const names = [reached.name, ...(agent === undefined ? [] : [agent.agentId, agent.name])];
    return { kind: 'found', target: { name: agent?.name ?? reached.name, names, agent, profile } };
  }
  const [server] = await findLiveWorkers(runtime.pool, { target: agentTarget(name) });
  if (server !== undefined) return { kind: 'elsewhere' };
  return {
    kind: 'none',
    error: new KernelError('not_found', {
      message: `arguments.target_agent: no agent or profile '${name}' in this project, and no running process has registered a function of this name${offered}`,
      details: { field: 'arguments.target_agent', target_agent: name, project_id: tools.ctx.projectId },
    }),
  };
}
