import { readdirSync, readFileSync } from 'node:fs';
import { basename, join } from 'node:path';
import { expect, test } from 'vitest';
import { query } from '../query/query.js';
import { World } from '../testing/world.js';
import { run, statement } from './index.js';

const STORE = join(import.meta.dirname, '..');

test('each statement begins with a unique label that names its file', () => {
  const labels: string[] = [];
  for (const path of readdirSync(STORE, { recursive: true, encoding: 'utf8' })) {
    if (!path.endsWith('.ts') || path.endsWith('.test.ts') || path.startsWith('testing/')) continue;
    const name = basename(path);
    const text = readFileSync(join(STORE, path), 'utf8');
    const begun =
      /\bstatement\(\s*[`'"]\s*(?:with(?: recursive)?|select|insert|update|delete|merge)\b( \/\* \S+ \*\/)?/g;
    for (const [all, label = ''] of text.matchAll(begun)) {
      expect(label, `${name}: ${all}`).toMatch(`/* ${basename(name, '.ts')}.`);
      labels.push(label);
    }
    for (const [all, label = ''] of text.matchAll(/(?<![.\w])query(?:Retrying)?\(\s*\w+,\s*'([^']*)'/g)) {
      expect(label, `${name}: ${all}`).toMatch(new RegExp(`^${basename(name, '.ts')}\\.\\w+$`));
      labels.push(` /* ${label} */`);
    }
  }
  expect(labels.length).toBeGreaterThan(150);
  expect(labels.filter((label, index) => labels.indexOf(label) !== index)).toEqual([]);
});

test('a label names its own file and occurs once in the text, in every form of the text', () => {
  const labels: string[] = [];
  for (const path of readdirSync(STORE, { recursive: true, encoding: 'utf8' })) {
    if (!path.endsWith('.ts') || path.endsWith('.test.ts') || path.startsWith('testing/')) continue;
    const text = readFileSync(join(STORE, path), 'utf8');
    for (const [, label = ''] of text.matchAll(/\w \/\* ([\w-]+\.[\w-]+) \*\//g)) {
      expect(`${path}: ${label}`).toContain(`: ${basename(path, '.ts')}.`);
      labels.push(label);
    }
  }
  expect(labels.length).toBeGreaterThan(300);
  expect(labels.filter((label, index) => labels.indexOf(label) !== index)).toEqual([]);
});

test('a statement without a label is refused when it is created', () => {
  for (const text of [
    'select 1',
    'select 1 /* labels.late */',
    '(select /* labels.inner */ 1)',
    'select /* labels */ 1',
  ])
    expect(() => statement(text)).toThrow(/^a statement has no label: /);
});

test('the server shows the label of a statement', async () => {
  await using world = await World.open();
  const shown = statement(
    'select /* labels.shown */ query from pg_stat_activity where pid = pg_backend_pid() and datname = current_database()',
  );
  const [row] = await run<{ query: string }>(world.pool, shown, []);
  expect(row?.query).toContain('/* labels.shown */');
  const activity = await query(world.pool, 'labels.built', ({ orm, tables: { projects }, sql }) =>
    orm
      .select({ text: sql<string>`(select query from pg_stat_activity where pid = pg_backend_pid())` })
      .from(projects)
      .limit(1),
  );
  expect(activity[0]?.text).toMatch(/^select \/\* labels\.built \*\/ /);
});
