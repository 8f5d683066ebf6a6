import { dirname, resolve } from 'node:path';
import { fileURLToPath, pathToFileURL } from 'node:url';
import { errorText, KernelError, startTimer } from '@boxcar/kernel';
import type { Runtime } from './runtime.js';

/** The default export of a plugin: registers handlers, tools and models (`registerHandler`, `registerTool`, `registerModel`). */
export type Plugin = (runtime: Runtime) => void | Promise<void>;

const OWN_FILE = fileURLToPath(import.meta.url);

/** The place of an error in the plugin or in a file of its folder: the first line of the stack that is in this folder. */
function placeOf(error: unknown, path: string): string {
  const stack = error instanceof Error ? (error.stack ?? '') : '';
  for (const [, url, line, column] of stack.matchAll(/(?<=[\s(])((?:file:\/\/)?\/[^\s()]+):(\d+):(\d+)/g)) {
    const file = url?.startsWith('file:') ? fileURLToPath(url) : (url ?? '');
    // From this frame on, the stack belongs to the code that loads the plugin.
    if (file === OWN_FILE) break;
    const isOurs = file.startsWith(`${dirname(OWN_FILE)}/`) || file.includes('/node_modules/');
    if (!isOurs && file.startsWith(`${dirname(path)}/`)) return `${file}:${line}:${column}`;
  }
  return path;
}

/** The text of an error without its final full stop; the message adds its own. */
const reasonOf = (error: unknown): string => errorText(error).replace(/\.$/, '');

/** @throws TypeError for a module without such a function. */
function pluginIn(loaded: { readonly default?: unknown }): Plugin {
  // A module that TypeScript compiles to CommonJS has its default export in `exports.default`.
  const inner = isObject(loaded.default) ? loaded.default.default : undefined;
  for (const found of [loaded.default, inner]) if (typeof found === 'function') return found as Plugin;
  throw new TypeError('its default export is not a function');
}

const isObject = (value: unknown): value is { readonly default?: unknown } =>
  typeof value === 'object' && value !== null;

/** A plugin that is still loading or registering after this time is named in the log. */
const SLOW_MS = 10_000;

/**
 * Loads plugins by path, in order. When the module or the function of a plugin takes more than 10 s, the log names the plugin,
 * and loading continues to wait for it.
 *
 * @throws KernelError `plugin_failed` naming the file, and the line where one is known.
 */
export async function loadPlugins(runtime: Runtime, paths: readonly string[]): Promise<void> {
  for (const path of paths) {
    let part = 'module';
    const slow = startTimer(SLOW_MS, () =>
      runtime.log('warn', 'plugin.slow', {
        path: resolve(path),
        message: `The ${part} of the plugin has not ended after ${SLOW_MS / 1000} s; waiting for it.`,
      }),
    );
    try {
      const plugin = pluginIn(await import(pathToFileURL(resolve(path)).href));
      part = 'default function';
      await plugin(runtime);
    } catch (error) {
      throw new KernelError('plugin_failed', {
        message: `Plugin ${placeOf(error, resolve(path))}: ${reasonOf(error)}.`,
        details: { path },
        cause: error,
      });
    } finally {
      slow.clear();
    }
  }
}
