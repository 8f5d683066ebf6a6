import { expect, test } from 'vitest';
import { progressOf } from './progress.js';

test('progress is reported at each ten thousand lines, however the lines arrive', () => {
  const said: string[] = [];
  const progress = progressOf((line) => said.push(line));
  for (const lines of [500, 9_999, 10_000, 10_001, 19_999, 35_200, 39_000, 40_000]) progress(lines);
  expect(said).toEqual(['10,000 lines', '30,000 lines', '40,000 lines']);
});
