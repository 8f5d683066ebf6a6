import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { KernelError } from '../base/errors.js';
import { formatTapeRef, parseTapeRef, type TapeRef } from './ref.js';

function refusalOf(text: string): KernelError {
  try {
    parseTapeRef(text);
  } catch (error) {
    if (error instanceof KernelError) return error;
  }
  throw new Error('not refused');
}

describe('a reference', () => {
  test.each<[string, TapeRef]>([
    [
      'tape://workspace/telegram:123/entry/45',
      { workspace: 'workspace', tape: 'telegram:123', target: { kind: 'entry', position: 45 }, head: null },
    ],
    [
      'tape://w/t/anchor/session/start?head=9',
      { workspace: 'w', tape: 't', target: { kind: 'anchor', name: 'session/start' }, head: 9 },
    ],
    [
      'tape://w/t/anchor/a/entry/1',
      { workspace: 'w', tape: 't', target: { kind: 'anchor', name: 'a/entry/1' }, head: null },
    ],
    [
      'tape://w/a/b/entry/1',
      { workspace: 'w', tape: 'a/b', target: { kind: 'entry', position: 1 }, head: null },
    ],
    [
      'tape://w%2Fx/t%20y/anchor/50%25%3F?head=3',
      { workspace: 'w/x', tape: 't y', target: { kind: 'anchor', name: '50%?' }, head: 3 },
    ],
    [
      'tape://w/t/anchor/a+b#c',
      { workspace: 'w', tape: 't', target: { kind: 'anchor', name: 'a+b#c' }, head: null },
    ],
  ])('%s is read', (text, ref) => {
    expect(parseTapeRef(text)).toEqual(ref);
    expect(parseTapeRef(formatTapeRef(ref))).toEqual(ref);
  });

  test('is written as the original program writes it, with percent-encoded names', () => {
    const target = { kind: 'entry', position: 45 } as const;
    expect(formatTapeRef({ workspace: 'workspace', tape: 'telegram:123', target, head: null })).toBe(
      'tape://workspace/telegram:123/entry/45',
    );
    const anchor = { kind: 'anchor', name: 'session/start é?' } as const;
    expect(formatTapeRef({ workspace: 'a/b', tape: 't', target: anchor, head: 7 })).toBe(
      'tape://a%2Fb/t/anchor/session%2Fstart%20%C3%A9%3F?head=7',
    );
  });

  test('is unchanged after being written and read, with any names', () => {
    const character = fc
      .integer({ min: 1, max: 0x10ffff })
      .map((code) => String.fromCodePoint(code))
      .filter((text) => text.isWellFormed());
    const name = fc.oneof(
      fc.string({ minLength: 1, unit: character }),
      fc.string({
        minLength: 1,
        unit: fc.constantFrom(
          'a',
          '/',
          '%',
          '%2F',
          '%00',
          '?',
          '#',
          ':',
          '.',
          ' ',
          '\n',
          'entry',
          '/anchor/',
          '+',
        ),
      }),
    );
    const position = fc.integer({ min: 1, max: 2 ** 31 - 1 });
    const ref = fc.record({
      workspace: name,
      tape: name,
      target: fc.oneof(
        fc.record({ kind: fc.constant('entry' as const), position: fc.integer({ min: 1, max: 1_000 }) }),
        fc.record({ kind: fc.constant('anchor' as const), name }),
      ),
      head: fc.option(position.map((head) => head + 0).filter((head) => head >= 1_000)),
    });
    fc.assert(
      fc.property(ref, (value) => {
        expect(parseTapeRef(formatTapeRef(value))).toEqual(value);
      }),
      { numRuns: 300 },
    );
  });
});

test('a long and broken reference is refused in a few words that can be stored', () => {
  const long = 'x'.repeat(1_000_000);
  for (const text of [
    `tape://w/t/entry/9${'9'.repeat(1_000_000)}`,
    `tape://w/t/anchor/%${long}`,
    `tape://w/t/anchor/a?${long}`,
    `tape://w/t/anchor/${'x'.repeat(481)}😀\ud800`,
    `tape://${'/entry'.repeat(100_000)}`,
  ]) {
    const error = refusalOf(text);
    expect(error.message.length).toBeLessThan(300);
    expect(JSON.stringify(error.details)).not.toMatch(/\\ud/);
  }
});

test.each([
  ['', 'is not a tape reference'],
  ['http://w/t/entry/1', 'is not a tape reference'],
  ['tape://w/entry/1', 'is not a tape reference'],
  ['tape:///t/entry/1', 'is not a tape reference'],
  ['tape://w/t/entry/', 'is not a tape reference'],
  ['tape://w/t/message/1', 'is not a tape reference'],
  ['tape://w/t/entry/0', "entry '0' is not a position"],
  ['tape://w/t/entry/-1', 'is not a position'],
  ['tape://w/t/entry/01', 'is not a position'],
  ['tape://w/t/entry/1e3', 'is not a position'],
  ['tape://w/t/entry/2147483648', 'is not a position'],
  ['tape://w/t/anchor/a?head=0', "head '0' is not a position"],
  ['tape://w/t/anchor/a?head=', 'is not a position'],
  ['tape://w/t/anchor/a?tail=1', "'?tail=1' is not of the form"],
  ['tape://w/t/anchor/a?', 'is not of the form'],
  ['tape://w/t/anchor/a?head=1?head=2', 'is not a position'],
  ['tape://w/t/entry/5?head=4', 'entry 5 is after head 4'],
  ['tape://w/t/anchor/%zz', 'is not percent-encoded'],
  ['tape://w/%ff/anchor/a', 'is not percent-encoded'],
  ['tape://w/t/anchor/a%00', 'NUL'],
])('%j is refused: %s', (text, why) => {
  expect(() => parseTapeRef(text, 'arguments.tape_ref')).toThrow(why);
  expect(() => parseTapeRef(text, 'arguments.tape_ref')).toThrow(
    expect.objectContaining({
      code: 'bad_request',
      message: expect.stringContaining('arguments.tape_ref: '),
    }),
  );
});
