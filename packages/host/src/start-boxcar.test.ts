/** One call opens everything that a program needs. The program or Ctrl-C closes all of it again. */
import { chmodSync, existsSync, mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { deleteEmbeddedData, startEmbeddedPostgres } from '@boxcar/embedded';
import { spawnNode, testDatabase, waitFor } from '@boxcar/testkit';
import pg from 'pg';
import { afterAll, afterEach, expect, it, vi } from 'vitest';
import { startBoxcar } from './start-boxcar.js';

const PROGRAM = new URL('./testing/own-program.ts', import.meta.url);
const STARTING = new URL('./testing/starting-program.ts', import.meta.url);
const folder = mkdtempSync(join(tmpdir(), 'boxcar-program-'));
const dataDir = join(folder, 'postgres-18');
// The account that runs root's server must be able to enter the folder.
chmodSync(folder, 0o755);
afterEach(() => vi.unstubAllEnvs());
afterAll(async () => {
  // A program that was killed has left its server running.
  await deleteEmbeddedData({ dataDir });
  rmSync(folder, { recursive: true, force: true });
});

const listeners = (): number[] => ['SIGINT', 'SIGTERM', 'SIGHUP'].map((name) => process.listenerCount(name));

it('startBoxcar migrates a database, runs turns in this process, and closes everything that it has opened', async () => {
  await using database = await testDatabase({ empty: true });
  vi.stubEnv('DATABASE_URL', 'postgres://nobody@127.0.0.1:1/elsewhere');
  vi.stubEnv('DATABASE_DIRECT_URL', 'postgres://nobody@127.0.0.1:1/elsewhere');
  vi.stubEnv('REDIS_URL', 'redis://127.0.0.1:1');
  const before = listeners();
  const boxcar = await startBoxcar({ databaseUrl: database.url, redisUrl: '' });
  expect(boxcar.isEmbedded).toBe(false);
  expect(boxcar.directUrl).toBe(database.url);
  await boxcar.runtime.applyProfile({
    name: 'echo',
    instructions: 'Answer.',
    model: 'scripted',
    script: [{ say: 'Done.' }],
  });
  const worker = await boxcar.startWorker({ concurrency: 2 });
  const answer = await boxcar.runtime.submit('launch_principal', {
    profile_name: 'echo',
    instruction: 'Go.',
    wait: true,
  });
  expect(answer).toMatchObject({ status: 'success', result: 'Done.' });
  expect(listeners()).toEqual(before.map((n) => n + 1));
  const closing = boxcar.close();
  // A worker that is started now would never be stopped.
  await expect(boxcar.startWorker()).rejects.toMatchObject({ code: 'internal_error' });
  await closing;
  await boxcar[Symbol.asyncDispose]();
  expect(listeners()).toEqual(before);
  const left = () =>
    database.pool.query(
      'select (select count(*)::int from boxcar.workers) as workers, (select count(*)::int from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid() and usename is not null) as clients',
    );
  // The server removes a connection from its list shortly after the connection has ended.
  await waitFor(async () => (await left()).rows[0]?.clients === database.pool.totalCount - 1, {
    message: 'no connection is left',
  });
  expect((await left()).rows).toEqual([{ workers: 0, clients: database.pool.totalCount - 1 }]);
  expect(worker.activeCount).toBe(0);
});

it('startBoxcar fails with the words of the command line, and leaves nothing open', async () => {
  vi.stubEnv('DATABASE_URL', undefined);
  const before = listeners();
  await expect(startBoxcar({ databaseUrl: 'mysql://x' })).rejects.toMatchObject({
    code: 'bad_config',
    message: 'DATABASE_URL: must be a postgres:// URL. Correct the listed settings.',
  });
  vi.stubEnv('BOXCAR_DATABASE_WAIT_SECONDS', '0');
  await expect(startBoxcar({ databaseUrl: 'postgres://x@127.0.0.1:1/x' })).rejects.toMatchObject({
    code: 'database_unavailable',
  });
  await using database = await testDatabase({ empty: true });
  await expect(startBoxcar({ databaseUrl: database.url, migrate: false })).rejects.toMatchObject({
    code: 'schema_outdated',
  });
  expect(listeners()).toEqual(before);
});

it.each([
  ['SIGTERM', 143],
  ['SIGHUP', 129],
])('%s during the start stops the server that was started', async (signal, code) => {
  const env = { BOXCAR_DATA_DIR: folder, DATABASE_URL: undefined, REDIS_URL: undefined };
  await using program = spawnNode(STARTING, [signal], env);
  expect(await program.exited, program.stderr).toEqual({ code, signal: null });
  expect(program.stdout).toBe('');
  expect(existsSync(join(dataDir, 'cluster/data/postmaster.pid'))).toBe(false);
});

const EMBEDDED = {
  BOXCAR_DATA_DIR: folder,
  DATABASE_URL: undefined,
  DATABASE_DIRECT_URL: undefined,
  REDIS_URL: undefined,
};

it.each([
  [
    'Ctrl-C hands back the turns, stops the server and ends the program',
    [],
    'SIGINT',
    130,
    'cleaning up\nstopping\n',
  ],
  [
    'a program that handles signals itself ends when it wants to',
    ['decides'],
    'SIGTERM',
    0,
    'cleaning up\nclosed\n',
  ],
] as const)('on the embedded server, %s', async (_title, args, signal, code, output) => {
  await using program = spawnNode(PROGRAM, [...args], EMBEDDED);
  await program.line(/^running postgres:\/\/boxcar_app/, { deadlineMs: 90_000 });
  await program.kill(signal);
  expect(await program.exited).toEqual({ code, signal: null });
  expect(program.stdout.replace(/^running .*\n/, '')).toBe(output);
  expect(program.stderr).toBe('');
  await using server = await startEmbeddedPostgres({ dataDir });
  expect(server.adopted).toBe(false);
  const client = new pg.Client(server.url);
  await client.connect();
  const { rows } = await client.query(
    'select distinct status, holder_id, (select count(*)::int from boxcar.workers) as workers from boxcar.turns',
  );
  await client.end();
  expect(rows).toEqual([{ status: 'dispatched', holder_id: null, workers: 0 }]);
});
