import { KernelError, normalizePlatform, platformOf } from '@boxcar/kernel';
import type { HandoffAdapter } from './adapter.js';

/** The adapters of a program, by platform. */
export class AdapterRegistry {
  readonly #adapters = new Map<string, HandoffAdapter>();

  constructor(adapters: readonly HandoffAdapter[] = []) {
    for (const adapter of adapters) this.registerAdapter(adapter);
  }

  /**
   * Adds an adapter, or replaces the adapter of the same platform.
   *
   * @throws KernelError `bad_request` for a platform without a name, or with a name that is not its first name.
   */
  registerAdapter(adapter: HandoffAdapter): void {
    const { platform } = adapter;
    const first = normalizePlatform(platform) ?? platform.trim().toLowerCase();
    if (first === '' || first !== platform)
      throw new KernelError('bad_request', {
        message: `platform: '${platform}' must be ${first === '' ? 'a name' : `'${first}'`}.`,
        details: { field: 'platform' },
      });
    this.#adapters.set(platform, adapter);
  }

  /** First names, in the order of registration. */
  get platforms(): readonly string[] {
    return [...this.#adapters.keys()];
  }

  /** Platforms that the kernel does not know; entries of `targets` may name them. */
  get customPlatforms(): readonly string[] {
    return this.platforms.filter((platform) => normalizePlatform(platform) === undefined);
  }

  /**
   * The adapter of a platform, by any of its names, in upper or lower case.
   *
   * @throws KernelError `bad_request` with the text `Unsupported platform: <name>` and nothing after it.
   */
  adapterOf(name: string): HandoffAdapter {
    const first = normalizePlatform(name);
    const found =
      first === undefined
        ? [...this.#adapters.values()].find((adapter) => adapter.supportsPlatform(name))
        : this.#adapters.get(first);
    if (found !== undefined) return found;
    platformOf(name);
    // The kernel knows the platform, but no adapter here serves it.
    throw new KernelError('bad_request', {
      message: `Unsupported platform: ${name}`,
      next: '',
      details: { field: 'platform' },
    });
  }
}
