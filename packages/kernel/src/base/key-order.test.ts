import fc from 'fast-check';
import { expect, test } from 'vitest';
import { z } from 'zod';
import { safeParse } from './findings.js';
import { parseJsonValue, sanitizeJson } from './json.js';
import { jsonText, keysOf, parseJson } from './key-order.js';
import { pythonJson } from './python-json.js';

test.each([
  ['integer-like keys', '{"10":1,"2":{"b":1,"1":2,"a":3}}'],
  ['in lists', '[{"2":1,"1":[{"b":0,"0":1}]},{"1":1,"2":2}]'],
  ['written with escapes', '{"b":1,"1":2}', String.raw`{"b":1, "\u0031" :2}`],
  ['a `__proto__` key', '{"2":{"b":1,"0":1},"__proto__":{"9":1,"8":2},"1":1}'],
  [
    'equal keys: the place of the first key, the value of the last key',
    '{"b":{"0":1},"1":2}',
    '{"b":{"7":1,"x":{"2":1,"1":1}},"1":1,"b":{"0":1},"1":2}',
  ],
  ['equal keys of different kinds', '{"b":[1],"1":2}', '{"b":{"7":{"9":1,"8":1}},"1":{},"b":[1],"1":2}'],
  ['marks, quotes and colons in texts', String.raw`{"9":"{\"2\":1,\"1\":[","1":"a\\","b}":"\","}`],
  [
    'numbers as JSON.parse reads them',
    '{"9":12345678901234567000,"1":1e+21,"b":-0.5}',
    '{"9":12345678901234567890,"1":1e21,"b":-0.50}',
  ],
])('a text keeps its key order: %s', (_what, expected, text = expected) => {
  const value = parseJson(text);
  expect(value).toEqual(JSON.parse(text));
  expect(jsonText(value)).toBe(expected);
});

test('values that callers send and read back keep their key order', () => {
  const text = '{"b":{"10":"\\u0000","2":[{"z":1,"0":2}]},"1":null}';
  const value = parseJson(text.replace('\\u0000', 'x')) as Record<string, unknown>;
  expect(jsonText(parseJsonValue(value, 'input'))).toBe(jsonText(value));
  expect(jsonText({ kind: 'json', data: value.b })).toBe(
    '{"kind":"json","data":{"10":"x","2":[{"z":1,"0":2}]}}',
  );
  expect(jsonText(sanitizeJson(parseJson(text)).value)).toBe(text.replace('\\u0000', '\uFFFD'));
  // Two keys that become equal count as one key.
  const same = sanitizeJson(parseJson('{"\\u0000":1,"2":1,"1":2,"\uFFFD":3}')).value;
  expect(jsonText(same)).toBe('{"\uFFFD":3,"2":1,"1":2}');
  expect(pythonJson(parseJsonValue(value.b, 'b'))).toBe('{"10": "x", "2": [{"z": 1, "0": 2}]}');
});

test('a schema does not change the key order: the keys that it fills in follow at the end', () => {
  const schema = z.array(
    z.strictObject({
      name: z.string().trim(),
      size: z.int().default(1),
      more: z.record(z.string(), z.int()).optional(),
    }),
  );
  const input = parseJson('[{"more":{"10":1,"2":2},"name":" a "},{"size":2,"name":"b"}]');
  const parsed = safeParse(schema, input);
  expect(jsonText(parsed.data)).toBe('[{"more":{"10":1,"2":2},"name":"a","size":1},{"size":2,"name":"b"}]');
});

test('a changed value is printed as it is now: without removed keys, and with new keys last', () => {
  const value = parseJson('{"b":1,"1":2}') as Record<string, number>;
  delete value.b;
  value.c = 3;
  expect(keysOf(value)).toEqual(['1', 'c']);
  expect(jsonText(value)).toBe('{"1":2,"c":3}');
});

test('any value is printed as JSON.stringify prints it, and any JSON text is printed again as it was', () => {
  const values = fc.jsonValue({ noUnicodeString: false } as never);
  fc.assert(
    fc.property(values, (value) => {
      const text = JSON.stringify(value);
      expect(jsonText(value)).toBe(text);
      expect(jsonText(parseJson(text))).toBe(text);
    }),
  );
  const keys = fc.oneof(fc.nat({ max: 20 }).map(String), fc.string());
  const entries = fc.uniqueArray(fc.tuple(keys, values), { selector: ([key]) => key });
  fc.assert(
    fc.property(entries, (members) => {
      const text = `{${members.map(([key, value]) => `${JSON.stringify(key)}:${JSON.stringify(value)}`).join(',')}}`;
      expect(jsonText(parseJson(text))).toBe(text);
    }),
  );
  expect(
    jsonText({
      at: new Date(0),
      gone: undefined,
      list: [undefined, () => 1],
      order: parseJson('{"b":1,"1":2}'),
    }),
  ).toBe('{"at":"1970-01-01T00:00:00.000Z","list":[null,null],"order":{"b":1,"1":2}}');
});

test('a text that is not valid JSON is refused with the message of JSON.parse, at any depth', () => {
  expect(() => parseJson('{"1":')).toThrow(SyntaxError);
  const deep = `${'{"1":'.repeat(5_000)}1${'}'.repeat(5_000)}`;
  expect(parseJson(deep)).toBeTypeOf('object');
});
