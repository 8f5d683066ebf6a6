/** `@boxcar/mcp`: the tools of MCP servers for agents. Rule: packages/mcp/README.md. */
export { toolNameOf } from './client/tool-name.js';
