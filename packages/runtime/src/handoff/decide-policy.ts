/** Asks the policy about a handoff, under all names of its target. */
import { type HandoffArguments, KernelError, readHandoffTarget } from '@boxcar/kernel';
import type { PermissionEvaluator, PolicyAnswer } from '@boxcar/policy';
import { keepPolicy } from '@boxcar/store';
import type pg from 'pg';
import type { RuntimeCore } from '../core/index.js';

export type PolicyDecision = PolicyAnswer;

/** The refusal of a handoff that the policy forbids. */
export const forbidden = (target: string, { rule_id, policy_version }: PolicyDecision): KernelError =>
  new KernelError('permission_denied', {
    message: `Handoff to ${target} not allowed by policy`,
    next: '',
    details: { rule_id, policy_version },
  });

/** The refusal of a handoff that needs an approval when no gate is configured. */
export const noGate = (target: string): KernelError =>
  new KernelError('permission_denied', {
    message: `Handoff to ${target} requires approval but approval gate is not configured`,
    next: '',
  });

const RANK = { always: 0, require_approval: 1, never: 2 } as const;

/** The policy versions whose text is stored, by database. */
const kept = new WeakMap<pg.Pool, Map<string, Promise<void>>>();

/** Stores the text of a version once, outside the transaction of the handoff. A text that is not referenced does no harm. */
function keepOnce({ pool }: Pick<RuntimeCore, 'pool'>, policy: PermissionEvaluator['policy']): Promise<void> {
  const versions = kept.get(pool) ?? new Map<string, Promise<void>>();
  kept.set(pool, versions);
  const known = versions.get(policy.version);
  if (known !== undefined) return known;
  const keeping = keepPolicy(pool, policy);
  versions.set(policy.version, keeping);
  keeping.catch(() => versions.delete(policy.version));
  return keeping;
}

/** The name without surrounding spaces and without the prefix `agent:` or `profile:`. A runner may read the name as the kernel does. */
const bareName = (target: string): string => readHandoffTarget(target.trim()).name;

/**
 * The strictest answer over all names of the target. Undefined: there is no policy.
 *
 * @param of.input - The request, for rules about arguments.
 */
export async function decidePolicy(
  runtime: Pick<RuntimeCore, 'pool'>,
  evaluator: PermissionEvaluator | undefined,
  of: {
    readonly platform: string;
    readonly sourceAgent: string;
    readonly names: readonly string[];
    readonly input: Partial<HandoffArguments>;
  },
): Promise<PolicyDecision | undefined> {
  if (evaluator === undefined) return undefined;
  const { platform, sourceAgent, names, input } = of;
  const { context = {}, payload = null } = input;
  const spelled = platform === 'agdd' ? names.flatMap((name) => [name, bareName(name)]) : names;
  const answers = [...new Set(spelled)].map((target_agent) =>
    evaluator.evaluate({
      tool: 'handoff',
      context: {
        platform,
        target_agent,
        source_agent: sourceAgent,
        // Includes every argument of the request, because a rule may match it.
        args: { ...input, target_agent, platform, context, payload },
      },
    }),
  );
  const strictest = answers.reduce((worst, answer) =>
    RANK[answer.level] > RANK[worst.level] ? answer : worst,
  );
  await keepOnce(runtime, evaluator.policy);
  return strictest;
}
