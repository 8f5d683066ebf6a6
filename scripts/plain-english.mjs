// Counts habits of wording that make a reader read twice, in the docs and in the comments, per 1,000 words. The rules: CONTRIBUTING.md.
import { execFileSync } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { commentsOf } from './comments.mjs';
import { readScriptArguments } from './script-arguments.mjs';

const LIMIT = 3;
const USAGE = `Usage: node scripts/plain-english.mjs [--places] [--by-folder]

Counts habits that plain English does without, and fails above ${LIMIT} per 1,000 words of docs or of comments.

  --places      list each place
  --by-folder   count each folder apart`;

/** @type {readonly (readonly [name: string, pattern: RegExp])[]} */
export const HABITS = [
  // After a noun "who" is a pronoun; at the beginning of a clause it is used as a noun.
  [
    'who as a noun',
    /\bwhoever\b|(?:^|[.:;,(–—]\s*|\b(?:of|to|by|with|for|from|and|or|but|as|that|on|than|in|about|is|say|says|know|knows|tell|tells|told|show|shows|see|sees|ask|asks|decide|decides|decided|learn|learns|name|names|find|finds)\s+)who\b(?!\s+(?:are|is) (?:you|we)\b)/gi,
  ],
  ['is no, was none', /\b(?:is|are|was|were) (?:no|none)\b/gi],
  ['a clause that begins with what', /\bwhat (?:is|are|was|has|comes|stands|others|a|the|it|they)\b/gi],
  ['nobody, somebody', /\b(?:nobody|somebody|everybody|anybody)\b/gi],
  ['behind', /\bbehind\b/gi],
  ['stands', /\b(?:stand|stands|stood)\b/gi],
  ['in hand', /\bin hand\b/gi],
  ['anew, besides', /\b(?:anew|besides|thereby|for ever)\b/gi],
];

/** Text without code, addresses and tables' rules: names of code have no choice of words. */
const proseOf = (markdown) =>
  markdown
    .replace(/^(`{3,}|~{3,})[\s\S]*?^\1/gm, (code) => code.replace(/[^\n]/g, ''))
    .replace(/`[^`\n]*`/g, '`')
    .replace(/\]\([^)\n]*\)/g, ']')
    .replace(/https?:\S+/g, '');

const countWords = (text) => text.match(/[A-Za-z][A-Za-z'’-]*/g)?.length ?? 0;

/**
 * @param {string} text
 * @returns {readonly { readonly habit: string, readonly line: number, readonly words: string }[]}
 */
export function findHabits(text) {
  const prose = proseOf(text);
  return HABITS.flatMap(([habit, pattern]) =>
    [...prose.matchAll(pattern)].map(({ index, 0: words }) => ({
      habit,
      line: prose.slice(0, index + words.length).split('\n').length,
      words: words.trim(),
    })),
  );
}

export const measure = (text) => ({ words: countWords(proseOf(text)), places: findHabits(text) });

const root = dirname(dirname(fileURLToPath(import.meta.url)));
const listFiles = (...patterns) =>
  execFileSync('git', ['ls-files', '--cached', '--others', '--exclude-standard', ...patterns], {
    cwd: root,
    encoding: 'utf8',
  })
    .split('\n')
    .filter((path) => path !== '');
/** What is generated has the words of its sources. */
const GENERATED = /^(docs\/reference\/api\.md|docs\/reference\/api\/|migrations\/schema\.sql)/;

const KINDS = [
  { kind: 'docs', files: () => listFiles('*.md'), textOf: (source) => source },
  {
    kind: 'comments',
    files: () => listFiles('*.ts', '*.mts', '*.mjs', '*.sql', '*.sh'),
    textOf: (source, path) => commentsOf(source, path),
  },
];

const folderOf = (path) => {
  const [first = '', second] = path.split('/');
  if (second === undefined) return '.';
  return first === 'packages' || first === 'examples' ? `${first}/${second}` : first;
};

function main() {
  const { flags } = readScriptArguments(USAGE, { flags: ['places', 'by-folder'] });
  for (const { kind, files, textOf } of KINDS) {
    const folders = new Map();
    const byHabit = new Map();
    let words = 0;
    let count = 0;
    for (const path of files()) {
      if (GENERATED.test(path)) continue;
      const found = measure(textOf(readFileSync(join(root, path), 'utf8'), path));
      words += found.words;
      count += found.places.length;
      const folder = folders.get(folderOf(path)) ?? { words: 0, count: 0 };
      folder.words += found.words;
      folder.count += found.places.length;
      folders.set(folderOf(path), folder);
      for (const place of found.places) {
        byHabit.set(place.habit, (byHabit.get(place.habit) ?? 0) + 1);
        if (flags.has('places')) console.log(`${path}:${place.line}: ${place.words}  (${place.habit})`);
      }
    }
    const rate = (1_000 * count) / Math.max(words, 1);
    const most = [...byHabit].sort(([, a], [, b]) => b - a);
    console.log(
      `${kind}: ${rate.toFixed(1)} per 1,000 words (${count} in ${words}); ${most.map(([habit, n]) => `${habit} ${n}`).join(', ')}`,
    );
    if (flags.has('by-folder'))
      for (const [folder, { words: of, count: n }] of [...folders].sort(([a], [b]) => a.localeCompare(b)))
        console.log(
          `  ${folder.padEnd(24)} ${((1_000 * n) / Math.max(of, 1)).toFixed(1).padStart(6)}  (${n} in ${of})`,
        );
    if (rate > LIMIT) {
      console.error(`${kind}: more than ${LIMIT} per 1,000 words; --places lists them`);
      process.exitCode = 1;
    }
  }
}

if (process.argv[1] === fileURLToPath(import.meta.url)) main();
