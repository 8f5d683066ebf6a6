/** The platforms on which agents run, and the names that people use for them. */

/** The canonical names, which rows, events and answers show. */
export const PLATFORMS = ['agdd', 'adk', 'openai', 'anthropic'] as const;
export type Platform = (typeof PLATFORMS)[number];

/** The platform of a request that names no platform: Boxcar's own agents. */
export const DEFAULT_PLATFORM: Platform = 'agdd';

/** All names of each platform, in lower case, the canonical name first. */
export const PLATFORM_NAMES: Readonly<Record<Platform, readonly string[]>> = {
  agdd: ['agdd', 'native', 'boxcar', 'magsag'],
  adk: ['adk', 'anthropic-adk'],
  openai: ['openai', 'openai-compat'],
  anthropic: ['anthropic', 'claude'],
};

/** The canonical name for any name of a platform, in any case; undefined for an unknown name. */
export function normalizePlatform(name: string): Platform | undefined {
  const wanted = name.toLowerCase();
  return PLATFORMS.find((platform) => PLATFORM_NAMES[platform].includes(wanted));
}
