import { dirname, resolve } from 'node:path';
import { fileURLToPath, pathToFileURL } from 'node:url';
import { KernelError } from '@boxcar/kernel';
import type { Runtime } from './runtime.js';

/** The default export of a plugin: registers handlers, tools and models (`registerHandler`, `registerTool`, `registerModel`). */
export type Plugin = (runtime: Runtime) => void | Promise<void>;

const OWN_FILE = fileURLToPath(import.meta.url);

/** Where in the plugin, or beside it, an error came up: the first line of its stack that is of this folder. */
function placeOf(error: unknown, path: string): string {
  const stack = error instanceof Error ? (error.stack ?? '') : '';
  for (const [, url, line, column] of stack.matchAll(/(?<=[\s(])((?:file:\/\/)?\/[^\s()]+):(\d+):(\d+)/g)) {
    const file = url?.startsWith('file:') ? fileURLToPath(url) : (url ?? '');
    // From here on it is who loads the plugin.
    if (file === OWN_FILE) break;
    const isOurs = file.startsWith(`${dirname(OWN_FILE)}/`) || file.includes('/node_modules/');
    if (!isOurs && file.startsWith(`${dirname(path)}/`)) return `${file}:${line}:${column}`;
  }
  return path;
}

/** What it says, to be ended by a full stop of ours. */
const reasonOf = (error: unknown): string =>
  (error instanceof Error ? error.message : String(error)).replace(/\.$/, '');

/**
 * Loads plugins by path, in order.
 *
 * @throws KernelError `plugin_failed` naming the file, and the line where one is known.
 */
export async function loadPlugins(runtime: Runtime, paths: readonly string[]): Promise<void> {
  for (const path of paths) {
    try {
      const loaded: { default?: unknown } = await import(pathToFileURL(resolve(path)).href);
      if (typeof loaded.default !== 'function') throw new TypeError('its default export is no function');
      await loaded.default(runtime);
    } catch (error) {
      throw new KernelError('plugin_failed', {
        message: `Plugin ${placeOf(error, resolve(path))}: ${reasonOf(error)}.`,
        details: { path },
        cause: error,
      });
    }
  }
}
