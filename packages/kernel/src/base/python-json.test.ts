import fc from 'fast-check';
import { expect, test } from 'vitest';
import type { JsonValue } from './json.js';
import { pythonJson, pythonJsonAt, pythonJsonText, readPythonJson } from './python-json.js';

// The output of Python 3.11 for these texts, read by `json.loads` and written by `json.dumps(…, ensure_ascii=False)`.
test.each([
  ['{"y":2,"z":[3,{}],"a":null}', '{"y": 2, "z": [3, {}], "a": null}'],
  [
    '[1.0,-0.0,0,-0,1e16,1e15,123456789012345680.0]',
    '[1.0, -0.0, 0, 0, 1e+16, 1000000000000000.0, 1.2345678901234568e+17]',
  ],
  ['[0.0001,0.00001,1E-7,5e-324,1.50e3,100e-2]', '[0.0001, 1e-05, 1e-07, 5e-324, 1500.0, 1.0]'],
  ['[12345678901234567890123,-7]', '[12345678901234567890123, -7]'],
  [
    String.raw`{"k\u00e9y":"\u0001\/\u2028\"\\ {\n: ,[1.0]"}`,
    '{"kéy": "\\u0001/\u2028\\"\\\\ {\\n: ,[1.0]"}',
  ],
  ['{"a":1,"b":{"c":2,"c":3},"\\u0061":4}', '{"a": 4, "b": {"c": 3}}'],
  [
    '{"n":NaN,"i":[Infinity,-Infinity,1e400],"s":"NaN"}',
    '{"n": NaN, "i": [Infinity, -Infinity, Infinity], "s": "NaN"}',
  ],
  [' {\n "a" : [ true , false ] }\n', '{"a": [true, false]}'],
])('%s is printed as Python prints it', (text, printed) => {
  expect(pythonJsonText(text)).toBe(printed);
});

test('a value is read back as it was', () => {
  fc.assert(
    fc.property(fc.jsonValue(), (value) => {
      const plain = JSON.parse(JSON.stringify(value)) as JsonValue;
      const printed = pythonJson(plain);
      expect(JSON.parse(printed)).toEqual(plain);
      expect(pythonJsonText(printed)).toBe(printed);
    }),
    { numRuns: 300 },
  );
});

test('a value deep in a text keeps the digits that a JavaScript number would lose', () => {
  const text = '{"payload":{"state":{"n":1.0},"results":["a",{"x":12345678901234567890}],"state":{"n":2.0}}}';
  expect(pythonJsonAt(text, ['payload', 'state'])).toBe('{"n": 2.0}');
  expect(pythonJsonAt(text, ['payload', 'results', 1])).toBe('{"x": 12345678901234567890}');
  expect(pythonJsonAt(text, ['payload', 'results', 2])).toBeUndefined();
  expect(pythonJsonAt(text, ['payload', 'results', 'state'])).toBeUndefined();
  expect(pythonJsonAt(text, ['payload', 'missing', 'state'])).toBeUndefined();
});

test('Python’s own spellings that JSON lacks are read, and no other spellings', () => {
  expect(readPythonJson('\uFEFF{"a": NaN, "NaN": [-Infinity, "\\" Infinity"]}')).toEqual({
    a: null,
    NaN: [null, '" Infinity'],
  });
  for (const broken of [
    '{"a": -NaN}',
    '{"a": xNaN}',
    '{"a": NaN "b"}',
    '{"a": "NaN}',
    'NaNNaN',
    '[NaN, 1 2]',
    '{NaN: 1}',
  ])
    expect(() => readPythonJson(broken)).toThrow(SyntaxError);
});

test('a long text of escapes is read correctly', () => {
  const text = `{"payload": {"results": ["${'\\n'.repeat(3_000_000)}", 1.0]}}`;
  expect(pythonJsonAt(text, ['payload', 'results', 1])).toBe('1.0');
});
