/** `@boxcar/policy`: decides which calls run, which wait for an approval, and which are refused. Rule: docs/reference/policy.md. */
export {
  evaluatePolicy,
  namesTool,
  type PolicyAnswer,
  type PolicyContext,
  type PolicyRequest,
  type TracedRule,
} from './evaluate.js';
export { isGlob, matchesGlob } from './glob.js';
export {
  type CheckedPolicy,
  checkPolicy,
  formatFinding,
  type ParsePolicyOptions,
  parsePolicy,
} from './parse-policy.js';
export {
  PermissionEvaluator,
  type PermissionEvaluatorOptions,
  type PermissionRequest,
} from './permission-evaluator.js';
export {
  type ConditionKey,
  type ConditionValue,
  canonicalTool,
  type PermissionLevel,
  type Policy,
  type PolicyRule,
} from './policy.js';
export type { PolicyClock } from './watched-policy.js';
export type { PolicyFinding } from './yaml-nodes.js';
