// Checks `migrations/previous-build` as far as git allows. The file must name a commit of this history with an older schema and the same
// migrations up to it, and, when this checkout's schema is newer, the schema that has landed. Checks that are not possible are reported.
import { execFileSync } from 'node:child_process';
import { readdirSync, readFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';

const FILE = 'migrations/previous-build';
const MIGRATION = /^\d{4}_.+\.sql$/;

/**
 * @param {string} root - The root of the checkout.
 * @returns {{ failures: string[], unchecked: string[] }}
 */
export function checkPreviousBuild(root) {
  /** @param {string[]} args */
  const git = (...args) =>
    execFileSync('git', ['-C', root, ...args], {
      encoding: 'utf8',
      stdio: ['ignore', 'pipe', 'ignore'],
    }).trim();
  /** @param {string[]} args */
  const holds = (...args) => {
    try {
      git(...args);
      return true;
    } catch {
      return false;
    }
  };
  /** @param {string} commit */
  const migrationsOf = (commit) =>
    new Map(
      git('ls-tree', commit, 'migrations/')
        .split('\n')
        .map((line) => line.split(/\s+/))
        .map(([, , hash = '', path = '']) => /** @type {const} */ ([path.slice('migrations/'.length), hash]))
        .filter(([name]) => MIGRATION.test(name)),
    );

  const commit = readFileSync(join(root, FILE), 'utf8').trim();
  const own = readdirSync(join(root, 'migrations')).filter((name) => MIGRATION.test(name));
  if (!/^[0-9a-f]{40}$/.test(commit))
    return { failures: [`${FILE} does not hold the id of a commit`], unchecked: [] };
  if (!holds('rev-parse', '--git-dir'))
    return { failures: [], unchecked: ['this folder is not a git checkout'] };
  const isShallow = git('rev-parse', '--is-shallow-repository') === 'true';
  if (!holds('cat-file', '-e', `${commit}^{commit}`)) {
    const what = `this checkout has no commit ${commit}`;
    return isShallow
      ? { failures: [], unchecked: [`${what}: it is shallow`] }
      : { failures: [`${FILE}: ${what}`], unchecked: [] };
  }

  const failures = [];
  const unchecked = [];
  if (!holds('merge-base', '--is-ancestor', commit, 'HEAD')) {
    if (isShallow) unchecked.push(`whether ${commit} is in this history: the checkout is shallow`);
    else failures.push(`${FILE}: ${commit} is not in the history of this checkout`);
  }
  const named = migrationsOf(commit);
  if (named.size >= own.length)
    failures.push(
      `${FILE}: ${commit} has ${named.size} migrations, this checkout ${own.length}: it must be older`,
    );
  for (const [name, hash] of named) {
    const isSame = own.includes(name) && git('hash-object', join(root, 'migrations', name)) === hash;
    if (!isSame) failures.push(`${FILE}: ${commit} has another ${name}: it is not what has landed`);
  }
  const landed = ['origin/HEAD', 'origin/main'].find((ref) =>
    holds('rev-parse', '--verify', `${ref}^{commit}`),
  );
  const landedCount = landed === undefined ? undefined : migrationsOf(landed).size;
  if (landedCount === undefined) unchecked.push('what has landed: there is no origin/main here');
  else if (landedCount >= own.length)
    unchecked.push(`what landed before: ${landed} has the schema of this checkout already`);
  else if (landedCount !== named.size)
    // The origin of a clone may be a checkout whose work has not landed.
    unchecked.push(
      `what has landed: ${FILE} names schema ${named.size}, ${landed} has schema ${landedCount}. If that has landed, write ${git('rev-parse', String(landed))} there`,
    );
  return { failures, unchecked };
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const { failures, unchecked } = checkPreviousBuild(dirname(dirname(fileURLToPath(import.meta.url))));
  for (const text of unchecked) console.error(`NOT CHECKED: ${text}`);
  for (const text of failures) console.error(text);
  process.exitCode = failures.length === 0 ? 0 : 1;
}
