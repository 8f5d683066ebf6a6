/** Who a connection speaks for, and what it is offered. Rule: docs/reference/mcp.md, "Access". */
import type { Principal, Scope } from '@boxcar/kernel';
import type { Log, Runtime } from '@boxcar/runtime';

export const TOOL_GROUPS = ['sessions', 'tapes', 'primitives', 'approvals'] as const;
export type ToolGroup = (typeof TOOL_GROUPS)[number];

/** Without `--tools`. */
export const DEFAULT_GROUPS: ReadonlySet<ToolGroup> = new Set(['sessions', 'tapes']);

/** The operator of a project: without a key and without `--agent`. */
export const OPERATOR = 'operator';

export interface McpClientScope {
  readonly runtime: Runtime;
  /** Id or name. */
  readonly projectId: string;
  /** Id or name of the agent that the client speaks for, or `operator`. */
  readonly as: string;
  /** Those of the API key. The operator has all. */
  readonly scopes: readonly Scope[];
  readonly groups: ReadonlySet<ToolGroup>;
  readonly log: Log;
  /** In whose name approvals are decided. Default: the operator, or the agent, which never decides. */
  readonly principal?: Principal | undefined;
}
