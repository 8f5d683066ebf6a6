/** The platforms that agents run on, and the names under which people know them. */

/** First names, which rows, events and answers show. */
export const PLATFORMS = ['agdd', 'adk', 'openai', 'anthropic'] as const;
export type Platform = (typeof PLATFORMS)[number];

/** The platform of a request that names none: our own agents. */
export const DEFAULT_PLATFORM: Platform = 'agdd';

/** All names of each platform, in lower case, the first name first. */
export const PLATFORM_NAMES: Readonly<Record<Platform, readonly string[]>> = {
  agdd: ['agdd', 'native', 'boxcar', 'magsag'],
  adk: ['adk', 'anthropic-adk'],
  openai: ['openai', 'openai-compat'],
  anthropic: ['anthropic', 'claude'],
};

/** The first name of the platform that a name in any case means; undefined when no platform has the name. */
export function normalizePlatform(name: string): Platform | undefined {
  const wanted = name.toLowerCase();
  return PLATFORMS.find((platform) => PLATFORM_NAMES[platform].includes(wanted));
}
