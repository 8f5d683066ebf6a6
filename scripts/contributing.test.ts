import { execFileSync } from 'node:child_process';
import { existsSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { describe, expect, test } from 'vitest';

const root = fileURLToPath(new URL('..', import.meta.url));
const text = readFileSync(join(root, 'CONTRIBUTING.md'), 'utf8');

interface Recipe {
  readonly title: string;
  readonly example: string;
  readonly files: readonly string[];
}

const recipes = text
  .split(/^### /m)
  .slice(1)
  .map((part): Recipe => {
    const [title = ''] = part.split('\n');
    const example = /Example: `([^`]+)`/.exec(part)?.[1] ?? '';
    return { title, example, files: [...part.matchAll(/^\| `([^`]+)` \|/gm)].map(([, file = '']) => file) };
  });

/** Where the example of a recipe is registered: exactly the files that match are its files. */
const REGISTERS: Readonly<Record<string, RegExp>> = {
  'A primitive': /\braiseBudgetSchema\b|\braise_budget: |^\| `raise_budget` \|/m,
  'A command': /\baddWhyStuck\b|^\| `boxcar why-stuck /m,
  'A table':
    /(create table|insert( \/\* \S+ \*\/)? into|delete( \/\* \S+ \*\/)? from) boxcar\.evidence\b|^ {2}'evidence',$|^ {2}evidence: \['insert'\]/m,
  'A door': /\bcreateToolResultsDoor\b/,
};

const files = execFileSync('git', ['ls-files', 'packages', 'services', 'migrations', 'docs'], {
  cwd: root,
  encoding: 'utf8',
})
  .trim()
  .split('\n')
  .filter((file) => /\.(ts|sql|md)$/.test(file) && !file.endsWith('.test.ts') && existsSync(join(root, file)))
  // `scripts/api.mjs --write` writes the list of exports.
  .filter((file) => file !== 'docs/reference/api.md');

test('each kind of change has its recipe', () => {
  expect(recipes.map(({ title }) => title)).toEqual(Object.keys(REGISTERS));
});

describe.each(recipes)('$title', ({ title, example, files: listed }) => {
  test('names files that exist and that name the example', () => {
    const words = example.split(/[_-]|(?=[A-Z])/).join('[_-]?');
    for (const file of listed) expect(readFileSync(join(root, file), 'utf8')).toMatch(new RegExp(words, 'i'));
  });

  test('lists every file that registers the example', () => {
    const pattern = REGISTERS[title] ?? /$^/;
    const found = files.filter((file) => pattern.test(readFileSync(join(root, file), 'utf8')));
    expect(found.sort()).toEqual([...listed].sort());
  });

  test('has at most six files', () => {
    expect(listed.length).toBeGreaterThan(2);
    expect(listed.length).toBeLessThanOrEqual(6);
  });
});
