/** Agents of this installation by the name that a handoff gives: an agent, a profile, or a function of another process. */
import { type AgentId, KernelError } from '@boxcar/kernel';
import { type AgentRow, findLiveWorkers, type ProfileRow } from '@boxcar/store';
import type { HandlerTools } from '../handler/index.js';
import { findNamedTarget } from '../submit/index.js';
import { agentTarget } from './agents.js';

/** Either `agent` or `profile` is set. */
export interface NativeTarget {
  /** The name in rows and policies. */
  readonly name: string;
  /** All names under which a policy may know the target. */
  readonly names: readonly string[];
  readonly agent: AgentRow | undefined;
  readonly profile: ProfileRow | undefined;
  /** The id of the agent that will be created, where it must be known in advance. */
  readonly newAgentId?: AgentId | undefined;
}

type FoundNative =
  | { readonly kind: 'found'; readonly target: NativeTarget }
  /** A live process has registered a function of this name. */
  | { readonly kind: 'elsewhere' }
  | { readonly kind: 'none'; readonly error: KernelError };

/**
 * @param options.isTrusted - True for a chain, which acts for the caller that began it.
 * @throws KernelError `delegation_denied` for a target that the caller may not reach; `bad_request` for an agent or profile that only
 *   serves handoffs.
 */
export async function findNative(
  name: string,
  tools: HandlerTools,
  { isTrusted = false }: { readonly isTrusted?: boolean } = {},
): Promise<FoundNative> {
  const { agent, profile, offered } = await findNamedTarget(name, tools);
  const reached = agent?.profile ?? profile;
  if (reached?.version === 0)
    throw new KernelError('bad_request', {
      message: `arguments.target_agent: '${name}' is the agent of a turn that serves a handoff.`,
      next: 'Name the function or the target that it serves.',
      details: { field: 'arguments.target_agent', target_agent: name },
    });
  if (reached !== undefined) {
    if (!isTrusted) tools.checkDelegation({ profileName: reached.name, tags: reached.tags });
    if (!isTrusted && agent !== undefined && agent.agentId !== tools.ctx.source.agentId)
      tools.checkReuse(agent);
    const names = [reached.name, ...(agent === undefined ? [] : [agent.agentId, agent.name])];
    return { kind: 'found', target: { name: agent?.name ?? reached.name, names, agent, profile } };
  }
  const [server] = await findLiveWorkers(tools.db, { target: agentTarget(name) });
  if (server !== undefined) return { kind: 'elsewhere' };
  return {
    kind: 'none',
    error: new KernelError('not_found', {
      message: `arguments.target_agent: no agent or profile '${name}' in this project, and no running process has registered a function of this name${offered}`,
      details: { field: 'arguments.target_agent', target_agent: name, project_id: tools.ctx.projectId },
    }),
  };
}
