import { describe, expect, test } from 'vitest';
import { ERROR_CATALOGUE, type ErrorCode, KernelError, toErrorBody } from './errors.js';

const codes = Object.keys(ERROR_CATALOGUE) as ErrorCode[];

describe('the catalogue', () => {
  test.each(codes)('says of %s what it means and what to do next', (code) => {
    const entry = ERROR_CATALOGUE[code];
    expect(code).toMatch(/^[a-z]+(_[a-z]+)*$/);
    expect(entry.message).toMatch(/\.$/);
    expect(entry.next).toMatch(/\.$/);
    expect(entry.httpStatus).toBeGreaterThanOrEqual(400);
    expect(entry.httpStatus).toBeLessThan(600);
  });
});

describe('a kernel error', () => {
  test('carries its code, ids, cause, and the next step in its message', () => {
    const cause = new Error('why');
    const error = new KernelError('not_found', { message: 'No box x.', details: { box_id: 'x' }, cause });
    expect(error.message).toBe(`No box x. ${ERROR_CATALOGUE.not_found.next}`);
    expect(error.cause).toBe(cause);
    expect(error.entry).toBe(ERROR_CATALOGUE.not_found);
    expect(JSON.parse(JSON.stringify(error))).toEqual({
      code: 'not_found',
      message: error.message,
      details: { box_id: 'x' },
    });
  });

  test('without details has none on the wire', () => {
    expect(new KernelError('conflict').toJSON()).toEqual({
      code: 'conflict',
      message: expect.stringContaining(ERROR_CATALOGUE.conflict.message),
    });
  });
});

describe('whatever is thrown', () => {
  const unprintable = {
    toString() {
      throw new Error('no');
    },
  };

  test.each([
    ['an error', new Error('boom'), 'boom'],
    ['a text', 'boom', 'boom'],
    ['undefined', undefined, 'undefined'],
    ['a symbol', Symbol('s'), 'Symbol(s)'],
    ['an object without prototype', Object.create(null), '[unreadable]'],
    ['an object that throws when printed', unprintable, '[unreadable]'],
    [
      'an error whose message is no text',
      Object.assign(new Error('x'), { message: unprintable }),
      '[unreadable]',
    ],
  ])('has a body: %s', (_name, thrown, message) => {
    expect(toErrorBody(thrown, 'tool_failed')).toEqual({ code: 'tool_failed', message });
  });

  test('keeps its code when it has one', () => {
    expect(toErrorBody(new KernelError('conflict'), 'tool_failed').code).toBe('conflict');
    expect(toErrorBody(new Error('x')).code).toBe('internal_error');
  });
});
