/** Selectors for commands that build prompts again: they are in plugins, which are loaded only for turns that need one. */
import { resolve } from 'node:path';
import { loadPlugins, type Selectors } from '@boxcar/runtime';
import type { Context } from './context.js';
import { openStack } from './stack.js';

/**
 * Does the work without selectors, and again with those of the plugins when it needs one.
 *
 * @param of.plugins - Paths of a flag; default: those of the configuration.
 * @param of.needs - Whether an answer lacks a selector.
 */
export async function withSelectors<T>(
  context: Context,
  work: (selectors: Selectors | undefined) => Promise<T>,
  of: { readonly plugins: readonly string[] | undefined; readonly needs: (answer: T) => boolean },
): Promise<T> {
  const answer = await work(undefined);
  const plugins = of.plugins ?? context.config.plugins;
  if (plugins.length === 0 || !of.needs(answer)) return answer;
  await using stack = await openStack(context.config, { log: context.log('warn') });
  await loadPlugins(
    stack.runtime,
    plugins.map((path) => resolve(path)),
  );
  return work(stack.runtime.selectors);
}
