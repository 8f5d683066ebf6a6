/** A command ends after its answer is written, whatever a plugin keeps open. */
import { spawn } from 'node:child_process';
import { mkdtempSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as delay } from 'node:timers/promises';
import { testDatabase } from '@boxcar/testkit';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { cli, type Env, PROFILES, prepare, startCli } from './testing/cli.js';
import { wrap } from './text/text.js';

const SIZE = 900_000;
let folder: string;
let plugin: string;
let env: Env;

beforeAll(async () => {
  folder = mkdtempSync(join(tmpdir(), 'boxcar-leave-'));
  symlinkSync(join(import.meta.dirname, '../node_modules'), join(folder, 'node_modules'));
  plugin = join(folder, 'plugin.mjs');
  writeFileSync(
    plugin,
    `
      import { createServer, connect } from 'node:net';
      import { submitResultSchema } from '@boxcar/kernel';
      import { createPool } from '@boxcar/store';
      export default async (runtime) => {
        setInterval(() => undefined, 1_000);
        process.on('beforeExit', () => setTimeout(() => undefined, 1_000));
        const server = createServer().listen(0, '127.0.0.1', () => connect(server.address().port, '127.0.0.1'));
        const pool = createPool({ connectionString: process.env.DATABASE_URL, max: 1 });
        await (await pool.connect()).query('select 1');
        runtime.registerHandler('much', {
          description: 'Much.',
          input: submitResultSchema,
          handle: () => ({ much: 'x'.repeat(${SIZE}) }),
        });
      };
    `,
  );
  env = { DATABASE_URL: (await testDatabase()).url, BOXCAR_PLUGINS: plugin };
  await (await prepare(env)).close();
});
afterAll(() => rmSync(folder, { recursive: true, force: true }));

it('submit ends with its whole answer when its pipe is read late', async () => {
  const child = spawn(
    process.execPath,
    [
      ...['--conditions=@boxcar/source', '--import=tsx', join(import.meta.dirname, 'main.ts')],
      ...['submit', 'much', '--arg', 'result=x'],
    ],
    { env: { PATH: process.env.PATH, ...env }, stdio: ['ignore', 'pipe', 'inherit'] },
  );
  const ended = new Promise<number | null>((settle) => void child.once('close', settle));
  let size = 0;
  for await (const chunk of child.stdout) {
    // A pipe holds 64 KiB.
    if (size === 0) await delay(200);
    size += String(chunk).replaceAll(/[^x]/g, '').length;
  }
  expect(await ended).toBe(0);
  expect(size).toBe(SIZE);
});

it('profiles apply ends, and so does a worker that is asked to stop', async () => {
  const applied = await cli(['profiles', 'apply', '-f', PROFILES, '--plugin', plugin], env);
  expect(applied).toMatchObject({ code: 0, stdout: expect.stringContaining('writer') });
  await using worker = startCli(['worker', '--json', '--plugin', plugin], env);
  await worker.line(/"event":"worker.ready"/, { deadlineMs: 90_000 });
  await worker.kill('SIGTERM');
  expect(await worker.exited).toEqual({ code: 0, signal: null });
  expect(worker.stdout).toContain('"event":"worker.stopped"');
});

it('a plugin whose module never settles is named, and its command continues until it is stopped', async () => {
  const never = join(folder, 'never.mjs');
  // This timer does not keep the process alive: it fires only in a process that stays for another reason.
  writeFileSync(
    never,
    "setTimeout(() => console.log('alive'), 10_500).unref();\nawait new Promise(() => undefined);\nexport default () => undefined;\n",
  );
  await using child = startCli(['submit', 'much', '--arg', 'result=x', '--plugin', never], env);
  await child.line(/^alive$/, { deadlineMs: 90_000 });
  expect(child.stderr).toMatch(/plugin\.slow.*never\.mjs.*has not ended after 10 s/);
  await child.kill('SIGTERM');
  expect(await child.exited).toEqual({ code: 143, signal: null });
});

it('a long word is wrapped in linear time', () => {
  const lines = wrap('x'.repeat(2_000_000), 80);
  expect(lines).toHaveLength(25_000);
  expect(lines.join('')).toHaveLength(2_000_000);
});
