import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, test, vi } from 'vitest';
import { loadPlugins } from './plugin.js';
import type { Runtime } from './runtime.js';

let folder: string;
beforeAll(() => {
  folder = mkdtempSync(join(tmpdir(), 'boxcar-plugin-'));
});
afterAll(() => rmSync(folder, { recursive: true, force: true }));

/** Loads a plugin that fails before it uses its runtime. */
const load = (code: string, name: string): Promise<void> => {
  const file = join(folder, name);
  writeFileSync(file, code);
  return loadPlugins({} as Runtime, [file]);
};

test.each([
  ['thrown.mjs', "export default () => {\n  throw new Error('no key');\n};\n", /thrown\.mjs:2:9: no key\. /],
  ['stop.mjs', "export default () => {\n  throw new Error('A sentence.');\n};\n", /: A sentence\. [A-Z]/],
  ['top.mjs', 'const a = 1;\n\nnull.x;\nexport default () => a;\n', /top\.mjs:3:6: Cannot read/],
  ['none.mjs', 'export const a = 1;\n', /none\.mjs: its default export is not a function\. /],
  ['none.cjs', 'exports.default = { default: 1 };\n', /none\.cjs: its default export is not a function\. /],
])('an error in %s is reported with its line, if there is a line', async (name, code, words) => {
  await expect(load(code, name)).rejects.toMatchObject({
    code: 'plugin_failed',
    message: expect.stringMatching(words),
    details: { path: join(folder, name) },
  });
});

test.each([
  [
    'compiled.cjs',
    `'use strict';
Object.defineProperty(exports, '__esModule', { value: true });
exports.default = (runtime) => runtime.seen.push('exports.default');
`,
  ],
  ['plain.cjs', "module.exports = (runtime) => runtime.seen.push('module.exports');\n"],
])('a plugin in CommonJS loads: %s', async (name, code) => {
  const file = join(folder, name);
  writeFileSync(file, code);
  const seen: string[] = [];
  await loadPlugins({ seen } as unknown as Runtime, [file]);
  expect(seen).toEqual([name === 'plain.cjs' ? 'module.exports' : 'exports.default']);
});

test.each([
  [
    'default.mjs',
    'The default function of the plugin has not ended after 10 s; waiting for it.',
    'export default ({ begun }) => new Promise(begun);\n',
  ],
  [
    'module.mjs',
    'The module of the plugin has not ended after 10 s; waiting for it.',
    'await new Promise(globalThis.begun);\nexport default () => undefined;\n',
  ],
])(
  'a plugin that does not finish loading is named after 10 s, and is waited for: %s',
  async (name, message, code) => {
    const file = join(folder, name);
    writeFileSync(file, code);
    vi.useFakeTimers();
    try {
      const log = vi.fn();
      let end: () => void = () => undefined;
      let loading: Promise<void> | undefined;
      await new Promise<void>((settle) => {
        const begun = (done: () => void) => {
          end = done;
          settle();
        };
        vi.stubGlobal('begun', begun);
        loading = loadPlugins({ begun, log } as unknown as Runtime, [file]);
      });
      vi.advanceTimersByTime(9_999);
      expect(log).not.toHaveBeenCalled();
      vi.advanceTimersByTime(1);
      expect(log).toHaveBeenCalledExactlyOnceWith('warn', 'plugin.slow', { path: file, message });
      end();
      await loading;
      vi.advanceTimersByTime(20_000);
      expect(log).toHaveBeenCalledTimes(1);
    } finally {
      vi.useRealTimers();
      vi.unstubAllGlobals();
    }
  },
);
