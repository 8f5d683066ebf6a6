import { readFileSync } from 'node:fs';
import { createServer, type Server, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { fileURLToPath } from 'node:url';
import { createModelRouter } from '@boxcar/llm';
import { createWorker, migrateQueues, openRuntime } from '@boxcar/runtime';
import { type NodeChild, queueBackends, spawnNode, testDatabase, testRedis, waitFor } from '@boxcar/testkit';
import { describe, expect, test } from 'vitest';
import { parse } from 'yaml';

const WORKER = new URL('../worker.js', import.meta.url);
const PROFILES = fileURLToPath(new URL('../profiles.yaml', import.meta.url));
const BOXCAR = new URL('../../../packages/cli/src/main.ts', import.meta.url);
const profile: unknown = parse(readFileSync(PROFILES, 'utf8'));
const LONG = { deadlineMs: 60_000 };

interface Site extends AsyncDisposable {
  readonly url: string;
  /** Requests that are held until the site is opened. */
  readonly held: ServerResponse[];
  open(): void;
}

/** A page that does not answer until it is opened. */
async function site(): Promise<Site> {
  const held: ServerResponse[] = [];
  let isOpen = false;
  const answer = (response: ServerResponse): void => {
    response.setHeader('content-type', 'text/html').end('<html><title>Timetable</title></html>');
  };
  const server: Server = createServer((_request, response) => {
    if (isOpen) answer(response);
    else held.push(response);
  });
  await new Promise<void>((listening) => server.listen(0, '127.0.0.1', listening));
  return {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}/`,
    held,
    open: () => {
      isOpen = true;
      held.splice(0).forEach(answer);
    },
    [Symbol.asyncDispose]: async () => {
      server.closeAllConnections();
      await new Promise((closed) => server.close(closed));
    },
  };
}

describe.each(queueBackends())('the example worker, queues on %s', (backend) => {
  test('runs the tool of its profile; killed during a job, it leaves the job to another worker', async () => {
    await using database = await testDatabase();
    await using redis = backend === 'redis' ? await testRedis() : undefined;
    if (redis === undefined) await migrateQueues(database.url);
    await using page = await site();
    await using opened = openRuntime({
      databaseUrl: database.url,
      redisUrl: redis?.url,
      model: createModelRouter({}),
    });
    const { runtime } = opened;
    await using _door = opened.serveToolResultsDoor();
    await using _worker = await createWorker(runtime);
    await runtime.applyProfile(profile);
    const start = async (): Promise<NodeChild> => {
      const child = spawnNode(WORKER, [], {
        DATABASE_URL: database.url,
        REDIS_URL: redis?.url,
        LOCK_MS: '1000',
      });
      await child.line(/^ready$/, LONG);
      return child;
    };
    const first = await start();
    const result = runtime.submit('launch_principal', {
      profile_name: 'link-checker',
      instruction: page.url,
      wait: true,
    });
    await waitFor(() => page.held.length === 1, { message: 'the tool asks for the page', ...LONG });
    await first.kill('SIGKILL');
    const second = await start();
    await waitFor(() => page.held.length === 2, { message: 'another worker asks for it again', ...LONG });
    page.open();
    expect(await result).toMatchObject({ status: 'success', result: 'Status 200, title Timetable.' });
    const { rows } = await database.pool.query('select route, target, status from boxcar.tool_calls');
    expect(rows).toEqual([{ route: 'queue', target: 'web', status: 'success' }]);
    await second.kill('SIGTERM');
    expect((await second.exited).code).toBe(0);
  }, 60_000);

  test('is started and used as its README says', async () => {
    await using database = await testDatabase({ empty: true });
    await using redis = backend === 'redis' ? await testRedis() : undefined;
    await using page = await site();
    page.open();
    const env = { DATABASE_URL: database.url, DATABASE_DIRECT_URL: undefined, REDIS_URL: redis?.url };
    const boxcar = async (...args: string[]): Promise<string> => {
      const child = spawnNode(BOXCAR, args, env);
      expect(await child.exited, child.stderr).toEqual({ code: 0, signal: null });
      return child.stdout;
    };
    await boxcar('migrate');
    await boxcar('profiles', 'apply', '-f', PROFILES);
    await using worker = spawnNode(BOXCAR, ['worker'], env);
    await waitFor(() => worker.stderr.includes(' is ready '), { message: 'the worker is ready', ...LONG });
    await using tool = spawnNode(WORKER, [], env);
    await tool.line(/^ready$/, LONG);
    const answer = await boxcar(
      ...['submit', 'launch_principal', '--arg', 'profile_name=link-checker'],
      ...['--arg', `instruction=${page.url}`, '--wait', '--json'],
    );
    expect(JSON.parse(answer)).toMatchObject({ status: 'success', result: 'Status 200, title Timetable.' });
    await worker.kill('SIGTERM');
    expect((await worker.exited).code).toBe(0);
  }, 60_000);
});
