/**
 * Resolves a reference to an agent or a profile: `agent:<name>`, `profile:<name>`, or a plain name. Rule:
 * docs/reference/primitives.md, "context_handoff".
 */
import { KernelError, readHandoffTarget, tryParseId } from '@boxcar/kernel';
import type { AgentRow, ProfileRow } from '@boxcar/store';
import type { HandlerTools } from '../handler/index.js';

/** Has at most one of `agent` and `profile`. `offered` ends the sentence about a profile that does not exist. */
export interface NamedTarget {
  readonly agent: AgentRow | undefined;
  readonly profile: ProfileRow | undefined;
  readonly offered: string;
}

/** A profile by name, or the error that explains why it was not found. */
async function findProfile(tools: HandlerTools, name: string): Promise<ProfileRow | KernelError> {
  return tools.findProfile(name).catch((error: unknown) => {
    if (error instanceof KernelError && error.code === 'not_found') return error;
    throw error;
  });
}

/** Whether a plain name means this agent rather than a profile. Other agents may have given an agent the name of a profile. */
function comesFirst({ agentId, ownerAgentId, isOperatorMade }: AgentRow, name: string, tools: HandlerTools) {
  const { source } = tools.ctx;
  return (
    isOperatorMade ||
    ownerAgentId === source.agentId ||
    agentId === source.agentId ||
    tryParseId<'agent'>(name) === agentId
  );
}

/** Finds the agent or the profile of a reference. Rights are not checked. */
export async function findNamedTarget(ref: string, tools: HandlerTools): Promise<NamedTarget> {
  const { kind, name } = readHandoffTarget(ref);
  const [agent]: readonly (AgentRow | undefined)[] = kind === 'profile' ? [] : await tools.findAgents([name]);
  const isAgent = agent !== undefined && (kind === 'agent' || comesFirst(agent, name, tools));
  const found = kind === 'agent' || isAgent ? undefined : await findProfile(tools, name);
  const profile = found instanceof KernelError ? undefined : found;
  return {
    agent: profile === undefined ? agent : undefined,
    profile,
    offered: found instanceof KernelError ? String(found.details.offered) : '.',
  };
}
