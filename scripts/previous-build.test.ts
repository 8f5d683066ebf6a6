/** Tests that `migrations/previous-build` names a build from before the schema of a checkout, on checkouts created for the test. */
import { execFileSync } from 'node:child_process';
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { checkPreviousBuild } from './previous-build.mjs';

let top: string;
let root: string;

const git = (...args: string[]): string =>
  execFileSync('git', ['-C', root, '-c', 'user.name=a', '-c', 'user.email=a@example.com', ...args], {
    encoding: 'utf8',
    stdio: ['ignore', 'pipe', 'ignore'],
  }).trim();
const write = (name: string, text: string): void => writeFileSync(join(root, 'migrations', name), text);
const commit = (): string => {
  git('add', '.');
  git('commit', '-qm', 'x', '--allow-empty');
  return git('rev-parse', 'HEAD');
};
const name = (id: string): void => write('previous-build', `${id}\n`);

beforeEach(() => {
  top = mkdtempSync(join(tmpdir(), 'boxcar-previous-build-'));
  root = join(top, 'checkout');
  mkdirSync(join(root, 'migrations'), { recursive: true });
  git('init', '-q', '-b', 'main');
});
afterEach(() => rmSync(top, { recursive: true, force: true }));

/** Three commits with schemas 1, 2 and 2, and the checkout at 3. */
function history(): [first: string, second: string, third: string] {
  write('0001_a.sql', 'select 1;');
  const first = commit();
  write('0002_b.sql', 'select 2;');
  const second = commit();
  const third = commit();
  write('0003_c.sql', 'select 3;');
  return [first, second, third];
}

test('a commit whose schema has landed is correct, and for an older commit the check says what may be newer', () => {
  const [first, second, third] = history();
  git('update-ref', 'refs/remotes/origin/main', third);
  for (const id of [second, third]) {
    name(id);
    expect(checkPreviousBuild(root)).toEqual({ failures: [], unchecked: [] });
  }
  name(first);
  expect(checkPreviousBuild(root)).toEqual({
    failures: [],
    unchecked: [expect.stringContaining(`has schema 2. If that has landed, write ${third} there`)],
  });
});

test('a commit with the schema of the checkout, of another history or with other migrations is wrong', () => {
  const [, , third] = history();
  const own = commit();
  name(own);
  expect(checkPreviousBuild(root).failures).toEqual([expect.stringContaining('it must be older')]);
  git('checkout', '-q', '--orphan', 'other');
  const other = commit();
  git('checkout', '-q', 'main');
  write('0004_d.sql', 'select 4;');
  name(other);
  expect(checkPreviousBuild(root).failures).toEqual([expect.stringContaining('is not in the history')]);
  name(third);
  write('0002_b.sql', 'select 22;');
  expect(checkPreviousBuild(root).failures).toEqual([expect.stringContaining('has another 0002_b.sql')]);
  name('nonsense');
  expect(checkPreviousBuild(root).failures).toEqual([expect.stringContaining('does not hold the id')]);
  name('0'.repeat(40));
  expect(checkPreviousBuild(root).failures).toEqual([expect.stringContaining('has no commit')]);
});

test('a check that is not possible is reported: no origin, a landed schema, a shallow clone, no git', () => {
  const [, second, third] = history();
  name(third);
  expect(checkPreviousBuild(root)).toEqual({
    failures: [],
    unchecked: [expect.stringContaining('no origin/main')],
  });
  git('update-ref', 'refs/remotes/origin/main', commit());
  expect(checkPreviousBuild(root)).toEqual({
    failures: [],
    unchecked: [expect.stringContaining('has the schema of this checkout already')],
  });
  const from = root;
  root = join(top, 'shallow');
  execFileSync('git', ['clone', '-q', '--depth=1', `file://${from}`, root], { stdio: 'ignore' });
  name(second);
  expect(checkPreviousBuild(root)).toEqual({
    failures: [],
    unchecked: [expect.stringContaining('it is shallow')],
  });
  rmSync(join(root, '.git'), { recursive: true });
  expect(checkPreviousBuild(root)).toEqual({
    failures: [],
    unchecked: ['this folder is not a git checkout'],
  });
});
