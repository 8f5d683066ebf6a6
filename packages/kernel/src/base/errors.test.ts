import { inspect } from 'node:util';
import { describe, expect, test } from 'vitest';
import { parseCardInput } from '../card/card.js';
import { checkResult } from '../card/result-fields.js';
import { readTapeCommand } from '../command/tape-command.js';
import { ERROR_CATALOGUE, type ErrorCode } from './error-catalogue.js';
import { KernelError, toErrorBody } from './errors.js';
import { parseId } from './ids.js';
import { parseJsonValue } from './json.js';

const codes = Object.keys(ERROR_CATALOGUE) as ErrorCode[];

describe('the catalogue', () => {
  test.each(codes)('says what the code %s means and what to do next', (code) => {
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

  test('gives its parts as data, and a restated error has its next step only once', () => {
    const error = new KernelError('bad_request', {
      message: 'name: is missing.',
      next: 'Send a name.',
      details: { field: 'name', given: [] },
    });
    expect(error).toMatchObject({ problem: 'name: is missing.', next: 'Send a name.', field: 'name' });
    expect(error.restate('No name.', { more: 1 })).toMatchObject({
      message: 'No name. Send a name.',
      details: { field: 'name', given: [], more: 1 },
      cause: error,
    });
    expect(error.atField('tasks.0.name')).toMatchObject({
      code: 'bad_request',
      message: 'tasks.0.name: is missing. Send a name.',
      field: 'tasks.0.name',
      details: { field: 'tasks.0.name', given: [] },
    });
    // Only one next step: an error with its own advice does not add the catalogue's advice.
    expect(error.atField('tasks.0.name').message).not.toContain(ERROR_CATALOGUE.bad_request.next);
    expect(new KernelError('conflict').atField('name').message).toBe(
      `name: ${ERROR_CATALOGUE.conflict.message} ${ERROR_CATALOGUE.conflict.next}`,
    );
    expect(Object.keys(error.toJSON())).toEqual(['code', 'message', 'details']);
  });

  test.each([
    ['name: is missing.', 'tasks.0.name: is missing. Send a name.'],
    ['Line 3: name: is missing.', 'tasks.0.name: Line 3: is missing. Send a name.'],
    ['A name is missing.', 'tasks.0.name: A name is missing. Send a name.'],
  ])(
    'names its field once when an error about the whole input is moved to that field: %s',
    (message, told) => {
      const error = new KernelError('bad_request', {
        message,
        next: 'Send a name.',
        details: { field: 'name' },
      });
      expect(error.atField('tasks.0.name').message).toBe(told);
    },
  );

  test('shows each part once, in every way of printing it', () => {
    const error = new KernelError('not_found', { message: 'No box x.', details: { box_id: 'x' } });
    expect(Object.keys(error).sort()).toEqual(['code', 'details', 'name']);
    expect(inspect(error)).not.toMatch(/problem|next:/);
    expect({ ...error }).toEqual({ code: 'not_found', details: { box_id: 'x' }, name: 'KernelError' });
  });

  test('without details sends no details on the wire', () => {
    expect(new KernelError('conflict').toJSON()).toEqual({
      code: 'conflict',
      message: expect.stringContaining(ERROR_CATALOGUE.conflict.message),
    });
  });
});

describe('any thrown value', () => {
  const unprintable = {
    toString() {
      throw new Error('no');
    },
  };

  test.each([
    ['an error', new Error('boom'), 'boom'],
    ['a string', 'boom', 'boom'],
    ['undefined', undefined, 'undefined'],
    ['a symbol', Symbol('s'), 'Symbol(s)'],
    ['an object without prototype', Object.create(null), '[unreadable]'],
    ['an object that throws when printed', unprintable, '[unreadable]'],
    [
      'an error that repeats its input',
      new Error(`no such: ${'x'.repeat(3_000_000)}`),
      `no such: ${'x'.repeat(200)}…`,
    ],
    [
      'an error whose message is not a string',
      Object.assign(new Error('x'), { message: unprintable }),
      '[unreadable]',
    ],
  ])('becomes a valid error body: %s', (_name, thrown, message) => {
    expect(toErrorBody(thrown, 'tool_failed')).toEqual({ code: 'tool_failed', message });
  });

  test('keeps its code when it has a code', () => {
    expect(toErrorBody(new KernelError('conflict'), 'tool_failed').code).toBe('conflict');
    expect(toErrorBody(new Error('x')).code).toBe('internal_error');
  });
});

describe('an error', () => {
  const long = 'k'.repeat(1_000_000);

  test.each<[string, () => unknown]>([
    ['an unknown key', () => parseCardInput({ [long]: 1 }, 'card')],
    [
      'many unknown keys',
      () =>
        parseCardInput(
          Object.fromEntries(
            long
              .slice(0, 100_000)
              .split('')
              .map((k, i) => [k + i, 1]),
          ),
          'card',
        ),
    ],
    ['a key with many words', () => parseCardInput({ [`${'k '.repeat(1_000)}.`]: 1 }, 'card')],
    [
      'a path with many words',
      () => parseJsonValue({ [`${'k '.repeat(1_000)}.`]: { a: Number.NaN } }, 'input'),
    ],
    [
      'fields that were not asked for',
      () =>
        checkResult(Object.fromEntries(Array.from({ length: 10_000 }, (_, i) => [`k k k ${i}`, 1])), [
          { name: 'a', required: false },
        ]),
    ],
    ['a path', () => parseJsonValue({ [long]: { [long]: Number.NaN } }, 'input')],
    ['an id', () => parseId(long, 'turn')],
    ['a command', () => readTapeCommand(`,${long} ${long}`)],
    ['words', () => readTapeCommand(`,${'no such '.repeat(100_000)}`)],
  ])('repeats at most 200 characters of an input: %s', (_what, run) => {
    try {
      run();
    } catch (error) {
      expect(error).toBeInstanceOf(KernelError);
      expect((error as KernelError).message.length).toBeLessThan(12_000);
      expect((error as KernelError).message).not.toMatch(/k{201}/);
      expect((error as KernelError).message).not.toMatch(/(k ){101}/);
      expect(JSON.stringify(error).length).toBeLessThan(40_000);
      return;
    }
    expect.unreachable('it was not refused');
  });

  test.each<[string, () => unknown]>([
    [
      'unknown keys',
      () =>
        parseCardInput(
          {
            type: 'a',
            content: { kind: 'text', text: 'b' },
            ...Object.fromEntries(Array.from({ length: 1_000 }, (_, i) => [`k${i}`, 1])),
          },
          'card',
        ),
    ],
    [
      'fields that were not asked for',
      () =>
        checkResult(Object.fromEntries(Array.from({ length: 1_000 }, (_, i) => [`k${i}`, 1])), [
          { name: 'a', required: false },
        ]),
    ],
  ])('lists some of many values and counts the others: %s', (_what, run) => {
    expect(run).toThrow(/k0\b.*and \d+ more/);
    expect(run).not.toThrow(/k200\b/);
  });

  test('has details of limited size, and reports what it left out', () => {
    const ids = (count: number) => Array.from({ length: count }, (_, i) => `${i}`.padStart(36, '0'));
    const made = (details: Record<string, unknown>) => new KernelError('bad_request', { details }).details;
    expect(made({ turn_ids: ids(400), turn_id: 'a' })).toEqual({ turn_ids: ids(400), turn_id: 'a' });
    const { turn_ids: kept, ...others } = made({ turn_ids: ids(100_000), turn_id: 'a', count: 7 });
    const { length } = kept as string[];
    expect(kept).toEqual(ids(length));
    expect(length).toBeGreaterThan(400);
    expect(others).toEqual({ turn_id: 'a', count: 7, more_turn_ids: 100_000 - length });
    const deep = { text: 'a b '.repeat(3_000), list: [{ list: ids(5_000), text: 'a b '.repeat(3_000) }] };
    for (const details of [
      { numbers: Array.from({ length: 100_000 }, (_, i) => i) },
      { members: Object.fromEntries(ids(100_000).map((id) => [id, 1])) },
      Object.fromEntries(ids(100_000).map((id) => [id, [id]])),
      { list: ids(1_000).map(() => deep) },
    ])
      expect(JSON.stringify(made(details)).length).toBeLessThan(40_000);
  });

  test('keeps the kernel’s own words in full when it cuts a long input', () => {
    const message = `profile_name: '${'a b '.repeat(1_000)}' is not known. ${'Say more. '.repeat(100)}`;
    const error = new KernelError('bad_request', {
      message,
      next: 'Next.',
      details: { text: `'${long.slice(0, 1_000)}'`, n: 1 },
    });
    expect(error.message).toBe(
      `profile_name: '${'a b '.repeat(50)}…' is not known. ${'Say more. '.repeat(100)} Next.`,
    );
    expect(error.details).toEqual({ text: `'${'k'.repeat(200)}…'`, n: 1 });
  });
});

test('an error that has no field keeps all its words when a field is added', () => {
  const error = new KernelError('not_found', { message: "No profile 'undefined: x'." });
  expect(error.atField('arguments.a').message).toContain("arguments.a: No profile 'undefined: x'.");
});
