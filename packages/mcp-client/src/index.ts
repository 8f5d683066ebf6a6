/** `@boxcar/mcp-client`: the tools of MCP servers for agents. Rule: packages/mcp-client/README.md. */
export { McpServers, type McpServersOptions } from './servers/mcp-servers.js';
export { checkServers, parseServers, readServersFile } from './servers/parse-servers.js';
export type {
  HttpServer,
  ServerDefinition,
  ServerDefinitions,
  StdioServer,
} from './servers/server-definition.js';
export { isStdio } from './servers/server-definition.js';
