import { expect, it } from 'vitest';
import { addCounts, findFailures, formatCounts, formatFailures, readCounts } from './test-counts.mjs';

it('the counts of a run are read from its last line, as they were written', () => {
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

it('a run that does not report success has failed', () => {
  const failed = { passed: 0, failed: 1, skipped: 0 };
  expect(readCounts('', 0)).toEqual(failed);
  expect(readCounts('5 passed, 0 failed\nSegmentation fault', null)).toEqual(failed);
  expect(readCounts('5 passed, 0 failed', 1)).toEqual({ passed: 5, failed: 1, skipped: 0 });
  expect(readCounts('5 passed, 2 failed', null)).toEqual({ passed: 5, failed: 2, skipped: 0 });
});

it('the counts of two runs are summed', () => {
  expect(
    addCounts([
      { passed: 5, failed: 0, skipped: 1 },
      { passed: 4, failed: 1, skipped: 0 },
    ]),
  ).toEqual({ passed: 9, failed: 1, skipped: 1 });
});

it('each failed test has a line with its file and its error, and so has a file without tests', () => {
  const lines = formatFailures(
    [
      {
        name: '/project/a.test.ts',
        status: 'failed',
        assertionResults: [
          { status: 'passed', fullName: 'is well' },
          {
            status: 'failed',
            fullName: 'adds',
            failureMessages: ['Error: 2 is not 3\nbut 1\n  at a.test.ts:1'],
          },
        ],
      },
      { name: '/project/b.test.ts', status: 'failed', assertionResults: [], message: 'SyntaxError: x' },
      { name: '/project/c.test.ts', status: 'passed', assertionResults: [] },
    ],
    '/project',
  );
  expect(lines).toEqual([
    'failed: a.test.ts > adds: Error: 2 is not 3 but 1',
    'failed: b.test.ts: SyntaxError: x',
  ]);
  expect(findFailures(`ran\n${lines.join('\n')}\n1 passed, 2 failed\n`)).toEqual(lines);
});
