/** `@boxcar/mcp-client`: makes the tools of MCP servers available to agents. Rule: packages/mcp-client/README.md. */
export { McpServers, type McpServersOptions } from './servers/mcp-servers.js';
export { checkServers, parseServers, readServersFile } from './servers/parse-servers.js';
export type {
  HttpServer,
  ServerDefinition,
  ServerDefinitions,
  StdioServer,
} from './servers/server-definition.js';
export { isStdio } from './servers/server-definition.js';
