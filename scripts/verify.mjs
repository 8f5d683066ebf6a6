// Everything that must hold before a change lands. `--static` leaves out the tests. All steps run, so that one run shows all failures;
// the exit code tells whether there are any.
import { spawnSync } from 'node:child_process';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { readScriptArguments } from './script-arguments.mjs';

const USAGE = `Usage: npm run verify [-- --static]

Checks format, lint, types, import arrows, rooms, lines of SQL, unused code, docs/reference/api.md, links and types of
exports, the wording of docs and comments, the length of lines in the docs, the schema dump and the build before, then
runs all tests.

  --static   leave out the tests`;
const { flags } = readScriptArguments(USAGE, { flags: ['static'] });

const root = dirname(dirname(fileURLToPath(import.meta.url)));
const bin = (name) => join(root, 'node_modules', '.bin', name);
const source = ['--conditions=@boxcar/source', '--import', 'tsx'];

/** @type {[title: string, command: string, ...args: string[]][]} */
const steps = [
  ['install and build', process.execPath, 'scripts/bootstrap.mjs'],
  ['format, lint and import arrows', bin('biome'), 'check', '--error-on-warnings', '.'],
  ['rooms and import circles', process.execPath, 'scripts/rooms.mjs'],
  ['lines of SQL', process.execPath, 'scripts/sql-lines.mjs'],
  ['types, tests included', bin('tsc'), '-p', 'tsconfig.test.json'],
  ['unused files, exports and dependencies', bin('knip')],
  ['exports in docs/reference/api.md', process.execPath, 'scripts/api.mjs'],
  ['links and types of exports', process.execPath, 'tools/api-docs/api-docs.mjs', '--check'],
  ['plain English', process.execPath, 'scripts/plain-english.mjs'],
  ['lines of the docs', process.execPath, 'scripts/long-lines.mjs'],
  ['schema dump', process.execPath, ...source, 'scripts/db-dump.ts', '--check'],
  ['the build before', process.execPath, 'scripts/previous-build.mjs'],
];
if (!flags.has('static')) steps.push(['tests', process.execPath, 'scripts/test.mjs']);

const failures = [];
for (const [title, command, ...args] of steps) {
  console.error(`\n== ${title}`);
  const { status } = spawnSync(command, args, { cwd: root, stdio: ['ignore', 'inherit', 'inherit'] });
  if (status !== 0) failures.push(title);
}
console.error(failures.length === 0 ? '\nverified' : `\nfailed: ${failures.join('; ')}`);
process.exitCode = failures.length === 0 ? 0 : 1;
