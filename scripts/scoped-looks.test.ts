import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { expect, test } from 'vitest';

const root = fileURLToPath(new URL('..', import.meta.url));
const TEXTS = /'(?:[^'\\\n]|\\.)*'|"(?:[^"\\\n]|\\.)*"|`(?:[^`\\]|\\.)*`/g;
const LOOKS = /\bpg_(locks|stat_activity|stat_database)\b/;
/** Limits a query to its own database, or to given processes. */
const SCOPES = /current_database\(\)|\bpid = \$\d|\$\d = any \(pg_blocking_pids\(pid\)\)/;

/** Tests, and the modules that only tests use. */
function* sources(): Generator<string> {
  const sourceOf = (folder: string): string[] =>
    readdirSync(join(root, folder)).map((name) => join(folder, name, 'src'));
  // Installed packages are excluded: they have a hundred thousand files.
  const folders = [...['packages', 'services', 'examples'].flatMap(sourceOf), 'bench/src', 'scripts'];
  for (const folder of folders.filter((one) => existsSync(join(root, one))))
    for (const name of readdirSync(join(root, folder), { recursive: true, encoding: 'utf8' }))
      if (/\.test\.ts$|\/(testing|testkit)\/.*\.ts$/.test(`/${folder}/${name}`)) yield join(folder, name);
}

test('a test reads only the sessions and locks of its own database, since other tests use the same server', () => {
  const files = [...sources()].filter((file) => !file.endsWith('scoped-looks.test.ts'));
  const looks = files.flatMap((file) =>
    (readFileSync(join(root, file), 'utf8').match(TEXTS) ?? [])
      .filter((text) => LOOKS.test(text))
      .map((text) => ({ file, text })),
  );
  expect(looks.length).toBeGreaterThan(10);
  expect(looks.filter(({ text }) => !SCOPES.test(text))).toEqual([]);
});
