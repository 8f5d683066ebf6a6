/** `@boxcar/mcp`: the MCP server of Boxcar. Rule: docs/reference/mcp.md. */
export {
  DEFAULT_GROUPS,
  type McpClientScope,
  OPERATOR,
  TOOL_GROUPS,
  type ToolGroup,
} from './client-scope.js';
export { createMcpServer } from './create-server.js';
export type { KeyLimits } from './http/key-limits.js';
export { type McpRoutesOptions, mcpRoutes } from './http/mcp-routes.js';
export type { IssuerTimes, OAuthOptions } from './oauth/index.js';
export { readGroups, runStdio, type StdioFlags } from './stdio/run-stdio.js';
export type { StdioOptions } from './stdio/serve-client.js';
