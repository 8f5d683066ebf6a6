import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, expect, it } from 'vitest';
import { cliHere } from '../../testing/cli.js';

const folder = mkdtempSync(join(tmpdir(), 'boxcar-mcp-'));
afterAll(() => rmSync(folder, { recursive: true, force: true }));

const write = (name: string, text: string): string => {
  const file = join(folder, name);
  writeFileSync(file, text);
  return file;
};
const program = write(
  'server.mjs',
  `import { createInterface } from 'node:readline';
   const send = (message) => console.log(JSON.stringify({ jsonrpc: '2.0', ...message }));
   const serverInfo = { name: 'eyes', version: '2' };
   createInterface({ input: process.stdin }).on('line', (line) => {
     const { id, method, params } = JSON.parse(line);
     if (method === 'initialize')
       send({ id, result: { protocolVersion: params.protocolVersion, capabilities: { tools: {} }, serverInfo } });
     else if (method === 'tools/list')
       send({ id, result: { tools: ['look', 'stare'].map((name) => ({ name, inputSchema: { type: 'object' } })) } });
     else if (id !== undefined) send({ id, error: { code: -32601, message: 'no' } });
   });`,
);
const node = process.execPath;
const good = write(
  'good.yaml',
  `eyes: { command: ${node}, args: [${program}], tools: [look] }
web: { url: "https://tools.example/secret/path", timeout_ms: 5000 }
`,
);
const bad = write(
  'bad.yaml',
  `gone: { command: ${node}, args: [-e, "console.error('no folder'); process.exit(1)"] }\n`,
);

/** No database is reachable at this address: neither command uses one. */
const NOWHERE = { DATABASE_URL: 'postgres://nobody@127.0.0.1:1/none', BOXCAR_DATABASE_WAIT_SECONDS: '0' };
const run = (args: readonly string[], env: Readonly<Record<string, string>> = {}) =>
  cliHere(['mcp', 'servers', ...args], { ...NOWHERE, ...env });

it('ls lists the defined servers, without the paths of addresses', async () => {
  const { code, stdout } = await run(['ls'], { BOXCAR_MCP_SERVERS: good });
  expect([code, stdout.split('\n').map((line) => line.split(/ +/))]).toEqual([
    0,
    [
      ['server', 'kind', 'tools', 'at'],
      ['eyes', 'command', '1', expect.stringContaining('node')],
      ['web', 'url', 'all', 'https://tools.example'],
      [''],
    ],
  ]);
  const json = await run(['ls', '--file', good, '--json']);
  expect(JSON.parse(json.stdout)).toEqual({
    servers: [
      { name: 'eyes', kind: 'command', at: node, tools: ['look'], timeout_ms: null },
      { name: 'web', kind: 'url', at: 'https://tools.example', tools: null, timeout_ms: 5000 },
    ],
  });
});

it('check shows the tools that agents get, and the tools that are left out', async () => {
  expect(await run(['check', 'eyes', '--file', good])).toEqual({
    code: 0,
    stdout: 'eyes: 1 tool (eyes 2)\n  eyes.look\n  left out: stare: not among the tools of its entry\n',
    stderr: '',
  });
});

it('check exits with 3 when a server is not available, and prints its last output', async () => {
  const { code, stdout } = await run(['check', '--file', bad, '--json']);
  expect([code, JSON.parse(stdout)]).toMatchObject([
    3,
    { servers: [{ name: 'gone', status: 'unavailable', error: expect.stringContaining('no folder') }] },
  ]);
});

it('an undefined server and a missing file are wrong usage', async () => {
  expect(await run(['check', 'nobody', '--file', good])).toMatchObject({ code: 2, stdout: '' });
  expect(await run(['ls'])).toMatchObject({ code: 2, stdout: '' });
  const wrong = await run(['ls', '--file', write('wrong.yaml', 'a: { comand: x }\n')]);
  expect([wrong.code, wrong.stderr]).toMatchObject([1, expect.stringContaining('wrong.yaml:1:')]);
});
