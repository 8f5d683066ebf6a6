/** Which turns wait for which on the path from a caller to its root. */
import { type AgentId, KernelError } from '@boxcar/kernel';
import type { ChainLink } from '@boxcar/store';
import type { CallerContext } from '../handler/index.js';

/** The turns on the path to the root that wait for this turn, beginning with this turn. */
export function waitingChain({ parent }: CallerContext): readonly ChainLink[] {
  const chain = parent?.chain ?? [];
  const end = chain.findIndex((link) => !link.is_awaited);
  return end === -1 ? chain : chain.slice(0, end + 1);
}

/** Refuses a waiting delegation to an agent that waits for the caller: it would never end. */
export function checkCycle(ctx: CallerContext, agentId: AgentId, argument?: string): void {
  const links = waitingChain(ctx);
  if (links.every((link) => link.agent_id !== agentId)) return;
  const chain = links.map((link) => ({
    turn_id: link.turn_id,
    agent_id: link.agent_id,
    agent: link.agent_name,
  }));
  throw new KernelError('delegation_cycle', {
    message: `${argument === undefined ? '' : `arguments.${argument}: `}Agent ${agentId} already waits for this turn: ${[...chain.map((link) => link.agent), chain.find((link) => link.agent_id === agentId)?.agent].join(' ← ')}.`,
    details: {
      agent_id: agentId,
      chain,
      ...(argument === undefined ? {} : { field: `arguments.${argument}` }),
    },
  });
}
