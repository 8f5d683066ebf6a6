import { type JsonObject, parseProfile } from '@boxcar/kernel';
import fc from 'fast-check';
import { expect, it } from 'vitest';
import { readProfiles } from './profile-files.js';
import { diffProfiles, toYaml } from './profile-yaml.js';

const profileOf = (rest: object): JsonObject =>
  JSON.parse(JSON.stringify(parseProfile({ name: 'p', instructions: 'x', model: 'scripted', ...rest })));

/** The profile that applying this YAML would store. */
const reread = (yaml: string): unknown => {
  const [found] = readProfiles([{ name: 'p.yaml', text: yaml }], () => undefined);
  return JSON.parse(JSON.stringify(found?.profile));
};

// Control characters for terminals, text with a meaning in YAML, and line breaks.
const text = fc.oneof(
  fc.string({ unit: fc.constantFrom(...'\u001b\u0085\u2028\u202e\ufeff\t\r\n #:-|>\'"\\[]{}&*!%@`a1é🚃') }),
  fc.string({ unit: 'grapheme' }),
  fc.constantFrom(
    'yes',
    'null',
    '~',
    '1e3',
    '0x10',
    '2001-01-01',
    '---',
    '...',
    ' a\n  b\n',
    'a\n\n\n',
    ' \n',
    '<<',
  ),
);
const clean = text.filter((value) => !value.includes('\u0000') && value.isWellFormed());

it('a printed profile is read as the same profile, and contains no terminal control characters', () => {
  fc.assert(
    fc.property(
      clean,
      clean,
      fc.array(fc.dictionary(clean, fc.oneof(clean, fc.double({ noNaN: true, noDefaultInfinity: true })))),
      (instructions, description, script) => {
        const profile = profileOf({ instructions, description, script });
        const yaml = toYaml(profile);
        expect(reread(yaml)).toEqual(profile);
        expect(yaml).not.toMatch(/[^\P{C}\n\u{e000}-\u{10ffff}]/u);
      },
    ),
    { numRuns: process.env.CI ? 2_000 : 300 },
  );
});

it('a difference is shown by lines, with three lines of context', () => {
  const lines = ['one', 'two', 'three', 'four', 'five', 'six'];
  const before = profileOf({ instructions: `${lines.join('\n')}\n` });
  const after = profileOf({ instructions: `${lines.with(4, 'FIVE').join('\n')}\n` });
  expect(
    diffProfiles({ label: 'p@1', profile: before }, { label: 'p@2', profile: after }).split('\n'),
  ).toEqual([
    '--- p@1',
    '+++ p@2',
    expect.stringMatching(/^@@ -4,7 \+4,7 @@$/),
    '   two',
    '   three',
    '   four',
    '-  five',
    '+  FIVE',
    '   six',
    ' model: scripted',
    ' model_settings: {}',
  ]);
  expect(
    diffProfiles({ label: 'nothing', profile: null }, { label: 'p.yaml', profile: before }).split('\n')[3],
  ).toBe('+name: p');
});
