/** Each Mermaid picture of the pages parses, so that GitHub draws it instead of an error. */
import { execFileSync } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { createContext, runInContext } from 'node:vm';
import { isFinal, TRANSITIONS } from '@boxcar/kernel';
import { expect, it } from 'vitest';

const root = fileURLToPath(new URL('..', import.meta.url));

interface Picture {
  readonly file: string;
  /** The line of its first line, from 1. */
  readonly line: number;
  readonly text: string;
}

const pictures = execFileSync('git', ['ls-files', '--cached', '--others', '--exclude-standard', '*.md'], {
  cwd: root,
  encoding: 'utf8',
})
  .trim()
  .split('\n')
  .flatMap((file): Picture[] => {
    const page = readFileSync(join(root, file), 'utf8');
    return [...page.matchAll(/^([ \t]*)```mermaid\n([\s\S]*?)^\1```$/gm)].map(({ 2: text = '', index }) => ({
      file,
      line: page.slice(0, index).split('\n').length + 1,
      text,
    }));
  });

/**
 * The library in one file without dependencies: `mermaid` itself needs 146 MB. It is a script for a browser, so it gets a global scope
 * of its own. The page there has nothing in it: parsing only cleans labels, and DOMPurify returns a text as it is when it has no
 * parser for HTML. Version 12 needs Node 22.
 */
function loadMermaid(): { parse: (text: string) => Promise<unknown> } {
  const require = createRequire(import.meta.url);
  const file = require.resolve('@mermaid-js/tiny');
  const document = { nodeType: 9, createElement: () => ({}) };
  const window = { document, Element: class {}, addEventListener: () => {} };
  const scope = createContext({ console, document, structuredClone, window });
  runInContext(readFileSync(file, 'utf8'), scope, { filename: file });
  return scope.mermaid;
}

const mermaid = loadMermaid();

/** Undefined for a picture that parses. */
const errorOf = (text: string): Promise<string | undefined> =>
  mermaid.parse(text).then(
    () => undefined,
    (error: { readonly message: string }) => error.message,
  );

it.each(pictures.map(({ file, line, text }) => [`${file}:${line}`, text]))('%s parses', async (_, text) => {
  expect(await errorOf(text)).toBeUndefined();
});

it('a picture of each kind that is used fails when it is broken', async () => {
  const kinds = new Map(pictures.map((picture) => [picture.text.split(/\s/)[0], picture]));
  expect(kinds.size).toBeGreaterThan(2);
  for (const { text } of kinds.values()) expect(await errorOf(`${text}a -->\n`)).toMatch(/error/i);
  expect(await errorOf('flowchat LR\n  a --> b')).toMatch(/No diagram type/);
});

it('docs/explanation/life-of-a-turn.md draws exactly the transitions of a turn', () => {
  const { text = '' } = pictures.find(({ file }) => file === 'docs/explanation/life-of-a-turn.md') ?? {};
  const drawn = [...text.matchAll(/^ *(\S+) --> (\w+) : (.+)$/gm)].flatMap(([, from, to, causes = '']) =>
    causes.split(', ').map((cause) => `${from} → ${to}: ${cause}`),
  );
  const real = TRANSITIONS.map(
    ({ from, to, cause }) => `${from ?? '[*]'} → ${isFinal(to) ? 'ended' : to}: ${cause}`,
  );
  expect(drawn.sort()).toEqual([...new Set(real)].sort());
  const ends = /"(.+)" as ended/.exec(text)?.[1]?.split(/, | or /);
  expect(ends).toEqual([...new Set(TRANSITIONS.map(({ to }) => to).filter(isFinal))]);
});
