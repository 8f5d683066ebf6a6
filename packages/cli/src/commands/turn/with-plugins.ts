/** Selectors and models for commands that build prompts again: they are in plugins. */
import { resolve } from 'node:path';
import { openStack } from '@boxcar/host/open';
import { loadPlugins, type Runtime } from '@boxcar/runtime';
import type { Context } from '../../context.js';

/** What plugins have registered. */
type Registered = Pick<Runtime, 'selectors' | 'model'>;

/**
 * Does the work with the plugins of a flag. Without that flag the work is done without plugins, and again with those of the configuration
 * when it needs them.
 *
 * @param of.plugins - Paths of a flag.
 * @param of.needs - Whether an answer lacks something that a plugin may register.
 */
export async function withPlugins<T>(
  context: Context,
  work: (registered: Registered | undefined) => Promise<T>,
  of: { readonly plugins: readonly string[] | undefined; readonly needs: (answer: T) => boolean },
): Promise<T> {
  if (of.plugins === undefined) {
    const answer = await work(undefined);
    if (context.config.plugins.length === 0 || !of.needs(answer)) return answer;
  }
  const plugins = of.plugins ?? context.config.plugins;
  await using stack = await openStack(context.config, { log: context.log('warn') });
  await loadPlugins(
    stack.runtime,
    plugins.map((path) => resolve(path)),
  );
  // Awaited here: the stack is closed when this returns.
  return await work(stack.runtime);
}
