import { toLine, toPlain } from '@boxcar/host/base';
import { describe, expect, it } from 'vitest';
import {
  formatDuration,
  formatFields,
  formatShortCount,
  formatShortDuration,
  formatTable,
  wrap,
} from './text.js';

describe('text for terminals', () => {
  it('contains no control characters that models wrote', () => {
    expect(toPlain('a\u001b[2Jb\u0007\u009b31m\u202ec\nd\te')).toBe('a [2Jb  31m c\nd\te');
    expect(toLine(' a\r\n\tb  c ')).toBe('a b c');
    expect(formatTable([{ title: 'x' }, { title: 'y' }], [['\u001b[1m', 'two\nlines']])).toBe(
      'x    y\n[1m  two lines',
    );
  });

  it('has tables with aligned columns that never exceed the width', () => {
    expect(
      formatTable(
        [{ title: 'n', align: 'right' }, { title: 'name', max: 4 }, { title: 'text' }],
        [
          ['1', 'long name', 'abc'],
          ['10', 'b', 'x'.repeat(100)],
        ],
        { indent: 2, width: 20 },
      ),
    ).toBe('   n  name  text\n   1  lon…  abc\n  10  b     xxxxxxx…');
  });

  it('wraps fields under their value', () => {
    const text = formatFields([
      ['a', 'short'],
      ['long', `${'word '.repeat(20)}${'x'.repeat(90)}`],
    ]);
    const lines = text.split('\n');
    expect(lines[0]).toBe('a     short');
    expect(lines[1]?.startsWith('long  word word')).toBe(true);
    for (const line of lines) expect(line.length).toBeLessThanOrEqual(80);
    expect(text.replace(/\s/g, '')).toContain('x'.repeat(90));
  });

  it('loses nothing by wrapping', () => {
    expect(wrap('', 5)).toEqual(['']);
    expect(wrap('aa bb cc', 5)).toEqual(['aa bb', 'cc']);
    expect(wrap('aaaaaaaaaaa b', 5)).toEqual(['aaaaa', 'aaaaa', 'a b']);
  });

  it('shows durations in a suitable unit', () => {
    expect([12, 1_500, 61_000, 3_660_000].map(formatDuration)).toEqual([
      '12 ms',
      '1.5 s',
      '1 min 1 s',
      '1 h 1 min',
    ]);
  });
});

it('shows short numbers in five and six columns', () => {
  expect([0, 999, 1_234, 45_678, 999_499, 999_500, 5_123_000].map(formatShortCount)).toEqual([
    ...['0', '999', '1.2k', '46k', '999k', '1.0M', '5.1M'],
  ]);
  expect([5, 999, 1_234, 99_900, 99_960, 7_200_000, 86_400_000 * 12].map(formatShortDuration)).toEqual([
    ...['5ms', '999ms', '1.2s', '99.9s', '2m', '2h', '12d'],
  ]);
});
