/** `@boxcar/mcp-client`: makes the tools of MCP servers available to agents. Rule: packages/mcp-client/README.md. */
export type { Era } from './connection/connection.js';
export type { Environment } from './connection/open-transport.js';
export type { McpServer } from './servers/mcp-server.js';
export { McpServers, type McpServersOptions } from './servers/mcp-servers.js';
export { checkServers, parseServers, readServersFile } from './servers/parse-servers.js';
export type {
  HttpServer,
  ServerDefinition,
  ServerDefinitions,
  StdioServer,
} from './servers/server-definition.js';
export { isStdio } from './servers/server-definition.js';
export type { LeftOut, ToolList } from './tool/to-tool.js';
