/**
 * Tests with the real ADK server, which `node scripts/install-adk.mjs <folder>` installs; the other tests use our own servers, which
 * imitate it. Without BOXCAR_ADK_DIR these cases are skipped, except where all backends are required.
 */
import { type ChildProcess, spawn } from 'node:child_process';
import { cpSync, existsSync, mkdirSync, mkdtempSync, rmSync } from 'node:fs';
import { type AddressInfo, createServer } from 'node:net';
import { join } from 'node:path';
import { setTimeout as pause } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import type { AdapterResult } from '../adapter.js';
import type { Target } from '../targets/target.js';
import { everyCard, requestFor } from '../testing/cards.js';
import { ADKHandoffAdapter } from './adk-adapter.js';

const folder = process.env.BOXCAR_ADK_DIR ?? '';
const isWanted = folder !== '' || process.env.BOXCAR_REQUIRE_BACKENDS === '1';
const fixtures = fileURLToPath(new URL('../fixtures/adk', import.meta.url));

let server: ChildProcess | undefined;
let agents = '';
let origin = '';

async function freePort(): Promise<number> {
  const probe = createServer();
  await new Promise<void>((resolve) => probe.listen(0, '127.0.0.1', resolve));
  const { port } = probe.address() as AddressInfo;
  await new Promise<void>((resolve) => probe.close(() => resolve()));
  return port;
}

async function waitForServer(words: readonly string[]): Promise<void> {
  for (const end = Date.now() + 90_000; Date.now() < end; await pause(100)) {
    const answer = await fetch(`${origin}/list-apps`).catch(() => undefined);
    if (answer?.ok === true) return;
    if (server?.exitCode !== null) break;
  }
  throw new Error(`the ADK server did not start: ${words.join('')}`);
}

const run = (target: Target, handoff_id: string): Promise<AdapterResult> =>
  new ADKHandoffAdapter({ allowPrivate: ['127.0.0.1', '::1'] }).executeHandoff(
    requestFor(target, { handoff_id, cards: everyCard(), context: { season: 'winter' } }),
    { signal: AbortSignal.timeout(60_000), attempt: 1, idempotencyKey: handoff_id },
  );

describe.runIf(isWanted)('the API server of the ADK', () => {
  beforeAll(async () => {
    const program = join(folder, 'node_modules', '.bin', 'adk');
    if (!existsSync(program)) throw new Error('BOXCAR_ADK_DIR: run scripts/install-adk.mjs first');
    agents = mkdtempSync(join(folder, 'agents-'));
    mkdirSync(join(agents, 'harbour'));
    cpSync(join(fixtures, 'agent.js'), join(agents, 'harbour', 'agent.js'));
    mkdirSync(join(agents, 'clerk'));
    cpSync(join(fixtures, 'asking-agent.js'), join(agents, 'clerk', 'agent.js'));
    const port = await freePort();
    origin = `http://127.0.0.1:${port}`;
    const words: string[] = [];
    const args = [program, 'api_server', '-p', String(port), '--a2a', 'true', agents];
    server = spawn(process.execPath, args, { cwd: folder, stdio: ['ignore', 'pipe', 'pipe'] });
    for (const stream of [server.stdout, server.stderr])
      stream?.on('data', (chunk) => words.push(String(chunk)));
    await waitForServer(words);
  });

  afterAll(async () => {
    if (server !== undefined && server.exitCode === null) {
      const ended = new Promise((resolve) => server?.once('exit', resolve));
      server.kill('SIGKILL');
      await ended;
    }
    if (agents !== '') rmSync(agents, { recursive: true, force: true });
  });

  test('gives the same text for an app and for the A2A agent of the app', async () => {
    const app = await run(
      { platform: 'adk', app: 'harbour', base_url: origin },
      '0197c1a2-0000-7000-8000-0000000000a1',
    );
    const card_url = `${origin}/a2a/harbour/.well-known/agent-card.json`;
    const remote = await run({ platform: 'adk', card_url }, '0197c1a2-0000-7000-8000-0000000000a2');
    for (const { result, loss } of [app, remote]) {
      expect(result).toContain('The harbour has four cranes.');
      expect(String(result).endsWith('[context]\n{"season":"winter"}\nDescribe the harbour.')).toBe(true);
      expect(loss.sent_cards).toEqual(['text', 'json', 'fields', 'tool_call', 'tool_result']);
      expect(loss.lost.map(({ card_id }) => card_id)).toEqual(['file', 'image', 'local_file']);
    }
    expect(remote.result).toBe(app.result);
    expect([app.usage, remote.usage]).toEqual([{ input_tokens: 11, output_tokens: 3 }, null]);
  });

  test('gives an agent that asks by a tool the answer as the result of its call', async () => {
    const card_url = `${origin}/a2a/clerk/.well-known/agent-card.json`;
    const questions: string[] = [];
    const { result } = await new ADKHandoffAdapter({ allowPrivate: ['127.0.0.1', '::1'] }).executeHandoff(
      requestFor({ platform: 'adk', card_url }, { handoff_id: '0197c1a2-0000-7000-8000-0000000000a4' }),
      {
        signal: AbortSignal.timeout(60_000),
        attempt: 1,
        idempotencyKey: 'clerk',
        ask: async (question) => {
          questions.push(question);
          return 'quay seven';
        },
      },
    );
    expect(questions).toEqual([expect.stringContaining('ask_person')]);
    expect(JSON.stringify(result)).toContain('They say quay seven');
  });

  test('reports an app that does not exist as an unknown target', async () => {
    const work = run(
      { platform: 'adk', app: 'nobody', base_url: origin },
      '0197c1a2-0000-7000-8000-0000000000a3',
    );
    await expect(work).rejects.toMatchObject({ code: 'target_unknown' });
  });
});
