import { describe, expect, test } from 'vitest';
import { KernelError } from '../base/errors.js';
import type { JsonValue } from '../base/json.js';
import type { Field } from './card.js';
import { checkResult } from './result-fields.js';

const fields: readonly Field[] = [
  { name: 'title', type: 'string' },
  { name: 'score', type: 'number', required: false },
  { name: 'any' },
];

function findingsOf(result: JsonValue, asked: readonly Field[] | undefined = fields): readonly string[] {
  try {
    checkResult(result, asked);
    return [];
  } catch (error) {
    if (!(error instanceof KernelError)) throw error;
    expect(error.code).toBe('tool_arguments_invalid');
    return error.details.findings as string[];
  }
}

describe('a submitted result', () => {
  test('must have the requested fields', () => {
    expect(findingsOf({ title: 'a', any: [1] })).toEqual([]);
    expect(findingsOf({ title: 'a', score: 0, any: false })).toEqual([]);
    expect(findingsOf({ title: '', score: null, any: 0 })).toEqual([]);
  });

  test('without a required field is refused; null is not a value', () => {
    expect(findingsOf({ title: 'a' })).toEqual(['result.any is missing']);
    expect(findingsOf({ any: 1, title: null })).toEqual([
      'result.title is null, but it is required; give a value of type string',
    ]);
  });

  test('with a field of another type is refused', () => {
    expect(findingsOf({ title: 1, any: 1 })).toEqual(['result.title must be of type string, not number']);
    expect(findingsOf({ title: 'a', any: 1, score: '1' })).toEqual([
      'result.score must be of type number, not string',
    ]);
    const typed = (type: Field['type'], value: JsonValue) =>
      findingsOf({ x: value }, [{ name: 'x', ...(type === undefined ? {} : { type }) }]);
    expect(typed('array', {})).toHaveLength(1);
    expect(typed('object', [])).toHaveLength(1);
    expect(typed('boolean', 'true')).toHaveLength(1);
    expect(typed('array', [])).toEqual([]);
    expect(typed('object', {})).toEqual([]);
    expect(typed('boolean', false)).toEqual([]);
  });

  test('with a field that was not requested is refused', () => {
    expect(findingsOf({ title: 'a', any: 1, more: 1 })).toEqual([
      'result.more is not one of the fields title, score, any',
    ]);
  });

  test('is checked by its own members only', () => {
    expect(findingsOf({}, [{ name: 'toString' }])).toEqual(['result.toString is missing']);
    expect(findingsOf({}, [{ name: 'constructor', type: 'object' }])).toEqual([
      'result.constructor is missing',
    ]);
  });

  test('is refused with all findings at once', () => {
    expect(findingsOf({ score: 'x', more: 1 })).toHaveLength(4);
  });

  test.each(['text', 1, null, [], [{ title: 'a' }]])('that is not an object is refused: %j', (result) => {
    expect(findingsOf(result as JsonValue)).toHaveLength(1);
  });

  test('may be any JSON when no fields were requested', () => {
    for (const result of ['text', null, [1], { a: 1 }])
      expect(checkResult(result, undefined)).toBeUndefined();
  });

  test('for an empty list of fields is an empty object', () => {
    expect(findingsOf({}, [])).toEqual([]);
    expect(findingsOf({ a: 1 }, [])).toHaveLength(1);
  });
});
