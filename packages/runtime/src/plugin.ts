import { resolve } from 'node:path';
import { pathToFileURL } from 'node:url';
import { KernelError } from '@boxcar/kernel';
import type { Runtime } from './runtime.js';

/** The default export of a plugin: registers handlers, tools and models (`registerHandler`, `registerTool`, `registerModel`). */
export type Plugin = (runtime: Runtime) => void | Promise<void>;

/**
 * Loads plugins by path, in order.
 *
 * @throws KernelError `plugin_failed` naming the file.
 */
export async function loadPlugins(runtime: Runtime, paths: readonly string[]): Promise<void> {
  for (const path of paths) {
    try {
      const loaded: { default?: unknown } = await import(pathToFileURL(resolve(path)).href);
      if (typeof loaded.default !== 'function') throw new TypeError('its default export is no function');
      await loaded.default(runtime);
    } catch (error) {
      throw new KernelError('plugin_failed', {
        message: `Plugin ${path}: ${error instanceof Error ? error.message : String(error)}.`,
        details: { path },
        cause: error,
      });
    }
  }
}
