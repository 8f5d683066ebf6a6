import { expect, test } from 'vitest';
import type { JsonObject } from '../base/index.js';
import { loosenSchema } from './loosen-schema.js';
import { checkBySchema } from './user-schema.js';

const object = (properties: JsonObject, rest: JsonObject = {}): JsonObject => ({
  type: 'object',
  properties,
  ...rest,
});

test('a schema that can be enforced stays the same object', () => {
  const schema = object({ a: { type: 'string', pattern: '^a+$' } });
  expect(loosenSchema(schema)).toBe(schema);
});

test.each<[string, JsonObject, JsonObject]>([
  ['a custom keyword', { type: 'string', 'x-order': 1 }, { type: 'string' }],
  ['an unknown format', { type: 'integer', format: 'uint64' }, { type: 'integer' }],
  ['a pattern that is not linear', { type: 'string', pattern: '(?=a)b' }, { type: 'string' }],
  ['a reference to another document', { $ref: 'https://example.org/a' }, {}],
])('the keyword is dropped and the rest is enforced: %s', (_what, part, kept) => {
  const loose = loosenSchema(object({ part, n: { type: 'number' } }, { required: ['n'] }));
  expect(loose).toEqual(object({ part: kept, n: { type: 'number' } }, { required: ['n'] }));
  expect(checkBySchema(loose ?? {}, {}, 'arguments')).toEqual(['n: is missing']);
});

test.each<[string, JsonObject]>([
  ['not', { not: { pattern: '(?=a)b' } }],
  ['oneOf', { oneOf: [{ type: 'string', 'x-a': 1 }, { type: 'number' }] }],
  ['if', { if: { format: 'uint64' }, else: { type: 'string' } }],
])('nothing is enforced where a looser part of %s could refuse more', (_what, part) => {
  expect(loosenSchema(object({ part }))).toBeUndefined();
});

test('names that a dropped pattern described are not refused', () => {
  const loose = loosenSchema({
    type: 'object',
    patternProperties: { '(?=a)a': { type: 'string' } },
    additionalProperties: false,
  });
  expect(loose).toEqual({ type: 'object' });
});

test.each<[string, JsonObject]>([
  ['another dialect', { $schema: 'http://json-schema.org/draft-04/schema#', type: 'object' }],
  ['a keyword with a value that it cannot have', { type: 'object', properties: 7 }],
  ['a schema that is too large', object({ a: { description: 'x'.repeat(70_000), 'x-a': 1 } })],
])('a schema that cannot be enforced gives undefined instead of an error: %s', (_what, schema) => {
  expect(loosenSchema(schema)).toBeUndefined();
});
