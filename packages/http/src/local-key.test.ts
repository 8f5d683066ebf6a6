/** The key of a server that only its own machine can reach. */
import { spawnSync } from 'node:child_process';
import {
  chmodSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { SCOPES } from '@boxcar/kernel';
import { listKeys, revokeKey } from '@boxcar/runtime';
import { afterAll, afterEach, beforeAll, beforeEach, expect, test } from 'vitest';
import { askServer, localAccessFor, readServerUrl } from './client.js';
import { openLocalKey } from './local-key.js';
import { announceServer } from './local-state.js';
import { bearer, openStage, type Stage } from './testing/stage.js';

let stage: Stage;
let folder: string;

beforeAll(async () => {
  stage = await openStage();
  await stage.opened.runtime.createProject({ name: 'team' });
});
afterAll(() => stage[Symbol.asyncDispose]());
beforeEach(() => {
  folder = join(mkdtempSync(join(tmpdir(), 'boxcar-local-')), 'http');
});
afterEach(() => rmSync(dirname(folder), { recursive: true, force: true }));

const open = (project = 'default') => openLocalKey(stage.database.pool, { project, folder });
const modeOf = (path: string): number => statSync(path).mode & 0o777;
const usable = async (key: string): Promise<boolean> =>
  (await fetch(`${stage.url}/approvals`, { headers: bearer(key) })).status === 200;
const keysNow = async (): Promise<readonly string[]> =>
  (await listKeys(stage.database.pool)).keys
    .filter(({ name }) => name === 'local')
    .map(({ key_id }) => key_id);

test('the first start makes a key with all scopes that only its account can read, and the next start uses it', async () => {
  const first = await open();
  expect(first).toMatchObject({ isNew: true, key: expect.stringMatching(/^boxcar_/) });
  expect([modeOf(first.path), modeOf(dirname(first.path))]).toEqual([0o600, 0o700]);
  expect(JSON.parse(readFileSync(first.path, 'utf8'))).toMatchObject({ key: first.key, project: 'default' });
  expect(await usable(first.key)).toBe(true);
  expect((await listKeys(stage.database.pool)).keys[0]).toMatchObject({ name: 'local', scopes: SCOPES });
  expect(await open()).toEqual({ ...first, isNew: false });
  const other = await open('team');
  expect(other.path).not.toBe(first.path);
  expect(readdirSync(dirname(first.path))).toHaveLength(2);
});

test('the folder above the keys lets other accounts pass, since the embedded server of root needs a path to its own folder', async () => {
  const home = join(folder, 'home');
  const { path } = await openLocalKey(stage.database.pool, {
    project: 'default',
    folder: join(home, 'http'),
  });
  expect(modeOf(home) & 0o011).toBe(0o011);
  expect([modeOf(dirname(path)), modeOf(path)]).toEqual([0o700, 0o600]);
});

test('starts at the same time agree on one key', async () => {
  const before = (await keysNow()).length;
  // Opens a connection for each start in advance, so that no start is late.
  await Promise.all([1, 2, 3, 4].map(() => stage.database.pool.query('select pg_sleep(0.1)')));
  const keys = await Promise.all([open(), open(), open(), open()]);
  expect(new Set(keys.map(({ key }) => key)).size).toBe(1);
  expect(keys.filter(({ isNew }) => isNew)).toHaveLength(1);
  expect(await keysNow()).toHaveLength(before + 1);
});

test('a key that is no longer valid is replaced by a new key', async () => {
  const first = await open();
  await revokeKey(stage.database.pool, first.keyId);
  const second = await open();
  expect(second).toMatchObject({ isNew: true, path: first.path });
  expect(await usable(second.key)).toBe(true);
  await stage.database.pool.query("update boxcar.api_keys set scopes = '{approvals:read}' where id = $1", [
    second.keyId,
  ]);
  expect(await open()).toMatchObject({ isNew: true });
  expect(await usable(second.key)).toBe(false);
  writeFileSync(first.path, '{"key":');
  expect(await open()).toMatchObject({ isNew: true });
});

test('a file that others could read is replaced, and its key ends', async () => {
  const first = await open();
  chmodSync(first.path, 0o644);
  const second = await open();
  expect(second.isNew).toBe(true);
  expect(modeOf(second.path)).toBe(0o600);
  expect([await usable(first.key), await usable(second.key)]).toEqual([false, true]);
  chmodSync(dirname(second.path), 0o755);
  const third = await open();
  expect(third.isNew).toBe(true);
  expect(modeOf(dirname(third.path))).toBe(0o700);
});

test('a link in place of the file is not followed', async () => {
  const first = await open();
  const elsewhere = join(dirname(folder), 'elsewhere.json');
  writeFileSync(elsewhere, readFileSync(first.path), { mode: 0o600 });
  rmSync(first.path);
  symlinkSync(elsewhere, first.path);
  expect(await open()).toMatchObject({ isNew: true });
  expect(statSync(elsewhere).isFile()).toBe(true);
  expect(JSON.parse(readFileSync(elsewhere, 'utf8'))).toMatchObject({ key: first.key });
});

test('a folder that cannot be made leaves no key', async () => {
  const before = await keysNow();
  writeFileSync(folder, '');
  await expect(open()).rejects.toMatchObject({
    code: 'bad_config',
    message: expect.stringContaining(folder),
  });
  expect(await keysNow()).toEqual(before);
});

test('an archived project has no local key', async () => {
  await stage.opened.runtime.createProject({ name: 'old' });
  await stage.opened.runtime.archiveProject('old');
  await expect(open('old')).rejects.toMatchObject({ code: 'project_archived' });
});

/** The key that is offered for an address, and the address to which it would be sent. */
const offered = (url: string): readonly [string, string] | undefined => {
  const found = localAccessFor(readServerUrl(url), folder);
  return found && [found.key, found.url.origin];
};

test('clients of the account find the key by the address of the server until the server is gone, and send it nowhere else', async () => {
  const { key, path } = await open();
  const { port } = stage;
  {
    using _announced = announceServer(folder, { url: stage.url, keyPath: path });
    for (const host of ['127.0.0.1', 'localhost', '2130706433'])
      expect(offered(`http://${host}:${port}`)).toEqual([key, `http://127.0.0.1:${port}`]);
    // On the other addresses of this machine, the same port may belong to another account.
    for (const url of [
      ...['127.0.0.2', '127.1.2.3', '[::1]', '[::ffff:127.0.0.1]', '0.0.0.0', '10.0.0.1'],
      'localhost.evil.example',
    ].map((host) => `http://${host}:${port}`))
      expect([url, offered(url)]).toEqual([url, undefined]);
    for (const url of [`https://127.0.0.1:${port}`, `http://127.0.0.1:${port === 1 ? 2 : 1}`])
      expect(offered(url)).toBeUndefined();
    const url = readServerUrl(stage.url);
    expect(await askServer({ url, key }, { path: '/approvals', query: { limit: 1 } })).toEqual({
      approvals: [],
      next_cursor: null,
    });
    await expect(askServer({ url, key: 'x' }, { path: '/approvals' })).rejects.toMatchObject({
      code: 'unauthorized',
    });
    chmodSync(path, 0o640);
    expect(offered(stage.url)).toBeUndefined();
  }
  chmodSync(path, 0o600);
  expect(offered(stage.url)).toBeUndefined();
});

test('a server at another address of this machine is found there, and servers on one port are distinguished', async () => {
  const [first, second] = [await open(), await open('team')];
  using _six = announceServer(folder, { url: 'http://[::1]:7420', keyPath: first.path });
  expect(offered('http://[::1]:7420')).toEqual([first.key, 'http://[::1]:7420']);
  expect(offered('http://localhost:7420/')).toEqual([first.key, 'http://[::1]:7420']);
  expect(offered('http://127.0.0.1:7420')).toBeUndefined();
  {
    using _four = announceServer(folder, { url: 'http://127.0.0.1:7420', keyPath: second.path });
    expect(offered('http://[::1]:7420')).toEqual([first.key, 'http://[::1]:7420']);
    for (const host of ['127.0.0.1', 'localhost'])
      expect(offered(`http://${host}:7420`)).toEqual([second.key, 'http://127.0.0.1:7420']);
  }
  expect(offered('http://localhost:7420')).toEqual([first.key, 'http://[::1]:7420']);
});

test('the key of a dead server is not sent to another server that now has its port', async () => {
  const { key, path } = await open();
  using _announced = announceServer(folder, { url: stage.url, keyPath: path });
  expect(offered(stage.url)?.[0]).toBe(key);
  const { pid } = spawnSync(process.execPath, ['-e', '']);
  const [name] = readdirSync(join(folder, 'servers'));
  writeFileSync(
    join(folder, 'servers', String(name)),
    JSON.stringify({ url: stage.url, pid, key_file: path }),
  );
  expect(offered(stage.url)).toBeUndefined();
});

test('a server that is away, or that is not a Boxcar server address, is reported', async () => {
  await expect(
    askServer({ url: readServerUrl('http://127.0.0.1:1'), key: 'x' }, { path: '/approvals' }),
  ).rejects.toMatchObject({ code: 'server_unavailable', message: expect.stringContaining('127.0.0.1:1') });
  for (const url of ['127.0.0.1:7420', 'ftp://x', 'http://u:p@x', 'http://x?a=1'])
    expect(() => readServerUrl(url)).toThrow(/url: must be/);
});
