/** MCP servers from the environment reach the agents, or a wrong setting stops the start. */
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createWorker } from '@boxcar/runtime';
import { type TestDatabase, testDatabase } from '@boxcar/testkit';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { parseConfig } from './config.js';
import { openStack } from './open.js';

const folder = mkdtempSync(join(tmpdir(), 'boxcar-mcp-'));
let database: TestDatabase;
beforeAll(async () => {
  database = await testDatabase();
});
afterAll(() => rmSync(folder, { recursive: true, force: true }));

function serversFile(name: string, text: string): string {
  const file = join(folder, name);
  writeFileSync(file, text);
  return file;
}

const open = (env: Record<string, string>) =>
  openStack(parseConfig({ DATABASE_URL: database.url, ...env }), { migrate: true });

it('the program does not start with a missing or invalid file of servers', async () => {
  await expect(open({ BOXCAR_MCP_SERVERS: join(folder, 'none.yaml') })).rejects.toMatchObject({
    code: 'bad_config',
    message: expect.stringContaining('cannot be read (ENOENT)'),
  });
  const wrong = serversFile('wrong.yaml', 'files: { comand: x }\n');
  await expect(open({ BOXCAR_MCP_SERVERS: wrong })).rejects.toMatchObject({
    code: 'bad_config',
    message: expect.stringContaining(`${wrong}:1:`),
  });
});

it('agents get the tools of a server of the file', async () => {
  const program = serversFile(
    'server.mjs',
    `import { createInterface } from 'node:readline';
     const send = (id, result) => console.log(JSON.stringify({ jsonrpc: '2.0', id, result }));
     createInterface({ input: process.stdin }).on('line', (line) => {
       const { id, method, params } = JSON.parse(line);
       if (method === 'initialize')
         send(id, { protocolVersion: params.protocolVersion, capabilities: { tools: {} }, serverInfo: { name: 's', version: '1' } });
       else if (method === 'tools/list')
         send(id, { tools: [{ name: 'look', inputSchema: { type: 'object' } }] });
       else if (method === 'tools/call') send(id, { content: [{ type: 'text', text: 'seen' }] });
       else if (id !== undefined)
         console.log(JSON.stringify({ jsonrpc: '2.0', id, error: { code: -32601, message: 'no' } }));
     });`,
  );
  const file = serversFile('good.yaml', `eyes: { command: ${process.execPath}, args: [${program}] }\n`);
  await using stack = await open({ BOXCAR_MCP_SERVERS: file });
  const { runtime } = stack;
  await runtime.applyProfile({
    name: 'looker',
    instructions: 'Look.',
    model: 'scripted',
    script: [{ calls: [{ tool: 'eyes.look', arguments: {} }] }],
    mcp: ['eyes'],
    must_end_with: ['eyes.look'],
  });
  await using _worker = await createWorker(runtime, {});
  const { turn_id } = (await runtime.submit('launch_principal', {
    profile_name: 'looker',
    instruction: 'go',
  })) as { turn_id: string };
  expect(await runtime.waitForTurn(turn_id, { timeoutMs: 60_000 })).toMatchObject({
    status: 'success',
    result: 'seen',
  });
});
