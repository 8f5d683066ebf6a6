import { expect, it } from 'vitest';
import { addCounts, formatCounts, readCounts } from './test-counts.mjs';

it('a run is read from the line it ends with, as it was written', () => {
  for (const counts of [
    { passed: 812, failed: 0, skipped: 0 },
    { passed: 0, failed: 3, skipped: 2 },
  ]) {
    const output = `1 passed, 9 failed\nskipped backend: redis\n${formatCounts(counts)}\n\n`;
    expect(readCounts(output, counts.failed === 0 ? 0 : 1)).toEqual(counts);
  }
  expect(formatCounts({ passed: 812, failed: 0, skipped: 0 })).toBe('812 passed, 0 failed');
  expect(formatCounts({ passed: 1, failed: 0, skipped: 2 })).toBe('1 passed, 0 failed, 2 skipped');
});

it('a run that does not say that it passed has failed', () => {
  const failed = { passed: 0, failed: 1, skipped: 0 };
  expect(readCounts('', 0)).toEqual(failed);
  expect(readCounts('5 passed, 0 failed\nSegmentation fault', null)).toEqual(failed);
  expect(readCounts('5 passed, 0 failed', 1)).toEqual({ passed: 5, failed: 1, skipped: 0 });
  expect(readCounts('5 passed, 2 failed', null)).toEqual({ passed: 5, failed: 2, skipped: 0 });
});

it('two runs are summed', () => {
  expect(
    addCounts([
      { passed: 5, failed: 0, skipped: 1 },
      { passed: 4, failed: 1, skipped: 0 },
    ]),
  ).toEqual({ passed: 9, failed: 1, skipped: 1 });
});
