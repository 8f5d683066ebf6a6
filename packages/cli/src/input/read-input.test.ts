import { execFileSync } from 'node:child_process';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, describe, expect, it, test } from 'vitest';
import { cliHere } from '../testing/cli.js';
import { readInput } from './read-input.js';

const folder = mkdtempSync(join(tmpdir(), 'boxcar-read-input-'));
afterAll(() => rmSync(folder, { recursive: true }));

const NOBODY = { DATABASE_URL: 'postgres://127.0.0.1:1/boxcar', BOXCAR_DATABASE_WAIT_SECONDS: '0' };
const fifo = join(folder, 'fifo');
execFileSync('mkfifo', [fifo]);
const large = join(folder, 'large');
writeFileSync(large, Buffer.alloc(4 * 1024 * 1024 + 1, 'a'));

describe.each([
  ['profiles apply', ['profiles', 'apply', '-f']],
  ['submit', ['submit', 'launch_principal', '--file']],
  ['box create', ['box', 'create', '--file']],
  ['pack preview', ['pack', '--source-agent', 'operator', '--handover']],
  ['projects set', ['projects', 'set', 'default', '--prices']],
])('the command %s refuses', (_name, args) => {
  const isSetting = args[0] === 'projects';

  it.each([
    ['/dev/zero', /is not a regular file/],
    [fifo, /is not a regular file/],
  ])('%s', async (path, message) => {
    const { code, stderr } = await cliHere([...args, isSetting ? `@${path}` : path], NOBODY);
    expect(stderr).toMatch(message);
    expect(code).toBe(1);
  });
});

it('profiles apply refuses a file of more than 4 MiB', async () => {
  const { code, stderr } = await cliHere(['profiles', 'apply', '-f', large], NOBODY);
  expect([code, stderr]).toEqual([1, expect.stringMatching(/larger than 4 MiB/)]);
});

it.each([
  ['/dev/zero', /is not a regular file/],
  [fifo, /is not a regular file/],
  [large, /larger than 4 MiB/],
])('BOXCAR_PRICES refuses %s', async (path, message) => {
  const { code, stderr } = await cliHere(['doctor'], { ...NOBODY, BOXCAR_PRICES: path });
  expect(stderr).toMatch(message);
  expect(code).toBe(1);
});

test('a file of exactly the limit is read', async () => {
  const path = join(folder, 'fits');
  writeFileSync(path, 'abcd');
  expect((await readInput(path, 4)).toString()).toBe('abcd');
  await expect(readInput(path, 3)).rejects.toThrow('is larger than');
  await expect(readInput(join(folder, 'none'))).rejects.toMatchObject({ code: 'ENOENT' });
});
