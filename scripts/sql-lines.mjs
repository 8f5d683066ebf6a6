// Finds lines of SQL that are too long to be read: SQL in a template or a string has one clause a line. Tests are left out.
import { readdirSync, readFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { fileURLToPath, pathToFileURL } from 'node:url';
import { parseSync, Visitor } from 'oxc-parser';
import { readScriptArguments } from './script-arguments.mjs';

const COLUMNS = 120;

/** A text is SQL when it matches one of these. An expression in a template counts as `name`. */
const SQL = [
  // The label of a statement, or the beginning of one of its parts.
  /\/\* \S+ \*\/|\bas \((?:select|insert|update|delete)\b|\(values \(|\bboxcar\.\w+ \(/,
  /\b(?:from|join|into|update|lateral) (?:boxcar|public|pg_\w+|purge_\w+|json\w*_\w+|unnest)\b/,
  /::(?:uuid|text|int|bigint|float8|jsonb?|timestamptz|regclass|regtype)\b|->>?'/,
  /\b(?:coalesce|row_number|jsonb?_build_\w+|json_agg|array_agg|array_remove|count)\(/,
  /\bcase (?:\S+ )?when\b[\s\S]*\bend\b/,
  /\bis (?:not )?distinct from\b|\bas (?:not )?materialized \(|\bfor (?:no key )?update\b|\border by\b/,
  /^\s*\(?(?:select|insert into|delete from|exists \(|create (?:temp|index|table))\b/,
  /^\s*with (?:recursive )?\w+ as\b/,
];
/** These are SQL too, unless the text has a sentence: a list of columns, a condition, or assignments. */
const PARTS = [
  /^[\s(]*\w+\.\w+(?:,| as \w|\s+(?:=|<>|<=|>=|<|>|is|in|like)\s)/,
  /^\s*\w+ (?:uuid|text|int|bigint|boolean|timestamptz)(?:\[\])?, \w+ \w+/,
  /^\s*(?:\w+, ){4}\w+/,
  /^\s*\w+ = [^,]+, \w+ = /,
  /\b\w+\.\w+ (?:=|<>|<=|>=) (?:\w+\.\w+|\$\d|name|')/,
  /\bname where \w+\.\w+ |\) as \w+, \w+\.\w+ /,
];
const SENTENCE = /\w[.;:!] [A-Za-z]|…/;

const isSql = (value) =>
  SQL.some((pattern) => pattern.test(value)) ||
  (PARTS.some((pattern) => pattern.test(value)) && !SENTENCE.test(value));

/**
 * The lines of a file that are too long, and that are or contain SQL.
 *
 * @param {string} file
 * @param {string} text
 */
export function findLongSql(file, text) {
  const { program, errors } = parseSync(file, text);
  if (errors.length > 0) throw new Error(`${file}: ${errors[0]?.message}`);
  const lines = text.split('\n');
  const found = new Map();
  const look = ({ start, end }, value) => {
    if (!isSql(value)) return;
    const first = text.slice(0, start).split('\n').length;
    const last = first + text.slice(start, end).split('\n').length - 1;
    for (let line = first; line <= last; line += 1) {
      const columns = lines[line - 1]?.length ?? 0;
      if (columns > COLUMNS) found.set(line, columns);
    }
  };
  new Visitor({
    Literal: (node) => {
      if (typeof node.value === 'string') look(node, node.value);
    },
    TemplateLiteral: (node) => {
      const value = node.quasis.map((quasi) => quasi.value.cooked ?? quasi.value.raw).join('name');
      look(node, value);
    },
  }).visit(program);
  return [...found].sort(([a], [b]) => a - b).map(([line, columns]) => ({ line, columns }));
}

const root = dirname(dirname(fileURLToPath(import.meta.url)));

/** Paths of the sources of all packages, from the root. */
function* listSources() {
  for (const name of readdirSync(join(root, 'packages')).sort()) {
    const source = join('packages', name, 'src');
    for (const file of readdirSync(join(root, source), { recursive: true, encoding: 'utf8' }).sort())
      if (/(?<!\.d|\.test)\.ts$/.test(file)) yield join(source, file);
  }
}

if (import.meta.url === pathToFileURL(process.argv[1] ?? '').href) {
  readScriptArguments(`Usage: node scripts/sql-lines.mjs

Finds lines of SQL in the sources of the packages that have more than ${COLUMNS} columns. Tests are left out.`);
  let count = 0;
  for (const file of listSources())
    for (const { line, columns } of findLongSql(file, readFileSync(join(root, file), 'utf8'))) {
      console.error(`${file}:${line}: a line of SQL has ${columns} columns`);
      count += 1;
    }
  if (count > 0) console.error(`\nWrite one clause a line, with at most ${COLUMNS} columns.`);
  process.exitCode = count === 0 ? 0 : 1;
}
