import { memoryUsage } from 'node:process';
import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import { describe, expect, test } from 'vitest';
import type { JsonObject, JsonValue } from '../base/json.js';
import { parseProfile } from '../profile/profile.js';
import { checkBySchema, findSchemaFault } from './user-schema.js';

const check = (schema: JsonObject, value: JsonValue): string[] => {
  expect(findSchemaFault(schema)).toBeUndefined();
  return checkBySchema(schema, value, 'arguments');
};
const node = { type: 'object', properties: { next: { $ref: '#' } }, additionalProperties: false };
const textOf = (text: object): JsonObject => ({ properties: { a: text as JsonObject } });

describe('a schema is enforced in full', () => {
  test.each<[string, JsonObject, JsonValue, string]>([
    ['a required key that is not in properties', { required: ['a'], properties: {} }, {}, 'a: is missing'],
    ['a required key with a default', { required: ['a'], ...textOf({ default: 1 }) }, {}, 'a: is missing'],
    ['anyOf at the root', { anyOf: [{ required: ['a'] }, { required: ['b'] }] }, {}, 'b: is missing'],
    ['allOf at the root', { allOf: [{ required: ['a'] }] }, {}, 'a: is missing'],
    [
      'items without a type',
      textOf({ items: { type: 'string' } }),
      { a: [1] },
      'a.0: must be a string, not a number',
    ],
    ['minLength without a type', textOf({ minLength: 2 }), { a: 'x' }, 'a: must have at least 2 characters'],
    ['minimum without a type', textOf({ minimum: 2 }), { a: 1 }, 'a: must be at least 2'],
    ['not', { not: { required: ['a'] } }, { a: 1 }, 'arguments: must not fit the schema in not'],
    ['if and else', { if: { required: ['a'] }, else: { required: ['b'] } }, {}, 'b: is missing'],
    ['dependentRequired', { dependentRequired: { a: ['b'] } }, { a: 1 }, 'b: is missing'],
    ['propertyNames', { propertyNames: { pattern: '^a' } }, { b: 1 }, 'arguments: must match /^a/'],
    [
      'patternProperties',
      { patternProperties: { '^a': { type: 'string' } } },
      { ab: 1 },
      'ab: must be a string, not a number',
    ],
    ['unevaluatedProperties', { unevaluatedProperties: false }, { a: 1 }, 'arguments: '],
    ['an unknown key', { additionalProperties: false }, { b: 1 }, "arguments: unknown key 'b'"],
    ['a format', textOf({ format: 'date' }), { a: '2026-02-30' }, 'a: must be a date, such as 2026-01-31'],
    [
      'uniqueItems',
      textOf({ uniqueItems: true }),
      {
        a: [
          { x: 1, y: 2 },
          { y: 2, x: 1 },
        ],
      },
      'a: must not',
    ],
    ['a recursive reference', node, { next: { next: { other: 1 } } }, 'next.next: '],
    ['a required __proto__', { required: ['__proto__'] }, {}, '__proto__: is missing'],
    [
      'a constant with __proto__',
      { const: JSON.parse('{"__proto__":1}') },
      JSON.parse('{"__proto__":2}'),
      'arguments: must be {"__proto__":1}',
    ],
    [
      '__proto__ that is not declared',
      { additionalProperties: false },
      JSON.parse('{"__proto__":1}'),
      "'__proto__'",
    ],
    ['a name of Object.prototype', { required: ['constructor'] }, {}, 'constructor: is missing'],
    [
      'a key with a slash',
      { properties: { 'a/b': { type: 'string' } } },
      { 'a/b': 1 },
      'a/b: must be a string, not a number',
    ],
    [
      'a tuple of draft 07',
      { $schema: 'http://json-schema.org/draft-07/schema#', ...textOf({ items: [{ type: 'string' }] }) },
      { a: [1] },
      'a.0: must be a string, not a number',
    ],
  ])('%s', (_what, schema, value, finding) => {
    expect(check(schema, value)).toContainEqual(expect.stringContaining(finding));
  });

  test.each<[string, JsonObject, JsonValue]>([
    ['an integer above 2^53', textOf({ type: 'integer' }), { a: 2 ** 53 + 2 }],
    [
      'an optional property named as one of Object.prototype',
      { properties: { toString: { type: 'string' } } },
      {},
    ],
    ['a multiple of a fraction', textOf({ multipleOf: 0.1 }), { a: 0.3 }],
    ['a text that looks like a number', textOf({ type: ['string', 'null'] }), { a: '1' }],
    ['a list of different items', textOf({ uniqueItems: true }), { a: [1, '1', [1]] }],
    ['a pattern with an escape of JavaScript', textOf({ pattern: '^\\u0041\\/[\\d-]+$' }), { a: 'A/1-2' }],
    [
      'an annotation that describes the encoding of a text',
      textOf({
        contentEncoding: 'base64',
        contentMediaType: 'application/json',
        contentSchema: { type: 'object' },
        default: 1,
      }),
      { a: 'neither base64 nor JSON' },
    ],
    ['a schema with an $id', { $id: 'https://json-schema.org/draft/2020-12/schema', type: 'object' }, {}],
  ])('and accepts %s', (_what, schema, value) => {
    expect(check(schema, value)).toEqual([]);
    // A second schema with the same $id is independent of the first.
    expect(check({ ...schema }, value)).toEqual([]);
  });
});

test.each(['constructor', '__proto__', 'toString'])('%s is an unevaluated name like any other', (name) => {
  const closed = { unevaluatedProperties: false };
  const value = JSON.parse(`{"${name}": 1}`) as JsonObject;
  const fault = [`arguments: unknown key '${name}'`];
  expect(check({ anyOf: [{ properties: { a: {} } }, { properties: { b: {} } }], ...closed }, value)).toEqual(
    fault,
  );
  expect(
    check({ $ref: '#/$defs/a', $defs: { a: { patternProperties: { '^b': {} } } }, ...closed }, value),
  ).toEqual(fault);
});

describe('two schemas are independent of each other', () => {
  const withPart = (part: JsonObject): JsonObject => ({
    properties: { a: { $ref: '#/$defs/x' } },
    $defs: { x: { $id: 'https://example.org/x', ...part } },
  });

  test.each<[string, (part: JsonObject) => JsonObject]>([
    ['the $id of the whole', (part) => ({ $id: 'https://example.org/x', properties: { a: part } })],
    ['the $id of a part', withPart],
    [
      'the $id of a part in draft 7',
      (part) => ({ $schema: 'http://json-schema.org/draft-07/schema#', ...withPart(part) }),
    ],
  ])('when %s is the same in both', (_what, schemaOf) => {
    const texts = schemaOf({ type: 'string' });
    const numbers = schemaOf({ type: 'number' });
    for (const _ of [1, 2]) {
      expect([check(texts, { a: 'x' }), check(texts, { a: 1 })]).toEqual([
        [],
        ['a: must be a string, not a number'],
      ]);
      expect([check(numbers, { a: 1 }), check(numbers, { a: 'x' })]).toEqual([
        [],
        ['a: must be a number, not a string'],
      ]);
    }
  });

  test('and a part cannot replace the meta-schema', () => {
    const id = 'https://json-schema.org/draft/2020-12/schema';
    expect(findSchemaFault({ $defs: { a: { $id: id, type: 'number' } } })).toBeUndefined();
    expect(findSchemaFault({ type: 'strin' })).toContain('type');
    expect(check({ type: 'object' }, {})).toEqual([]);
  });

  test('and a schema that is no longer used is not kept', () => {
    setFlagsFromString('--expose-gc');
    const gc = runInNewContext('gc') as () => void;
    const compile = (index: number): void => {
      const description = `${index}`.padEnd(60_000, 'x');
      expect(check({ properties: { a: { description, pattern: `^${index}` } } }, {})).toEqual([]);
    };
    compile(0);
    gc();
    const before = memoryUsage().heapUsed;
    for (let index = 1; index <= 60; index += 1) compile(index);
    gc();
    expect(memoryUsage().heapUsed - before).toBeLessThan(1_800_000);
  });
});

describe('a schema is refused', () => {
  const deep = (levels: number): JsonObject => (levels === 0 ? {} : { not: deep(levels - 1) });

  test.each<[string, JsonObject, string]>([
    ['look-ahead', textOf({ pattern: '(?=a)b' }), '(?='],
    ['look-behind', textOf({ pattern: '(?<=a)b' }), '(?<='],
    ['a pattern, with advice on what to write', textOf({ pattern: '(?<=a)b' }), 'write it for RE2'],
    ['a back reference', textOf({ pattern: '(a)\\1' }), '\\1'],
    ['the same in a pattern of names', { patternProperties: { '(a)\\1': true } }, '\\1'],
    ['the same in propertyNames', { propertyNames: { pattern: '(?!a)' } }, '(?!'],
    ['patterns that are too large', textOf({ allOf: Array(5).fill({ pattern: '(a?){1000}' }) }), 'too large'],
    ['an unknown keyword', textOf({ minlength: 1 }), 'properties.a.minlength: is not a keyword'],
    ['the internal keyword that counts work', { 'boxcar:work': -1 }, 'boxcar:work: is not a keyword'],
    ['an unknown keyword in a definition', { $defs: { x: { foo: 1 } } }, '$defs.x.foo: is not a keyword'],
    ...['properties', 'patternProperties', 'dependentSchemas', '$defs'].map(
      (key): [string, JsonObject, string] => [
        `__proto__ in ${key}`,
        { not: { [key]: Object.fromEntries([['__proto__', {}]]) } },
        `not.${key}.__proto__: cannot be a name here`,
      ],
    ),
    ['an unknown format', textOf({ format: 'shoe-size' }), 'unknown format "shoe-size"'],
    [
      'an unknown keyword in contentSchema',
      textOf({ contentSchema: { foo: 1 } }),
      'contentSchema.foo: is not',
    ],
    ['a format that takes any time', textOf({ format: 'regex' }), 'properties.a.format: '],
    ['an unknown type', textOf({ type: 'strin' }), 'type'],
    [
      'a remote reference',
      { $ref: 'https://example.org/a.json' },
      '$ref: must refer to a part of this schema',
    ],
    ['a reference to nothing', { $ref: '#/$defs/a' }, "can't resolve reference"],
    ['an unknown dialect', { $schema: 'http://json-schema.org/draft-04/schema#' }, '$schema: must be draft'],
    ['a size beyond the limit', { description: 'x'.repeat(64 * 1024) }, 'larger than 65536 bytes'],
    ['a depth beyond the limit', deep(65), 'nested deeper than 64 levels'],
    ['`else` without `if`', { else: { required: ['a'] } }, '"else"'],
  ])('with %s', (_what, schema, fault) => {
    expect(findSchemaFault(schema)).toContain(fault);
    expect(checkBySchema(schema, {}, 'arguments')).toEqual([
      expect.stringContaining('arguments: the schema cannot be enforced: '),
    ]);
  });
});

describe('no schema and no value blocks the event loop:', () => {
  const doubling = (keyword: string): JsonObject => ({
    $ref: '#/$defs/d0',
    $defs: Object.fromEntries(
      Array.from({ length: 60 }, (_, level) => [
        `d${level}`,
        level === 59 ? { minimum: 1 } : { [keyword]: Array(2).fill({ $ref: `#/$defs/d${level + 1}` }) },
      ]),
    ),
  });
  const many = Array.from({ length: 100_000 }, (_, index) => [index]);
  const names = Array.from({ length: 2_500 }, (_, index) => `a${index}`);
  const zeros = Array.from({ length: 20_000 }, () => 0);
  const wide = Object.fromEntries(Array.from({ length: 60_000 }, (_, index) => [`k${index}`, index]));
  /** A schema that applies `schema` to the same value in 9,000 ways. */
  const manyWays = (schema: JsonObject, keyword = 'allOf'): JsonObject => ({
    $ref: '#/$defs/d0',
    $defs: {
      ...Object.fromEntries(
        [30, 30, 10].map((ways, level) => [
          `d${level}`,
          { [keyword]: Array(ways).fill({ $ref: `#/$defs/d${level + 1}` }) },
        ]),
      ),
      d3: schema,
    },
  });

  test.each<[string, JsonObject, JsonValue]>([
    ['references that double at each level', doubling('allOf'), 1],
    ['alternatives that double at each level', doubling('anyOf'), 0],
    ['a schema that contains itself', { allOf: [{ $ref: '#' }] }, {}],
    ['a reference to itself', { $ref: '#' }, {}],
    [
      'a thousand checks of each of many items',
      textOf({ anyOf: Array(1000).fill({ contains: false }) }),
      { a: many },
    ],
    [
      'the length of a long text, checked by many alternatives',
      manyWays({ maxLength: 9_000_000 }),
      'x'.repeat(1_000_000),
    ],
    [
      'a length that no alternative accepts',
      manyWays({ minLength: 9_000_000 }, 'anyOf'),
      'x'.repeat(1_000_000),
    ],
    [
      'the format of a long text',
      manyWays({ format: 'date-time' }),
      `1985-04-12T23:20:50.${'1'.repeat(1_000_000)}Z`,
    ],
    ['a large constant', manyWays({ const: zeros }), zeros],
    ['a large constant that no alternative has', manyWays({ const: [...zeros, 1] }, 'anyOf'), [...zeros, 2]],
    ['a large enum', manyWays({ enum: [zeros] }), zeros],
    ['large unique items', manyWays({ uniqueItems: true }), [wide]],
    ['a large pattern on a long text', textOf({ pattern: '(a|b)*a(a|b){500}c' }), { a: 'ab'.repeat(50_000) }],
  ])('%s', (_what, schema, value) => {
    expect(check(schema, value)).toEqual([
      expect.stringMatching(/^arguments: (it takes too much work|is nested)/),
    ]);
  });

  test('a pattern with nested repetition', () => {
    expect(check(textOf({ pattern: '^(a+)+$' }), { a: `${'a'.repeat(40)}!` })).toHaveLength(1);
    expect(check(textOf({ pattern: '^(a+)+$' }), { a: 'a'.repeat(100_000) })).toEqual([]);
  });

  test('many items that must be unique', () => {
    expect(check(textOf({ uniqueItems: true }), { a: many })).toEqual([]);
  });

  test('checking a long text takes only the work that its schema requires', () => {
    const schema = textOf({
      type: 'string',
      minLength: 1,
      maxLength: 2_000_000,
      format: 'uri',
      not: { const: '' },
    });
    expect(check(schema, { a: `https://example.org/${'x'.repeat(1_000_000)}` })).toEqual([]);
  });

  const branches = (count: number): JsonObject => ({
    type: 'object',
    oneOf: Array.from({ length: count }, (_, index) => ({ required: [`a${index}`] })),
  });
  const then = Object.fromEntries([['then', {}]]);
  const allowed = (some: readonly string[]) => Object.fromEntries(some.map((name) => [name, true]));

  test.each<[string, JsonObject]>([
    ['alternatives', branches(1_250)],
    ['properties', { properties: allowed(names) }],
    ['conditions', { allOf: Array(625).fill({ if: {}, ...then, else: {} }) }],
    ['names that another name requires', { dependentRequired: { a: names } }],
    [
      'the same in draft 7',
      { $schema: 'http://json-schema.org/draft-07/schema#', dependencies: { a: names } },
    ],
    ['patterns of names', { patternProperties: allowed(names.slice(0, 250)) }],
    ['a pattern', textOf({ pattern: `[${'\\p{L}'.repeat(8_000)}]` })],
    ['properties in a pattern', textOf({ pattern: '\\p{L}'.repeat(1_300) })],
  ])('a schema with too many parts is refused and not compiled: %s', (_what, schema) => {
    expect(findSchemaFault(schema)).toBe('it has too many parts (2500 at most)');
  });

  test('the schemas of a profile are refused together, before the first is compiled', () => {
    const profileOf = (count: number, parameters: JsonObject) => ({
      name: 'p',
      instructions: 'i',
      model: 'scripted',
      tools: Array.from({ length: count }, (_, index) => ({
        name: `t${index}`,
        description: 'd',
        target: 'x',
        parameters,
      })),
    });
    const refused = 'the schemas of all tools together have too many parts (5000 at most)';
    const faultOf = (count: number, parameters: JsonObject): unknown => {
      try {
        return parseProfile(profileOf(count, parameters));
      } catch (error) {
        return error instanceof Error ? error.message : error;
      }
    };
    expect(faultOf(5, branches(800))).toContain(refused);
    // If each schema were compiled, the error would also name the look-ahead.
    const strange = { type: 'object', properties: { a: { pattern: '(?=a)' } } };
    expect(faultOf(400, strange)).toContain(refused);
    expect(faultOf(400, strange)).not.toContain('(?=');
    expect(faultOf(1, strange)).toContain('(?=');
    expect(faultOf(100, textOf({ type: 'string' }))).toContain('type: object');
    expect(faultOf(100, { type: 'object', ...textOf({ type: 'string' }) })).toHaveProperty(
      'tools.length',
      100,
    );
  });
});

describe('no finding uses the words of the schema library:', () => {
  const kinds: readonly (readonly [JsonObject, JsonValue, string])[] = [
    [{ type: ['string', 'null'] }, 1, 'must be a string or null, not a number'],
    [{ type: 'integer' }, 1.5, 'must be a whole number'],
    [
      { enum: ['small', 'large'] },
      'smal',
      "must be one of 'small', 'large', not 'smal'; did you mean 'small'?",
    ],
    [{ const: 1 }, 2, 'must be 1'],
    [{ minItems: 2 }, [1], 'must have at least 2 items'],
    [{ maxItems: 1 }, [1, 2], 'must have at most 1 item'],
    [{ minItems: 1 }, [], 'must not be empty'],
    [{ maxLength: 1 }, 'ab', 'must have at most 1 character'],
    [{ minProperties: 2 }, {}, 'must have at least 2 members'],
    [{ maximum: 1 }, 2, 'must be at most 1'],
    [{ exclusiveMinimum: 1 }, 1, 'must be more than 1'],
    [{ exclusiveMaximum: 1 }, 1, 'must be less than 1'],
    [{ multipleOf: 2 }, 3, 'must be a multiple of 2'],
    [{ pattern: '^a' }, 'b', 'must match /^a/'],
    [{ format: 'email' }, 'b', 'must be an email address'],
    [{ contains: { const: 1 } }, [2], 'must have at least 1 item that fits the schema in contains'],
    [{ oneOf: [{ type: 'number' }, { minimum: 0 }] }, 1, 'must fit exactly one of the schemas in oneOf'],
    [{ uniqueItems: true }, [1, 1], 'must not have equal items'],
    [
      { properties: { colour: {} }, additionalProperties: false },
      { color: 1 },
      "unknown key 'color' (did you mean 'colour'?)",
    ],
    [
      { properties: { b: {} }, additionalProperties: false },
      { zzz: 1 },
      "unknown key 'zzz'; known here are b",
    ],
    [false as unknown as JsonObject, 1, 'must be left out'],
  ];
  test.each(kinds)('%j', (schema, value, words) => {
    expect(check({ properties: { a: schema } }, { a: value })[0]).toBe(`a: ${words}`);
  });

  test('a fault of the schema itself uses none either', () => {
    expect(findSchemaFault(textOf({ minLength: -1 }))).toBe('properties.a.minLength: must be at least 0');
    expect(findSchemaFault(textOf({ type: 'strin' }))).toContain(
      "properties.a.type: must be one of 'array', 'boolean'",
    );
    expect(findSchemaFault(textOf({ required: 'b' }))).toBe(
      'properties.a.required: must be a list, not a string',
    );
  });

  test('a value that matches no alternative gets the findings of each', () => {
    expect(check(textOf({ anyOf: [{ type: 'string' }, { type: 'array' }] }), { a: 1 })).toEqual([
      'a: must be a string, not a number',
      'a: must be a list, not a number',
      'a: must fit one of the schemas in anyOf',
    ]);
  });
});
