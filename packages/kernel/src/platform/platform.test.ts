import { expect, test } from 'vitest';
import { normalizePlatform } from './platform.js';

test('each name of a platform, in upper or lower case, means its first name', () => {
  const names = {
    agdd: ['agdd', 'native', 'boxcar', 'magsag'],
    adk: ['adk', 'anthropic-adk'],
    openai: ['openai', 'openai-compat'],
    anthropic: ['anthropic', 'claude'],
  };
  for (const [platform, known] of Object.entries(names))
    for (const name of known)
      for (const spelling of [name, name.toUpperCase(), `${name[0]?.toUpperCase()}${name.slice(1)}`])
        expect([spelling, normalizePlatform(spelling)]).toEqual([spelling, platform]);
});

test('other words are not names of platforms', () => {
  for (const name of ['', ' openai', 'open ai', 'gemini', 'constructor', '__proto__', 'toString'])
    expect([name, normalizePlatform(name)]).toEqual([name, undefined]);
});
