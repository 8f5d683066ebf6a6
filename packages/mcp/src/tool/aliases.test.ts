import { KernelError } from '@boxcar/kernel';
import { describe, expect, test } from 'vitest';
import { toSchemaNames } from './aliases.js';

const schema = {
  type: 'object',
  properties: {
    session_key: { type: 'string' },
    metadata: { type: 'object' },
    entries: { type: 'array', items: { type: 'object', properties: { context_type: {} } } },
  },
};

test('arguments in camelCase get the names of the schema, also in lists', () => {
  expect(toSchemaNames({ sessionKey: 'a', entries: [{ contextType: 'file' }] }, schema)).toEqual({
    session_key: 'a',
    entries: [{ context_type: 'file' }],
  });
});

test('arguments that the schema does not define are not renamed', () => {
  const value = { metadata: { sessionKey: 'mine', myOwn: 1 }, unknownName: 2 };
  expect(toSchemaNames(value, schema)).toEqual(value);
});

describe('both spellings of an argument', () => {
  test('with one value are one argument, in any order of the members', () => {
    const metadata = { schema_of: 1 };
    const open = { properties: { request_data: {} } };
    expect(toSchemaNames({ session_key: 'a', sessionKey: 'a', metadata }, schema)).toEqual({
      session_key: 'a',
      metadata,
    });
    expect(toSchemaNames({ request_data: { a: 1, b: 2 }, requestData: { b: 2, a: 1 } }, open)).toEqual({
      request_data: { a: 1, b: 2 },
    });
  });

  test.each([
    ['at the top', { session_key: 'a', sessionKey: 'b' }, 'session_key'],
    ['in a list', { entries: [{ context_type: 'file', contextType: 'system' }] }, 'entries.0.context_type'],
  ])('with different values are refused %s', (_where, value, field) => {
    let thrown: unknown;
    try {
      toSchemaNames(value, schema);
    } catch (error) {
      thrown = error;
    }
    expect(thrown).toBeInstanceOf(KernelError);
    expect(thrown).toMatchObject({ code: 'bad_request', details: { field } });
  });
});

test('a member named __proto__ stays an ordinary member', () => {
  const value = JSON.parse('{"__proto__":{"a":1},"sessionKey":"k"}');
  const named = toSchemaNames(value, schema);
  expect(JSON.stringify(named)).toBe('{"__proto__":{"a":1},"session_key":"k"}');
});
