/**
 * The client of the conformance suite: our client code, and a call of each tool with arguments of the types that its schema names.
 *
 * argv: the address of the server of a scenario.
 */
import type { Tool, ToolContext } from '@boxcar/runtime';
import { McpServers } from '../servers/mcp-servers.js';
import { checkServers } from '../servers/parse-servers.js';

const url = process.argv[2] ?? '';
await using servers = new McpServers(checkServers({ suite: { url, allow_private: true } }), { env: {} });
const { signal } = new AbortController();

interface Parameters {
  readonly properties?: Readonly<Record<string, { readonly type?: string }>>;
}

const VALUES: Readonly<Record<string, unknown>> = { number: 2, integer: 2, string: 'x', boolean: true };

function argumentsFor({ parameters }: Tool): unknown {
  const { properties = {} } = parameters as Parameters;
  return Object.fromEntries(
    Object.entries(properties).map(([name, { type = 'string' }]) => [name, VALUES[type]]),
  );
}

for (const tool of await servers.toolsOf(['suite'], signal)) {
  const result = await tool.run(tool.input.parse(argumentsFor(tool)), { signal } as ToolContext);
  console.log(`${tool.name}: ${JSON.stringify(result)}`);
}
