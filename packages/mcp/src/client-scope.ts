/** The identity and the rights of a connection. Rule: docs/reference/mcp.md, "Access". */
import type { Principal, Scope } from '@boxcar/kernel';
import type { Log, Runtime } from '@boxcar/runtime';

export const TOOL_GROUPS = ['sessions', 'tapes', 'primitives', 'approvals'] as const;
export type ToolGroup = (typeof TOOL_GROUPS)[number];

/** The default without `--tools`. */
export const DEFAULT_GROUPS: ReadonlySet<ToolGroup> = new Set(['sessions', 'tapes']);

/** The operator of a project: the identity of a connection without a key and without `--agent`. */
export const OPERATOR = 'operator';

export interface McpClientScope {
  readonly runtime: Runtime;
  /** Id or name. */
  readonly projectId: string;
  /** Id or name of the agent that the client acts for, or `operator`. */
  readonly as: string;
  /** The scopes of the API key. The operator has all. */
  readonly scopes: readonly Scope[];
  readonly groups: ReadonlySet<ToolGroup>;
  readonly log: Log;
  /** The name in which approvals are decided. Default: the operator; an agent never decides. */
  readonly principal?: Principal | undefined;
}
