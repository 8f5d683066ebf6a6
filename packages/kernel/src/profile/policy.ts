import { KernelError, meant } from '../base/index.js';
import type { DelegationPolicy } from './profile.js';

export interface DelegationTarget {
  readonly profileName: string;
  readonly tags: readonly string[];
}

/**
 * Whether a caller with this policy may reach the target. Without a policy it may reach no target. Names must be equal;
 * tags must intersect.
 */
export function mayDelegate(policy: DelegationPolicy | undefined, target: DelegationTarget): boolean {
  if (policy === undefined) return false;
  if (policy.target_profiles !== null && !policy.target_profiles.includes(target.profileName)) return false;
  return policy.target_tags.length === 0 || policy.target_tags.some((tag) => target.tags.includes(tag));
}

const MAX_NAMED = 30;

/** The end of a sentence about a refusal: the profiles that the policy names. */
function allowedWords(policy: DelegationPolicy | undefined, wanted: string): string {
  const names = policy?.target_profiles ?? [];
  if (names.includes(wanted)) return `, which has none of the tags ${policy?.target_tags.join(', ')}.`;
  if (names.length === 0) return '.';
  const more = names.length - MAX_NAMED;
  const list = `${names.slice(0, MAX_NAMED).join(', ')}${more > 0 ? ` and ${more} more` : ''}`;
  return `${meant(wanted, names) || '.'} It may reach ${list}.`;
}

/** @throws KernelError `delegation_denied` with caller and target. */
export function checkDelegation(
  caller: {
    readonly agentId: string;
    readonly isOperator: boolean;
    readonly policy: DelegationPolicy | undefined;
  },
  target: DelegationTarget,
): void {
  if (caller.isOperator || mayDelegate(caller.policy, target)) return;
  throw new KernelError('delegation_denied', {
    message: `Agent ${caller.agentId} may not reach profile '${target.profileName}'${allowedWords(caller.policy, target.profileName)}`,
    details: {
      source_agent_id: caller.agentId,
      target_profile: target.profileName,
      delegation_policy: caller.policy ?? null,
    },
  });
}

/** An existing agent that should get a turn. */
export interface ReuseTarget {
  readonly agentId: string;
  readonly name: string;
  readonly ownerAgentId: string | null;
  readonly isShared: boolean;
  /** True when the caller may append to the agent's tape without a time limit. */
  readonly mayAppend: boolean;
}

/**
 * Checks whether a caller may give turns to an existing agent. This right is required in addition to the policy.
 *
 * @throws KernelError `delegation_denied`. Rule: docs/explanation/security.md, "Giving turns to an agent that exists".
 */
export function checkReuse(
  caller: { readonly agentId: string; readonly isOperator: boolean },
  { agentId, name, ownerAgentId, isShared, mayAppend }: ReuseTarget,
): void {
  if (caller.isOperator || isShared || mayAppend) return;
  if (caller.agentId === agentId || caller.agentId === ownerAgentId) return;
  throw new KernelError('delegation_denied', {
    message: `Agent ${caller.agentId} may not give turns to agent '${name}': it did not make it and may not append to its tape, and '${name}' is not shared.`,
    details: { agent_id: agentId, source_agent_id: caller.agentId },
  });
}
