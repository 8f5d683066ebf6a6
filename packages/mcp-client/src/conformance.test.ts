/**
 * The scenarios of the official conformance suite for clients that test tools. The other scenarios test elicitation and OAuth, which this
 * client does not have.
 */
import { spawn } from 'node:child_process';
import { createRequire } from 'node:module';
import { fileURLToPath, pathToFileURL } from 'node:url';
import { expect, test } from 'vitest';

const suite = fileURLToPath(
  new URL('../node_modules/@modelcontextprotocol/conformance/dist/index.js', import.meta.url),
);
const client = fileURLToPath(new URL('./testing/conformance-client.ts', import.meta.url));
const loader = pathToFileURL(createRequire(import.meta.url).resolve('tsx')).href;

function runSuite(scenario: string): Promise<{ readonly code: number | null; readonly output: string }> {
  const command = `${process.execPath} --conditions @boxcar/source --import ${loader} ${client}`;
  const child = spawn(process.execPath, [suite, 'client', '--command', command, '--scenario', scenario]);
  let output = '';
  for (const stream of [child.stdout, child.stderr]) stream.on('data', (chunk) => (output += String(chunk)));
  return new Promise((resolve) => child.once('close', (code) => resolve({ code, output })));
}

test.each(['initialize', 'tools_call', 'sse-retry'])(
  'the conformance scenario %s passes',
  { timeout: 120_000 },
  async (scenario) => {
    const { code, output } = await runSuite(scenario);
    expect(output).toMatch(/Passed: (\d+)\/\1, 0 failed/);
    expect(code, output).toBe(0);
  },
);
