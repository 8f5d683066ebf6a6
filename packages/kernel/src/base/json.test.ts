import { createHash } from 'node:crypto';
import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { KernelError } from './errors.js';
import {
  canonicalJson,
  isJsonObject,
  type JsonValue,
  parseJsonValue,
  sanitizeJson,
  sanitizeText,
  sha256,
} from './json.js';

const numRuns = process.env.CI ? 3_000 : 1_000;
const SURROGATE = '\ud800';

const refused = (value: unknown): KernelError | undefined => {
  try {
    parseJsonValue(value, 'input');
    return undefined;
  } catch (error) {
    if (error instanceof KernelError) return error;
    throw error;
  }
};

const nested = (depth: number): JsonValue => {
  let value: JsonValue = 'x';
  for (let level = 0; level < depth; level++) value = level % 2 === 0 ? [value] : { k: value };
  return value;
};

describe('canonical JSON', () => {
  test('sorts keys by UTF-16 code units and prints as ECMAScript does (RFC 8785)', () => {
    // The example of RFC 8785, section 3.2.3.
    const value = {
      '\u20ac': 'Euro Sign',
      '\r': 'Carriage Return',
      '\ufb33': 'Hebrew Letter Dalet With Dagesh',
      '1': 'One',
      '\ud83d\ude00': 'Emoji: Grinning Face',
      '\u0080': 'Control',
      '\u00f6': 'Latin Small Letter O With Diaeresis',
    };
    expect(Object.values(JSON.parse(canonicalJson(value)))).toHaveLength(7);
    expect([...canonicalJson(value).matchAll(/:"([^"]*)"/g)].map((match) => match[1])).toEqual([
      'Carriage Return',
      'One',
      'Control',
      'Latin Small Letter O With Diaeresis',
      'Euro Sign',
      'Emoji: Grinning Face',
      'Hebrew Letter Dalet With Dagesh',
    ]);
    expect(canonicalJson({ b: [1e21, 0.1, -0, 1e-7], a: '\u20ac$\n"' })).toBe(
      '{"a":"€$\\n\\"","b":[1e+21,0.1,0,1e-7]}',
    );
  });

  test('is the same for the same value in any order of keys', () => {
    fc.assert(
      fc.property(fc.jsonValue(), (value) => {
        const shuffle = (part: unknown): unknown => {
          if (Array.isArray(part)) return part.map(shuffle);
          if (!isJsonObject(part)) return part;
          return Object.fromEntries(
            Object.entries(part)
              .reverse()
              .map(([key, member]) => [key, shuffle(member)]),
          );
        };
        const text = canonicalJson(value as JsonValue);
        expect(canonicalJson(shuffle(value) as JsonValue)).toBe(text);
        expect(JSON.parse(text)).toEqual(JSON.parse(JSON.stringify(value)));
      }),
      { numRuns },
    );
  });

  test('keeps a key named __proto__', () => {
    expect(canonicalJson(JSON.parse('{"__proto__":1}') as JsonValue)).toBe('{"__proto__":1}');
  });
});

test('the sha256 is computed over UTF-8, and is printed in lower-case hex', () => {
  expect(sha256('')).toBe('e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855');
  expect(sha256('ä')).toBe(
    createHash('sha256')
      .update(Buffer.from([0xc3, 0xa4]))
      .digest('hex'),
  );
});

describe('JSON from callers', () => {
  test('is accepted unchanged, in its key order, as a copy', () => {
    fc.assert(
      fc.property(fc.jsonValue(), (value) => {
        const parsed = parseJsonValue(value, 'input');
        expect(JSON.stringify(parsed)).toBe(JSON.stringify(value));
        if (typeof value === 'object' && value !== null) expect(parsed).not.toBe(value);
      }),
      { numRuns },
    );
  });

  test.each([
    ['NUL', 'a\u0000', 'input'],
    ['a lone surrogate', { a: [SURROGATE] }, 'input.a.0'],
    ['NUL in a key', { a: { 'b\u0000': 1 } }, 'input.a'],
    ['NaN', [Number.NaN], 'input.0'],
    ['infinity', { a: Number.POSITIVE_INFINITY }, 'input.a'],
    ['undefined', undefined, 'input'],
    ['undefined in a list', [1, undefined], 'input.1'],
    ['a function', { f: () => 1 }, 'input.f'],
    ['a symbol', Symbol('s'), 'input'],
    ['a BigInt', { n: 1n }, 'input.n'],
    ['a date', { at: new Date(0) }, 'input.at'],
    ['a map', new Map(), 'input'],
    ['a class', new (class A {})(), 'input'],
    ['bytes', Buffer.from('x'), 'input'],
  ])('is refused with the place of the fault when it holds %s', (_name, value, field) => {
    expect(refused(value)).toMatchObject({ code: 'bad_request', details: { field } });
  });

  test('is refused beyond 200 levels of nesting, and when it contains a circle', () => {
    expect(refused(nested(200))).toBeUndefined();
    expect(refused(nested(201))?.code).toBe('bad_request');
    const circle: Record<string, unknown> = {};
    circle.self = circle;
    expect(refused(circle)?.code).toBe('bad_request');
  });

  test('drops undefined members, and keeps objects without a prototype and keys named __proto__ as data', () => {
    expect(parseJsonValue({ a: undefined, b: 1 }, 'input')).toEqual({ b: 1 });
    expect(parseJsonValue(Object.assign(Object.create(null), { a: 1 }), 'input')).toEqual({ a: 1 });
    const parsed = parseJsonValue(JSON.parse('{"__proto__":{"polluted":true}}'), 'input');
    expect(JSON.stringify(parsed)).toBe('{"__proto__":{"polluted":true}}');
    expect((parsed as { polluted?: boolean }).polluted).toBeUndefined();
  });
});

describe('text from models', () => {
  test('loses NUL and lone surrogates, and the result says so', () => {
    expect(sanitizeText('fine \ud83d\ude00')).toEqual({ value: 'fine \ud83d\ude00', isChanged: false });
    expect(sanitizeText(`a\u0000b${SURROGATE}`)).toEqual({ value: 'a\ufffdb\ufffd', isChanged: true });
  });
});

describe('any value that a tool returns', () => {
  const circle: Record<string, unknown> = { name: 'ring' };
  circle.self = circle;
  const shared = { a: 1 };
  const noPrototype = Object.create(null) as Record<string, unknown>;
  noPrototype.self = noPrototype;

  test.each([
    ['undefined', undefined, null, false],
    ['a function', () => 1, null, false],
    ['a symbol', Symbol('s'), null, false],
    ['NaN', Number.NaN, null, false],
    ['a date', new Date(0), '1970-01-01T00:00:00.000Z', false],
    ['undefined in a list', [undefined], [null], false],
    ['a BigInt', { n: 2n ** 70n }, { n: '1180591620717411303424' }, true],
    ['a BigInt alone', 5n, '5', true],
    ['a circle', circle, { name: 'ring', self: '[circular]' }, true],
    ['a circle without prototype', noPrototype, { self: '[circular]' }, true],
    ['the same object twice', [shared, { b: shared }], [{ a: 1 }, { b: { a: 1 } }], false],
    ['the same object twice and a BigInt', [shared, shared, 1n], [{ a: 1 }, { a: 1 }, '1'], true],
    ['NUL', { 'a\u0000': ['b\u0000'] }, { 'a\ufffd': ['b\ufffd'] }, true],
    ['a lone surrogate', SURROGATE, '\ufffd', true],
    [
      'a toJSON that throws',
      {
        toJSON() {
          throw new Error('no');
        },
        toString: () => 'printed',
      },
      'printed',
      true,
    ],
    [
      'a value that cannot even be printed',
      {
        toJSON() {
          throw new Error('no');
        },
        toString() {
          throw new Error('no');
        },
      },
      '[unreadable]',
      true,
    ],
  ])('becomes JSON: %s', (_name, value, expected, isChanged) => {
    expect(sanitizeJson(value)).toEqual({ value: expected, isChanged });
  });

  test.each([200, 201, 5_000, 100_000])('is cut where it is nested too deeply: %i levels', (depth) => {
    const { value, isChanged } = sanitizeJson(nested(depth));
    expect(isChanged).toBe(depth > 200);
    expect(refused(value)).toBeUndefined();
    expect(JSON.stringify(value).includes('[nested too deeply]')).toBe(depth > 200);
  });

  test('becomes JSON that callers may also send', () => {
    fc.assert(
      fc.property(
        fc.anything({ withBigInt: true, withDate: true, withMap: true, withSet: true }),
        (value) => {
          const { value: clean } = sanitizeJson(value);
          expect(refused(clean)).toBeUndefined();
          expect(sanitizeJson(clean)).toEqual({ value: clean, isChanged: false });
        },
      ),
      { numRuns },
    );
  });
});
