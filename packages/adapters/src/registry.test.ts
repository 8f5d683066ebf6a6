import { KernelError } from '@boxcar/kernel';
import { expect, test } from 'vitest';
import type { HandoffAdapter } from './adapter.js';
import { AdapterRegistry } from './registry.js';

const adapterFor = (platform: string): HandoffAdapter => ({
  platform,
  supportsPlatform: (name) => name.toLowerCase() === platform,
  capabilities: { streaming: false, cancel: false, messages: false, max_context_tokens: null, carries: [] },
  retry: 'never',
  executeHandoff: () => Promise.reject(new Error('not asked')),
});

function refusalOf(work: () => unknown): KernelError {
  try {
    work();
  } catch (error) {
    if (error instanceof KernelError) return error;
  }
  throw new Error('it was not refused');
}

test('every name of a platform, in upper or lower case, finds its adapter', () => {
  const [openai, acme] = [adapterFor('openai'), adapterFor('acme')];
  const registry = new AdapterRegistry([openai, acme]);
  for (const name of ['openai', 'OpenAI', 'openai-compat', 'OPENAI-COMPAT'])
    expect(registry.adapterOf(name)).toBe(openai);
  for (const name of ['acme', 'ACME']) expect(registry.adapterOf(name)).toBe(acme);
  expect([registry.platforms, registry.customPlatforms]).toEqual([['openai', 'acme'], ['acme']]);
});

test('an unknown platform is refused with this text and nothing after it', () => {
  const registry = new AdapterRegistry([adapterFor('openai')]);
  for (const name of ['gemini', 'adk', 'constructor', '']) {
    const { code, message } = refusalOf(() => registry.adapterOf(name));
    expect([code, message]).toEqual(['bad_request', `Unsupported platform: ${name}`]);
  }
});

test('an adapter that is registered later replaces the one of its platform', () => {
  const own = adapterFor('anthropic');
  const registry = new AdapterRegistry([adapterFor('anthropic')]);
  registry.registerAdapter(own);
  expect(registry.adapterOf('claude')).toBe(own);
});

test('an adapter is registered under the first name of its platform only', () => {
  const registry = new AdapterRegistry();
  for (const name of ['', ' ', 'claude', 'Acme', ' acme'])
    expect(refusalOf(() => registry.registerAdapter(adapterFor(name))).field).toBe('platform');
});
