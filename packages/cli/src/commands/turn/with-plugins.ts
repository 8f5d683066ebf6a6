/** For commands that rebuild prompts: they need selectors and models, which plugins register. */
import { resolve } from 'node:path';
import { openStack } from '@boxcar/host/open';
import { loadPlugins, type Runtime } from '@boxcar/runtime';
import type { Context } from '../../context.js';

/** The registered parts of a runtime that such commands use. */
type Registered = Pick<Runtime, 'selectors' | 'model'>;

/**
 * Runs the work with the plugins of a flag. Without the flag the work runs without plugins, and again with the plugins of the
 * configuration when it needs them.
 *
 * @param of.plugins - Paths from a flag.
 * @param of.needs - Whether an answer lacks a part that a plugin may register.
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
  // Awaited here, because the stack is closed when this function returns.
  return await work(stack.runtime);
}
