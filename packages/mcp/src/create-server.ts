/**
 * Creates the server of one connection or of one request, for both protocol revisions, over stdio and HTTP.
 *
 * Rule: docs/reference/mcp.md.
 */
import { McpServer } from '@modelcontextprotocol/server';
import { registerApprovalTools } from './approvals/index.js';
import type { McpClientScope, ToolGroup } from './client-scope.js';
import { registerPrimitiveTools } from './primitives/index.js';
import { registerPrompts } from './prompts/index.js';
import { registerResources } from './resources/index.js';
import { registerSessionTools } from './sessions/index.js';
import { registerTapeTools } from './tapes/index.js';

const SERVER = { name: 'boxcar', title: 'Boxcar', version: '0.1.0' };

const INSTRUCTIONS =
  'Sessions hold the context of your work. Register one with register_session, add to it with update_context, ' +
  'and pass it on with request_handoff. Read a session that was passed on to you with get_summary and get_context.';

/** Adds the tools of a group to a server. */
type Register = (server: McpServer, scope: McpClientScope) => void;

const GROUPS: Readonly<Record<ToolGroup, Register>> = {
  sessions: registerSessionTools,
  tapes: registerTapeTools,
  primitives: registerPrimitiveTools,
  approvals: registerApprovalTools,
};

/** Each connection needs a separate server: the server is closed with the connection. */
export function createMcpServer(scope: McpClientScope): McpServer {
  const server = new McpServer(SERVER, {
    instructions: INSTRUCTIONS,
    capabilities: { tools: { listChanged: false } },
  });
  for (const [group, register] of Object.entries(GROUPS))
    if (scope.groups.has(group as ToolGroup)) register(server, scope);
  registerResources(server, scope);
  registerPrompts(server, scope);
  return server;
}
