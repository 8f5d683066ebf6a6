import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { loadPlugins } from './plugin.js';
import type { Runtime } from './runtime.js';

let folder: string;
beforeAll(() => {
  folder = mkdtempSync(join(tmpdir(), 'boxcar-plugin-'));
});
afterAll(() => rmSync(folder, { recursive: true, force: true }));

/** A plugin that meets what is wrong before it uses its runtime. */
const load = (code: string, name: string): Promise<void> => {
  const file = join(folder, name);
  writeFileSync(file, code);
  return loadPlugins({} as Runtime, [file]);
};

test.each([
  ['thrown.mjs', "export default () => {\n  throw new Error('no key');\n};\n", /thrown\.mjs:2:9: no key\. /],
  ['stop.mjs', "export default () => {\n  throw new Error('A sentence.');\n};\n", /: A sentence\. [A-Z]/],
  ['top.mjs', 'const a = 1;\n\nnull.x;\nexport default () => a;\n', /top\.mjs:3:6: Cannot read/],
  ['none.mjs', 'export const a = 1;\n', /none\.mjs: its default export is no function\. /],
])('what goes wrong in %s is said with its line, where there is one', async (name, code, words) => {
  await expect(load(code, name)).rejects.toMatchObject({
    code: 'plugin_failed',
    message: expect.stringMatching(words),
    details: { path: join(folder, name) },
  });
});
