import { execFile, spawn } from 'node:child_process';
import { cpSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { queueBackends, testDatabase, testRedis, waitFor } from '@boxcar/testkit';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { parse } from 'yaml';

const run = promisify(execFile);
const root = fileURLToPath(new URL('..', import.meta.url));
const shipped = ['kernel', 'store', 'runtime', 'llm', 'embedded', 'cli'];
const folder = mkdtempSync(join(tmpdir(), 'boxcar-outside-'));

/** The example, copied out of the workspace, with the packages installed from their tarballs. */
beforeAll(async () => {
  const { packageManager } = JSON.parse(readFileSync(join(root, 'package.json'), 'utf8')) as {
    packageManager: string;
  };
  await run(process.execPath, ['scripts/bootstrap.mjs'], { cwd: root });
  const tarballs = join(folder, 'tarballs');
  for (const name of shipped) {
    const cwd = join(root, 'packages', name);
    await run('npx', ['--yes', packageManager, 'pack', '--pack-destination', tarballs], { cwd });
  }
  cpSync(join(root, 'examples/own-service'), folder, {
    recursive: true,
    filter: (path) => !path.includes('node_modules'),
  });
  const { catalog } = parse(readFileSync(join(root, 'pnpm-workspace.yaml'), 'utf8')) as {
    catalog: Record<string, string>;
  };
  const manifest = JSON.parse(readFileSync(join(folder, 'package.json'), 'utf8')) as {
    dependencies: Record<string, string>;
  };
  const outside = Object.keys(manifest.dependencies).filter((name) => !name.startsWith('@boxcar/'));
  manifest.dependencies = {
    ...Object.fromEntries(outside.map((name) => [name, catalog[name] ?? '*'])),
    ...Object.fromEntries(
      shipped.map((name) => {
        const file = readdirSync(tarballs).find((entry) => entry.startsWith(`boxcar-${name}-`));
        if (file === undefined)
          throw new Error(`no tarball of ${name} in ${readdirSync(tarballs).join(', ')}`);
        return [`@boxcar/${name}`, `file:tarballs/${file}`];
      }),
    ),
  };
  writeFileSync(join(folder, 'package.json'), JSON.stringify(manifest));
  await run('npm', ['install', '--no-audit', '--no-fund', '--prefer-offline', '--loglevel=error'], {
    cwd: folder,
  });
}, 300_000);

afterAll(() => rmSync(folder, { recursive: true, force: true }));

interface Report {
  before: { cards: number; boxes: number };
  afterRollback: { cards: number; boxes: number };
  afterCommit: { cards: number; boxes: number };
  attached: number;
  answers: { status: string; result: string; turn_id: string }[];
}

describe.each(queueBackends())('a program outside the workspace, queues on %s', (backend) => {
  test('packs in its own transaction, adds a primitive, and two worker processes run it', async () => {
    const database = await testDatabase({ empty: true });
    const redis = backend === 'redis' ? await testRedis() : undefined;
    const env = {
      ...process.env,
      DATABASE_URL: database.url,
      REDIS_URL: redis?.url ?? '',
      DATABASE_DIRECT_URL: '',
    };
    const options = { cwd: folder, env };
    await run('npx', ['boxcar', 'migrate'], options);
    await run('npx', ['boxcar', 'profiles', 'apply', '-f', 'profiles.yaml'], options);
    const bin = join(folder, 'node_modules/@boxcar/cli/bin/boxcar.mjs');
    let printed = '';
    const workers = [1, 2].map(() => {
      const worker = spawn(process.execPath, [bin, 'worker', '--plugin', './plugin.js'], {
        ...options,
        stdio: ['ignore', 'ignore', 'pipe'],
      });
      worker.stderr.on('data', (text) => {
        printed += String(text);
      });
      return worker;
    });
    // A door has a row too, without targets.
    const registered = "select from boxcar.workers where targets <> '{}'";
    try {
      await waitFor(
        async () => {
          if (workers.some(({ exitCode }) => exitCode !== null))
            throw new Error(`a worker ended: ${printed}`);
          return (await database.pool.query(registered)).rowCount === 2;
        },
        { deadlineMs: 60_000, message: 'two workers registered' },
      );
      const { stdout } = await run(process.execPath, ['program.js'], options);
      const report = JSON.parse(stdout) as Report;
      expect(report.afterRollback).toEqual(report.before);
      expect(report.afterCommit).toEqual({ cards: report.before.cards + 3, boxes: report.before.boxes + 2 });
      expect(report.attached).toBe(3);
      expect(report.answers.map((answer) => [answer.status, answer.result])).toEqual([
        ['success', 'Reviewed src/auth.ts: risk high.'],
        ['success', 'Reviewed src/list.ts: risk low.'],
        ['success', 'Reviewed README.md: risk low.'],
        ['success', 'Reviewed src/auth/keys.ts: risk high.'],
      ]);
    } finally {
      for (const worker of workers) worker.kill('SIGTERM');
      await Promise.all(
        workers.map((worker) => worker.exitCode ?? new Promise((resolve) => worker.once('exit', resolve))),
      );
    }
    const { rows } = await database.pool.query(
      "select count(*)::int as n from boxcar.turns where status = 'success'",
    );
    expect(rows).toEqual([{ n: 4 }]);
  });
});
