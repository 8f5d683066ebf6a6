/**
 * The decision about one call. Rule: docs/reference/policy.md, "How a decision is made".
 *
 * E1 Every rule is evaluated, whatever the results of the others.
 * E2 A matching NEVER wins, also an entry of `tools`.
 * E3 Otherwise the match with more condition keys wins; with an equal number, the stricter match. An entry of `tools` has no condition
 *    key.
 * E4 When nothing matches, an approval is needed.
 */
import { DEFAULT_PLATFORM, isJsonObject, normalizePlatform } from '@boxcar/kernel';
import { matchesGlob } from './glob.js';
import {
  type ConditionKey,
  type ConditionValue,
  canonicalTool,
  HANDOFF,
  keyName,
  LEVELS,
  type PermissionLevel,
  type Policy,
  type PolicyRule,
} from './policy.js';

/** The context of a call that a policy can test. Other members are ignored. */
export interface PolicyContext {
  /** Any name of a platform, in upper or lower case. Default: `agdd`. */
  readonly platform?: string | undefined;
  readonly target_agent?: string | undefined;
  readonly source_agent?: string | undefined;
  readonly request_type?: string | undefined;
  /** The arguments of the call, with their nesting; for a handoff `{task, context, payload, …}`. */
  readonly args?: unknown;
}

export interface PolicyRequest {
  /** `agent.handoff` means `handoff`. */
  readonly tool: string;
  readonly context?: PolicyContext | undefined;
  readonly environment: string;
}

export interface TracedRule {
  readonly rule_id: string;
  readonly level: PermissionLevel;
  /** The number of its condition keys. */
  readonly keys: number;
  readonly matched: boolean;
  /** The first key that did not match, such as `context.args.amount`; only for a rule that did not match. */
  readonly failed_key?: string;
}

export interface PolicyAnswer {
  readonly level: PermissionLevel;
  /** The position of the rule in the file, such as 'rules.0' or 'tools.handoff'; 'default' when no rule matched. */
  readonly rule_id: string;
  readonly policy_version: string;
  /** Every entry of `rules`, in the order of the file. */
  readonly trace: readonly TracedRule[];
}

/** The value at a path, or undefined. Only an object's own members count, not inherited members or items of lists. */
function valueAt(subject: unknown, path: readonly string[]): unknown {
  let value = subject;
  for (const name of path) {
    if (!isJsonObject(value) || !Object.hasOwn(value, name)) return undefined;
    value = value[name];
  }
  return value;
}

const isSame = (wanted: ConditionValue, value: unknown): boolean =>
  typeof wanted === 'string' ? typeof value === 'string' && matchesGlob(wanted, value) : wanted === value;

/** A missing value is undefined, and satisfies no condition. */
function fits(key: ConditionKey, value: unknown): boolean {
  if ('anyOf' in key) return key.anyOf.some((wanted) => isSame(wanted, value));
  if (typeof value !== 'number') return false;
  const { lessThan = Infinity, greaterThan = -Infinity } = key;
  return value < lessThan && value > greaterThan;
}

/** The object in which condition keys are looked up, with canonical names of tool and platform. */
function toSubject({ tool, context = {}, environment }: PolicyRequest): object {
  const platform = context.platform ?? DEFAULT_PLATFORM;
  return {
    environment,
    tool_name: canonicalTool(tool),
    context: { ...context, platform: normalizePlatform(String(platform)) },
  };
}

/** The first key of a rule that does not match; undefined when all match. */
function failedKey(rule: PolicyRule, subject: object, isHandoff: boolean): string | undefined {
  // A rule without a condition applies only to handoffs, as if it named that tool.
  if (rule.condition.length === 0) return isHandoff ? undefined : 'tool_name';
  const failed = rule.condition.find((key) => !fits(key, valueAt(subject, key.path)));
  return failed === undefined ? undefined : keyName(failed);
}

interface Match {
  readonly rule_id: string;
  readonly level: PermissionLevel;
  readonly keys: number;
}

const strictness = (level: PermissionLevel): number => LEVELS.indexOf(level);

/** Whether a match wins over the previous best match. The earlier of two equal matches stays. */
function beats(match: Match, before: Match): boolean {
  const isNever = match.level === 'never';
  if (isNever !== (before.level === 'never')) return isNever;
  if (match.keys !== before.keys) return match.keys > before.keys;
  return strictness(match.level) > strictness(before.level);
}

/** Decides one call by a policy. Only the arguments are read: the same request and policy always give the same answer. */
export function evaluatePolicy(policy: Policy, request: PolicyRequest): PolicyAnswer {
  const subject = toSubject(request);
  const tool = canonicalTool(request.tool);
  const trace = policy.rules.map((rule, index): TracedRule => {
    const failed = failedKey(rule, subject, tool === HANDOFF);
    return {
      rule_id: `rules.${index}`,
      level: rule.permission,
      keys: rule.condition.length,
      matched: failed === undefined,
      ...(failed === undefined ? {} : { failed_key: failed }),
    };
  });
  const matches: Match[] = trace.filter(({ matched }) => matched);
  const listed = Object.hasOwn(policy.tools, tool) ? policy.tools[tool] : undefined;
  if (listed !== undefined) matches.push({ rule_id: `tools.${tool}`, level: listed.permission, keys: 0 });
  const won = matches.reduce<Match | undefined>(
    (best, match) => (best === undefined || beats(match, best) ? match : best),
    undefined,
  );
  const { rule_id = 'default', level = 'require_approval' } = won ?? {};
  return { level, rule_id, policy_version: policy.version, trace };
}

/**
 * Whether a policy names a tool: an entry of `tools` has its name, or the `tool_name` of a rule matches it. Tools and primitives other
 * than `handoff` are subject to a policy only in that case.
 */
export function namesTool(policy: Policy, tool: string): boolean {
  const name = canonicalTool(tool);
  return (
    Object.hasOwn(policy.tools, name) ||
    policy.rules.some(({ condition }) =>
      condition.some((key) => keyName(key) === 'tool_name' && fits(key, name)),
    )
  );
}
