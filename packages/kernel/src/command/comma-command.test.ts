import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import type { JsonValue } from '../base/json.js';
import { beginCommand, isCommaCommand, parseCommaCommand } from './comma-command.js';

const parts = (text: string): readonly [string, readonly string[], Readonly<Record<string, JsonValue>>] => {
  const { name, positional, named } = parseCommaCommand(text);
  return [name, positional, named];
};

describe('a command', () => {
  test.each<[string, string, readonly string[], Record<string, JsonValue>]>([
    [',anchors', 'anchors', [], {}],
    ['  , help  ', 'help', [], {}],
    [',tape.reset archive=true', 'tape.reset', [], { archive: 'true' }],
    [
      ',handoff name=phase-1 summary="Setup complete" next_steps="Implementation"',
      'handoff',
      [],
      { name: 'phase-1', summary: 'Setup complete', next_steps: 'Implementation' },
    ],
    [
      ',handoff name=debug-complete \n       summary="Found bug in auth.py line 45, fix: add null check"',
      'handoff',
      [],
      { name: 'debug-complete', summary: 'Found bug in auth.py line 45, fix: add null check' },
    ],
    [
      ',handoff name=project/start state={goal: "Build API"}',
      'handoff',
      [],
      { name: 'project/start', state: { goal: 'Build API' } },
    ],
    [
      ',handoff name=p state={tables: 5, next: "Routes}", deep: {a: [1, two]}} phase=x',
      'handoff',
      [],
      { name: 'p', state: { tables: 5, next: 'Routes}', deep: { a: [1, 'two'] } }, phase: 'x' },
    ],
    [`,handoff state='{"goal":"Build API"}'`, 'handoff', [], { state: '{"goal":"Build API"}' }],
    [',handoff state="{x}" q=\\{y}', 'handoff', [], { state: '{x}', q: '{y}' }],
    [',search "two words" limit=3', 'search', ['two words'], { limit: '3' }],
    [',search a=b=c x=', 'search', [], { a: 'b=c', x: '' }],
    [',t "a=b c"', 't', [], { a: 'b c' }],
    [',t --name x --flag --other=y --last', 't', [], { name: 'x', flag: true, other: 'y', last: true }],
    [',t --state={a: 1}', 't', [], { state: { a: 1 } }],
    [',t k=1 k=2', 't', [], { k: '2' }],
    [',t __proto__=x', 't', [], Object.fromEntries([['__proto__', 'x']])],
    [",t 'it''s' \"a\\\"b\\\\c\\n\" d\\ e ''", 't', ['its', 'a"b\\c\\n', 'd e', ''], {}],
    [',t one\\\ntwo "three\\\nfour"', 't', ['onetwo', 'threefour'], {}],
    [',t # {x} $y `z`', 't', ['#', '{x}', '$y', '`z`'], {}],
    [',t note="line one\nline two"', 't', [], { note: 'line one\nline two' }],
  ])('%j is read', (text, name, positional, named) => {
    expect(isCommaCommand(text)).toBe(true);
    expect(beginCommand(text).open).toBeNull();
    expect(parts(text)).toEqual([name, positional, named]);
    expect(parseCommaCommand(text).raw).toBe(text.trim());
  });

  test.each([
    ['please run ,x', 'does not begin with a comma'],
    [',', 'a name is missing after the comma'],
    [',   ', 'a name is missing after the comma'],
    [',""', 'a name is missing after the comma'],
    [',state={a: 1}', 'begins with an argument, not with a name'],
    [',handoff name="phase', 'a quote is not closed'],
    [",handoff name='phase", 'a quote is not closed'],
    [',handoff state={a: 1', 'a brace is not closed'],
    [',handoff state={a: "}"', 'a brace is not closed'],
    [',handoff a\\', 'nothing follows the last backslash'],
    [',handoff state={a: 1}b', "'b' follows a closing brace"],
    [',handoff state={a}', 'a colon is missing'],
    [',handoff name=a extra', "positional argument 'extra' cannot appear after keyword arguments"],
    [',handoff --flag x y', "positional argument 'y' cannot appear after keyword arguments"],
    [',handoff =x', "'=x' names no argument"],
    [',handoff --', "'--' names no argument"],
  ])('%j is refused: %s', (text, why) => {
    expect(() => parseCommaCommand(text)).toThrow(why);
    expect(() => parseCommaCommand(text)).toThrow(expect.objectContaining({ code: 'bad_request' }));
  });

  test.each(['please run ,x', '$x', 'echo hi', '', '-,x'])('%j is not a command', (text) => {
    expect(isCommaCommand(text)).toBe(false);
  });

  test.each([',t "a', ",t 'a\nb", ',t a\\', ',t s={a: 1', ',t s={a: "}'])(
    '%j continues in the next line',
    (text) => {
      expect(beginCommand(text).open).not.toBeNull();
    },
  );

  test('keeps any words that were quoted', () => {
    const word = fc.string({
      unit: fc.constantFrom('a', ' ', '"', "'", '\\', '\n', '{', '}', 'é', '#'),
      minLength: 1,
    });
    const quote = fc.constantFrom(
      (text: string) => `'${text.replaceAll("'", `'"'"'`)}'`,
      (text: string) => `"${text.replaceAll(/["\\]/g, '\\$&')}"`,
    );
    fc.assert(
      fc.property(fc.array(fc.tuple(word, quote), { maxLength: 5 }), (words) => {
        const text = `,t ${words.map(([each, quoted]) => quoted(each)).join(' ')} last=${words.length}`;
        expect(parts(text)).toEqual(['t', words.map(([each]) => each), { last: String(words.length) }]);
      }),
      { numRuns: 300 },
    );
  });
});
