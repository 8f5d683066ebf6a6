/** The code in README and docs, and the words of their command lines. */
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';

const root = fileURLToPath(new URL('..', import.meta.url));

export interface Snippet {
  readonly file: string;
  /** The line of its first line of code, from 1. */
  readonly line: number;
  readonly language: string;
  readonly code: string;
}

/** The pages whose blocks are read, relative to the root. */
export const pages = (): string[] => [
  'README.md',
  'CONTRIBUTING.md',
  ...readdirSync(join(root, 'docs'), { recursive: true, encoding: 'utf8' })
    .filter((path) => path.endsWith('.md'))
    .sort()
    .map((path) => join('docs', path)),
  ...readdirSync(join(root, 'packages')).map((name) => join('packages', name, 'README.md')),
];

/** A block may be indented, for example in a list item. */
const FENCE = /^([ \t]*)```(\w*)\n([\s\S]*?)^\1```$/gm;

const withoutIndent = (code: string, indent: string): string =>
  code.replaceAll(/^.*\n/gm, (line) => (line.startsWith(indent) ? line.slice(indent.length) : line));

/** All code blocks of README, docs and the packages' READMEs, in order. */
export const readSnippets = (): Snippet[] =>
  pages().flatMap((file) => {
    const text = readFileSync(join(root, file), 'utf8');
    return [...text.matchAll(FENCE)].map(({ 1: indent = '', 2: language = '', 3: code = '', index }) => ({
      file,
      line: text.slice(0, index).split('\n').length + 1,
      language,
      code: withoutIndent(code, indent),
    }));
  });

/**
 * - `program`: runs by itself.
 * - `module`: a file that a program loads, named by its first line.
 * - `part`: needs a surrounding program with the names that it uses.
 */
export function kindOf({ code }: Snippet): 'program' | 'module' | 'part' {
  if (/^export default /m.test(code)) return 'module';
  return /^import /m.test(code) ? 'program' : 'part';
}

/** The file name of a snippet: its own name when its first line has one. */
export function fileOf({ file, line, language, code }: Snippet): string {
  const [, name] = /^\/\/ (\S+\.m?js)\n/.exec(code) ?? [];
  return name ?? `${file.replace(/\W/g, '-')}-${line}.${language}`;
}

/** One command of a shell: its words without quotes, and the variables that it sets before them. */
export interface Command {
  readonly settings: readonly string[];
  readonly words: readonly string[];
  /** The text that a preceding `echo` writes to its stdin. */
  readonly input: string;
}

/** A word with its quotes, or an operator between commands; a comment matches as a space. */
const TOKEN =
  /(\s#[^\n]*|^#[^\n]*)|(\n|&&|[;&|])|((?:'[^']*'|"(?:\\[\s\S]|[^"\\])*"|\\[\s\S]|[^\s'"\\;&|])+)/g;

const unquote = (word: string): string =>
  word.replace(/'([^']*)'|"((?:\\[\s\S]|[^"\\])*)"|\\([\s\S])/g, (_, single, double, escaped) =>
    String(single ?? double?.replace(/\\([\s\S])/g, '$1') ?? escaped),
  );

/** The commands of a block. `<turn|run>` is one word; `npx boxcar` is `boxcar`. */
export function readCommands(code: string): Command[] {
  const commands: { words: string[]; isPiped: boolean }[] = [{ words: [], isPiped: false }];
  const text = code.replace(/<[a-z|]+>/g, (name) => name.replaceAll('|', '/'));
  for (const [, , end, word] of text.matchAll(TOKEN)) {
    if (end !== undefined) commands.push({ words: [], isPiped: end === '|' });
    else if (word !== undefined) commands.at(-1)?.words.push(word);
  }
  let echoed = '';
  return commands.flatMap(({ words: all, isPiped }) => {
    const first = all.findIndex((word) => !/^[A-Z_]+=/.test(word));
    const count = first === -1 ? all.length : first;
    const words = all.slice(count).map(unquote);
    const input = isPiped ? echoed : '';
    echoed = `${words.slice(1).join(' ')}\n`;
    if (words[0] === 'npx' && words[1] === 'boxcar') words.shift();
    return all.length === 0 || words[0] === 'echo' ? [] : [{ settings: all.slice(0, count), words, input }];
  });
}

/** The commands of a session, each with its output. */
export const readSession = (code: string): { readonly command: Command; readonly output: string }[] =>
  code
    .split(/^\$ /m)
    .slice(1)
    .flatMap((entry) => {
      const [line = '', ...output] = entry.split(/(?<=\n)/);
      return readCommands(line).map((command) => ({ command, output: output.join('') }));
    });
