/**
 * The agent of a conversation with another platform. It is created with the first turn and serves all later turns, so that it remembers the
 * conversation.
 */
import type { AgentId } from '@boxcar/kernel';
import { lockConversation } from '@boxcar/store';
import type { KernelTools } from '../handler/index.js';
import type { NativeTarget } from './native-target.js';

/** The origin of a task that another platform gave. */
export interface TaskOrigin {
  /** The name of the profile that was called. */
  readonly publicAgent: string;
  /** The caller's name for a group of related tasks. */
  readonly conversation: string;
  /** The caller's name of the message. */
  readonly messageId: string;
  /** The agent of the conversation. It may not exist yet. */
  readonly servingAgentId: AgentId;
}

/**
 * The target of a turn in a conversation. Holds the lock of the conversation, so that two first turns at the same moment create one agent.
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
