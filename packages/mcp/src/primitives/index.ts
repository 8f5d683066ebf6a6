import type { McpServer } from '@modelcontextprotocol/server';
import type { McpClientScope } from '../client-scope.js';
import { addTool, hasTool } from '../tool/index.js';
import { primitiveTools } from './submit.js';
import { turnTools } from './turns.js';

/** A primitive of a plugin is not offered when a tool already has its name. */
export function registerPrimitiveTools(server: McpServer, scope: McpClientScope): void {
  for (const tool of [...turnTools(scope), ...primitiveTools(scope)])
    if (!hasTool(server, tool.name)) addTool(server, scope, tool);
}
