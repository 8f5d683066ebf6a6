/** The agent of a conversation with another platform: made with its first turn, and the same for all later ones, so that it remembers. */
import type { AgentId } from '@boxcar/kernel';
import { lockConversation } from '@boxcar/store';
import type { KernelTools } from '../handler/index.js';
import type { NativeTarget } from './native-target.js';

/** How a task of another platform is known. */
export interface TaskOrigin {
  /** The name of the profile that was called. */
  readonly publicAgent: string;
  /** By which the caller knows tasks that belong together. */
  readonly conversation: string;
  /** The caller's name of the message. */
  readonly messageId: string;
  /** Of the conversation; it may not be made yet. */
  readonly servingAgentId: AgentId;
}

/**
 * The target of a turn in a conversation, under the lock of the conversation: two first turns at the same moment make one agent.
 *
 * @throws KernelError `delegation_denied`.
 */
export async function withConversationAgent(
  tools: KernelTools,
  target: NativeTarget,
  servingAgentId: AgentId,
): Promise<NativeTarget> {
  await lockConversation(tools.tx, servingAgentId);
  const [agent] = await tools.findAgents([servingAgentId]);
  if (agent === undefined) return { ...target, newAgentId: servingAgentId };
  tools.checkReuse(agent);
  return { ...target, agent, names: [...target.names, agent.agentId, agent.name] };
}
