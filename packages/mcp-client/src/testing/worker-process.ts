/**
 * A worker with MCP servers as a separate process. It prints `ready`, and runs until it is killed.
 *
 * argv: the address of the database, and the JSON of the entries of the servers.
 */
import { createModelRouter } from '@boxcar/llm';
import { createWorker, openRuntime } from '@boxcar/runtime';
import { McpServers } from '../servers/mcp-servers.js';
import { checkServers } from '../servers/parse-servers.js';

const [databaseUrl = '', entries = '{}'] = process.argv.slice(2);
const toolServers = new McpServers(checkServers(JSON.parse(entries)), { env: {} });
const { runtime } = openRuntime({
  databaseUrl,
  directUrl: databaseUrl,
  model: createModelRouter({}),
  toolServers,
});
await createWorker(runtime, { sweepMs: 200, leaseMs: 1_000 });
console.log('ready');
