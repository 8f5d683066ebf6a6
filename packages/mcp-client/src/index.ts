/** `@boxcar/mcp-client`: the tools of MCP servers for agents. Rule: packages/mcp-client/README.md. */
export { toolNameOf } from './tool-name.js';
