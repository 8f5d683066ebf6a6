/** `@boxcar/mcp`: the MCP server of Boxcar. Rule: docs/mcp.md. */
export {};
