// Finds lines of the pages that are too long, in prose and in rows of tables. Fenced code blocks may have longer lines.
import { execFileSync } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { readScriptArguments } from './script-arguments.mjs';

const LIMIT = 200;
const USAGE = `Usage: node scripts/long-lines.mjs

Lists the lines of *.md files that have more than ${LIMIT} characters, and fails if there are any. The lines of fenced code blocks are not
counted, and files below a folder named fixtures are not read.`;

/**
 * @param {string} markdown
 * @returns {readonly { readonly line: number, readonly length: number }[]}
 */
export function findLongLines(markdown) {
  const found = [];
  /** The fence of the block that the line is in. */
  let fence = '';
  for (const [index, line] of markdown.split('\n').entries()) {
    const [, sign = '', rest = ''] = /^\s*(`{3,}|~{3,})(.*)$/.exec(line) ?? [];
    // Inside a block, a shorter fence, another sign and a fence with a language are text of the block.
    if (fence === '') fence = sign;
    else if (sign.startsWith(fence) && rest.trim() === '') fence = '';
    const { length } = [...line];
    if (fence === '' && length > LIMIT) found.push({ line: index + 1, length });
  }
  return found;
}

const root = dirname(dirname(fileURLToPath(import.meta.url)));

/**
 * Fixtures are data of tests, not pages.
 *
 * @param {string} path
 */
export const isPage = (path) => path.endsWith('.md') && !path.split('/').slice(0, -1).includes('fixtures');

const listPages = () =>
  execFileSync(
    'git',
    ['ls-files', '-z', '--cached', '--others', '--exclude-standard', '--deduplicate', '*.md'],
    {
      cwd: root,
      encoding: 'utf8',
    },
  )
    .split('\0')
    .filter(isPage);

function main() {
  readScriptArguments(USAGE);
  for (const path of listPages()) {
    const found = findLongLines(readFileSync(join(root, path), 'utf8'));
    for (const { line, length } of found) console.error(`${path}:${line}: ${length} characters`);
    if (found.length > 0) process.exitCode = 1;
  }
  if (process.exitCode === 1) console.error(`A line has at most ${LIMIT} characters.`);
}

if (process.argv[1] === fileURLToPath(import.meta.url)) main();
