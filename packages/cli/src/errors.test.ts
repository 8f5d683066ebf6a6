import { chmodSync, closeSync, mkdtempSync, openSync, rmSync } from 'node:fs';
import { createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { type TestDatabase, testDatabase } from '@boxcar/testkit';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { cli, cliHere, type Env, PROFILES, startCli } from './testing/cli.js';

let migrated: TestDatabase;
let empty: TestDatabase;

beforeAll(async () => {
  migrated = await testDatabase();
  empty = await testDatabase({ empty: true });
});

const NOBODY = { DATABASE_URL: 'postgres://127.0.0.1:1/boxcar', BOXCAR_DATABASE_WAIT_SECONDS: '0' };
/** Redis is never contacted; the variable is set only because queue tables would be needed without it. */
const REDIS_URL = 'redis://127.0.0.1:1';

const withPassword = (url: string, password: string): string => {
  const changed = new URL(url);
  changed.username = 'somebody_else';
  changed.password = password;
  return changed.href;
};

const SUBMIT = ['submit', 'launch_principal', '--arg', 'profile_name=x', '--arg', 'instruction=y'];
const APPLY = ['profiles', 'apply', '-f', PROFILES];

/** Expects exactly one line, `boxcar: <code>: …`, that says how to react. */
async function expectError(args: readonly string[], env: Env, line: RegExp, run = cli): Promise<void> {
  const { code, stdout, stderr } = await run(args, env);
  expect({ stdout, code }).toEqual({ stdout: '', code: 1 });
  expect(stderr).toMatch(line);
  expect(stderr.trimEnd().split('\n')).toHaveLength(1);
}

it('without a server every command says in one line what to check', async () => {
  const line =
    /^boxcar: database_unavailable: Postgres: .*ECONNREFUSED.* Check DATABASE_URL and that the server runs/;
  for (const args of [['worker'], SUBMIT, ['migrate']]) await expectError(args, NOBODY, line);
  for (const args of [['show', '01234567'], APPLY, ['health']])
    await expectError(args, NOBODY, line, cliHere);
});

describe.runIf(process.platform === 'linux')('a full disk', () => {
  it('for stdout is one plain error of every command', async () => {
    const full = openSync('/dev/full', 'w');
    try {
      for (const args of [['--help'], ['submit', '--help'], ['profiles', 'ls']]) {
        await using child = startCli(
          args,
          { DATABASE_URL: migrated.url, REDIS_URL },
          { files: { stdout: full } },
        );
        expect((await child.exited).code, child.stderr).toBe(1);
        expect(child.stderr).toMatch(/^boxcar: output_failed: stdout cannot be written: ENOSPC[^\n]*\n$/);
      }
    } finally {
      closeSync(full);
    }
  });

  it('for stderr loses the lines: a command still answers', async () => {
    const full = openSync('/dev/full', 'w');
    try {
      await using child = startCli(
        ['profiles', 'ls', '--json'],
        { DATABASE_URL: migrated.url, REDIS_URL },
        { files: { stderr: full } },
      );
      expect((await child.exited).code).toBe(0);
      expect(JSON.parse(child.stdout)).toBeDefined();
      await using refused = startCli(['nonsense'], {}, { files: { stderr: full } });
      expect((await refused.exited).code).toBe(2);
    } finally {
      closeSync(full);
    }
  });
});

it('no line shows the value of a secret variable', async () => {
  const env = { DATABASE_URL: migrated.url, REDIS_URL, MY_API_KEY: 'sk-0123456789-abcdef' };
  const args = ['submit', 'launch_principal', '--arg', `profile_name=${env.MY_API_KEY}`];
  await expectError([...args, '--arg', 'instruction=y'], env, /'\[secret: MY_API_KEY\]'/, cliHere);
});

it('with a wrong user or password every command reports it in one line', async () => {
  const line =
    /^boxcar: database_auth_failed: Postgres: .*somebody_else.* Correct user, password and database name in DATABASE_URL\.$/m;
  const env = { DATABASE_URL: withPassword(migrated.url, 'wrong') };
  await expectError(['worker'], env, line);
  for (const args of [['show', '01234567'], ['migrate']]) await expectError(args, env, line, cliHere);
  // The pool can connect, the direct connection cannot.
  const { code, stderr } = await cli(['worker'], {
    DATABASE_URL: migrated.url,
    DATABASE_DIRECT_URL: withPassword(migrated.url, 'wrong'),
    REDIS_URL,
  });
  expect(code).toBe(1);
  expect(stderr.trimEnd().split('\n').at(-1)).toMatch(line);
});

it('a database without our schema gives one line that names the command to run', async () => {
  const line = /^boxcar: schema_outdated: The database has no Boxcar schema yet\. Run `boxcar migrate`\.$/m;
  const env = { DATABASE_URL: empty.url, REDIS_URL };
  await expectError(['worker'], env, line);
  for (const args of [SUBMIT, APPLY, ['show', '01234567'], ['health']])
    await expectError(args, env, line, cliHere);
});

it('without Redis and without queue tables a command fails before anything is accepted, since rings are not possible', async () => {
  for (const args of [['worker'], SUBMIT]) {
    await expectError(
      args,
      { DATABASE_URL: migrated.url },
      /^boxcar: schema_outdated: The database has no queue tables yet\. Run `boxcar migrate`\.$/m,
      cliHere,
    );
  }
});

it('a database that does not exist is named', async () => {
  const url = new URL(migrated.url);
  url.pathname = '/no_such_place';
  await expectError(
    ['migrate'],
    { DATABASE_URL: url.href },
    /^boxcar: database_auth_failed: .*no_such_place/,
  );
});

it('an invalid configuration is reported in one line, all problems together, before anything is opened', async () => {
  await expectError(
    ['worker'],
    { DATABASE_URL: 'db', REDIS_URL: 'http://x', BOXCAR_CONCURRENCY: 'many' },
    /^boxcar: bad_config: DATABASE_URL: .*; REDIS_URL: .*; BOXCAR_CONCURRENCY: .* Correct the listed settings\.$/m,
  );
});

it('a plugin that does not exist is named', async () => {
  await expectError(
    ['worker', '--plugin', './nowhere.mjs'],
    { DATABASE_URL: migrated.url, REDIS_URL },
    /^boxcar: plugin_failed: Plugin .*nowhere\.mjs: /,
    cliHere,
  );
});

it('an unknown primitive, and arguments that do not fit, are refused with the correction to make', async () => {
  const env = { DATABASE_URL: migrated.url, REDIS_URL };
  await expectError(
    ['submit', 'dance'],
    env,
    /^boxcar: unknown_primitive: No primitive 'dance'.* Known are /,
    cliHere,
  );
  await expectError(
    [
      'submit',
      'launch_principal',
      '--arg',
      'profile_name=x',
      '--arg',
      'instruction=y',
      '--arg',
      'colour=red',
    ],
    env,
    /^boxcar: bad_request: arguments: unknown key 'colour'; known here are /,
    cliHere,
  );
  await expectError(
    ['submit', 'launch_principal', '--arg', 'profile_name=nobody', '--arg', 'instruction=y'],
    env,
    /^boxcar: not_found: arguments.profile_name: No profile 'nobody'/,
    cliHere,
  );
});

it('with --json an error is one JSON object on stderr, and a stack is printed only at the level debug', async () => {
  const json = await cliHere(['show', '01234567', '--json'], NOBODY);
  expect(json.code).toBe(1);
  expect(JSON.parse(json.stderr)).toMatchObject({
    error: { code: 'database_unavailable', message: expect.stringContaining('Check DATABASE_URL') },
  });
  const debug = await cliHere(['show', '01234567'], { ...NOBODY, BOXCAR_LOG_LEVEL: 'debug' });
  expect(debug.stderr).toMatch(/^boxcar: database_unavailable: /);
  expect(debug.stderr).toMatch(/\n {4}at /);
});

it.each([
  [['sumbit'], /unknown command 'sumbit' \(Did you mean submit\?\)/],
  [['submit'], /missing required argument 'primitive'/],
  [['show', 'a', 'b'], /too many arguments/],
  [['worker', '--concurrency', 'ten'], /--concurrency .*must be a whole number from 1 to 1000/],
  [['worker', '--lease-ms', '1'], /--lease-ms .*must be a whole number from 500/],
  [['worker', '--target', 'No Such'], /--target .*lower-case letters/],
  [['profiles', 'apply'], /required option '-f, --file <file...>' not specified/],
  [['health', '--colour'], /unknown option '--colour'/],
])('%j is wrong usage: exit code 2, one line', async (args, line) => {
  const { code, stdout, stderr } = await cliHere(args);
  expect({ code, stdout }).toEqual({ code: 2, stdout: '' });
  expect(stderr).toMatch(line);
  expect(stderr).toMatch(/^boxcar: bad_request: .*; see boxcar (help|[a-z ]+ --help)\n$/);
});

it('wrong usage refers to the help of the intended command', async () => {
  const hint = async (...args: string[]) => / see (.*)\n$/.exec((await cliHere(args)).stderr)?.[1];
  expect(await hint('sumbit')).toBe('boxcar help');
  expect(await hint('cancel')).toBe('boxcar cancel --help');
  expect(await hint('budget', 'raise', 'x', '--tokens', '0')).toBe('boxcar budget raise --help');
  expect(await hint('budget', 'rise')).toBe('boxcar budget --help');
});

it.each([
  ['help tape show', 'boxcar tape show '],
  ['tape help show', 'boxcar tape show '],
  ['help tape', 'boxcar tape '],
  ['help show x', 'boxcar show '],
  ['show help --help', 'boxcar show '],
])('boxcar %s is the help of that command', async (line, usage) => {
  expect(await cliHere(line.split(' '))).toMatchObject({
    code: 0,
    stdout: expect.stringMatching(new RegExp(`^Usage: ${usage}`)),
    stderr: '',
  });
});

it('help and version exit with success, and name the exit codes', async () => {
  expect(await cli(['--version'])).toMatchObject({
    code: 0,
    stdout: expect.stringMatching(/^\d+\.\d+\.\d+\n$/),
  });
  expect(await cliHere(['submit', '--help'])).toMatchObject({
    code: 0,
    stderr: '',
    stdout: expect.stringMatching(/Exit codes:\n {2}0 {2}success\n.*\n.*\n.*\n {2}3 {2}--wait/),
  });
  expect(await cli(['sumbit', '--json'])).toMatchObject({
    code: 2,
    stderr: expect.stringMatching(/^\{"error":/),
  });
  const bare = await cliHere([]);
  expect(bare).toMatchObject({ code: 2, stdout: '', stderr: expect.stringContaining('Usage: boxcar') });
});

describe('the port of the embedded Postgres', () => {
  let folder: string;

  beforeAll(() => {
    folder = mkdtempSync(join(tmpdir(), 'boxcar-cli-'));
    chmodSync(folder, 0o755);
  });

  afterAll(() => rmSync(folder, { recursive: true, force: true }));

  it('gives one line of error when it is taken', async () => {
    const other = createServer();
    await new Promise<void>((resolve) => other.listen({ host: '127.0.0.1', port: 0 }, resolve));
    const address = other.address();
    const port = typeof address === 'object' && address !== null ? String(address.port) : '';
    await expectError(
      ['migrate'],
      { BOXCAR_DATA_DIR: folder, BOXCAR_POSTGRES_PORT: port },
      /^boxcar: port_in_use: Port \d+ on 127\.0\.0\.1 is taken.* Stop the other program or choose another port\.$/m,
    );
    await new Promise((resolve) => other.close(resolve));
  });
});
