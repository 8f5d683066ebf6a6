// Keeps docs/reference/api.md equal to the exports of the packages: every name of every published entry, its kind, and the first sentence
// of its comment. Without `--write` it only reports differences.
import { readFileSync, writeFileSync } from 'node:fs';
import { dirname, join, posix } from 'node:path';
import { fileURLToPath, pathToFileURL } from 'node:url';
import { parseSync } from 'oxc-parser';
import { readScriptArguments } from './script-arguments.mjs';

const root = dirname(dirname(fileURLToPath(import.meta.url)));
const PAGE = 'docs/reference/api.md';
/** In the order of the page: packages that programs import come first. */
const PACKAGES = [
  'runtime',
  'host',
  'http',
  'mcp',
  'mcp-client',
  'a2a',
  'adapters',
  'llm',
  'policy',
  'embedded',
  'cli',
  'kernel',
  'store',
];

const INTRODUCTION = `# Exports

All names that the packages export, by entry. Programs and plugins begin with \`@boxcar/runtime\`, \`@boxcar/host\` and \`@boxcar/llm\`;
\`@boxcar/kernel\` has the types, schemas and errors that they exchange. \`@boxcar/store\` and the narrow entries (\`/base\`, \`/health\`, \`/log\`, …)
are for the other packages and may change with any version.

\`npm run api-docs\` writes a reference of the same names as HTML, with all members and comments: open \`tools/api-docs/dist/index.html\`. It is
made by TypeDoc. \`node scripts/api.mjs --write\` writes this page.`;

/**
 * @typedef {{ name: string, kind: string, text: string }} ApiName
 * @typedef {{ program: import('oxc-parser').Program, comments: import('oxc-parser').Comment[], module: import('oxc-parser').EcmaScriptModule, text: string }} Source
 */

/** @type {Map<string, Source>} */
const sources = new Map();

/** @param {string} file - Relative to the root. */
function sourceOf(file) {
  const known = sources.get(file);
  if (known !== undefined) return known;
  const text = readFileSync(join(root, file), 'utf8');
  const { program, comments, module } = parseSync(file, text);
  const source = { program, comments, module, text };
  sources.set(file, source);
  return source;
}

/** @param {string} folder - The folder of the package in `packages`. */
function entriesOf(folder) {
  const { name, exports, publishConfig } = JSON.parse(
    readFileSync(join(root, 'packages', folder, 'package.json'), 'utf8'),
  );
  return Object.keys(publishConfig.exports)
    .filter((entry) => exports[entry]['@boxcar/source'] !== undefined)
    .map((entry) => ({
      name: posix.join(name, entry),
      file: posix.join('packages', folder, exports[entry]['@boxcar/source']),
      declarations: posix.join('packages', folder, exports[entry].types),
    }));
}

/** All entries, in the order of the page: name, source and built declarations. */
export const listEntries = () => PACKAGES.flatMap(entriesOf);

/**
 * @param {string} request
 * @param {string} from
 */
function resolveFile(request, from) {
  if (request.startsWith('.')) return posix.join(posix.dirname(from), request).replace(/\.js$/, '.ts');
  const [, folder = '', rest = ''] = /^@boxcar\/([^/]+)(.*)$/.exec(request) ?? [];
  return entriesOf(folder).find(({ name }) => name === `@boxcar/${folder}${rest}`)?.file;
}

/** The first sentence of a comment, on one line. @param {string} comment */
function firstSentence(comment) {
  const text = comment
    .replace(/^\*/, '')
    .split('\n')
    .map((line) => line.replace(/^\s*\* ?/, '').trim())
    .join('\n')
    .split(/\n\n|(?:^|\s)@\w+/)[0]
    ?.replaceAll('\n', ' ')
    .trim();
  return (/^.*?[.?!](?=\s|$)/.exec(text ?? '')?.[0] ?? text ?? '').replaceAll('|', '\\|');
}

/** @param {any} declaration */
function kindOf(declaration) {
  switch (declaration.type) {
    case 'FunctionDeclaration':
      return 'function';
    case 'ClassDeclaration':
      return 'class';
    case 'TSInterfaceDeclaration':
    case 'TSTypeAliasDeclaration':
      return 'type';
    default:
      return /Function/.test(declaration.declarations?.[0]?.init?.type ?? '') ? 'function' : 'constant';
  }
}

/**
 * The declaration of a name of a file, wherever it is declared.
 *
 * @param {string} file
 * @param {string} name
 * @returns {Omit<ApiName, 'name'>}
 */
function declarationOf(file, name) {
  const { program, comments, module, text } = sourceOf(file);
  const exported = module.staticExports
    .flatMap(({ entries }) => entries)
    .find((entry) => entry.exportName.name === name);
  const local = exported?.localName.name ?? exported?.importName.name ?? name;
  if (exported?.moduleRequest) {
    const other = resolveFile(exported.moduleRequest.value, file);
    if (other !== undefined) return declarationOf(other, exported.importName.name ?? local);
  }
  for (const { moduleRequest, entries } of module.staticImports)
    for (const { localName, importName } of entries) {
      const other = localName.value === local ? resolveFile(moduleRequest.value, file) : undefined;
      if (other !== undefined) return declarationOf(other, importName.name ?? local);
    }
  for (const statement of program.body) {
    const declaration = /** @type {any} */ (statement).declaration ?? statement;
    const names = [declaration.id?.name, ...(declaration.declarations ?? []).map((one) => one.id.name)];
    if (!names.includes(local)) continue;
    const comment = comments.findLast(({ end }) => end <= statement.start);
    const isIts = comment?.value.startsWith('*') && text.slice(comment.end, statement.start).trim() === '';
    return { kind: kindOf(declaration), text: isIts ? firstSentence(comment.value) : '' };
  }
  throw new Error(`${file}: ${name} is exported and not declared`);
}

/** The names of an entry, sorted. @param {string} file @returns {ApiName[]} */
export function namesOf(file) {
  return sourceOf(file)
    .module.staticExports.flatMap(({ entries }) => entries)
    .map(({ exportName }) => {
      if (exportName.kind === 'None') throw new Error(`${file}: export * names nothing; list the names`);
      return exportName.name ?? 'default';
    })
    .sort((a, b) => a.localeCompare(b, 'en'))
    .map((name) => ({ name, ...declarationOf(file, name) }));
}

/** The lines of a page by their entry. @param {string} page */
function byEntry(page) {
  let entry = '';
  return page.split('\n').map((line) => {
    if (line.startsWith('## ')) entry = line.slice(3);
    return line.startsWith('| ') ? `${entry}: ${line}` : line;
  });
}

/** The whole page, generated from the sources. */
export function apiPage() {
  const sections = listEntries().map(({ name, file }) => {
    const rows = namesOf(file).map((one) => `| \`${one.name}\` | ${one.kind} | ${one.text} |`);
    return `## ${name}\n\n| name | kind | what it is |\n|---|---|---|\n${rows.join('\n')}`;
  });
  return `${[INTRODUCTION, ...sections].join('\n\n')}\n`;
}

if (import.meta.url === pathToFileURL(process.argv[1] ?? '').href) {
  const { flags } = readScriptArguments(
    `Usage: node scripts/api.mjs [--write]

Compares ${PAGE} with what the packages export.

  --write   write the page`,
    { flags: ['write'] },
  );
  const page = apiPage();
  const before = readFileSync(join(root, PAGE), { encoding: 'utf8', flag: 'a+' });
  if (flags.has('write')) writeFileSync(join(root, PAGE), page);
  else if (page !== before) {
    const [now, then] = [byEntry(page), byEntry(before)];
    for (const line of then.filter((one) => !now.includes(one))) console.error(`- ${line}`);
    for (const line of now.filter((one) => !then.includes(one))) console.error(`+ ${line}`);
    console.error(`\n${PAGE} differs from the exports; write it by: node scripts/api.mjs --write`);
    process.exitCode = 1;
  }
}
