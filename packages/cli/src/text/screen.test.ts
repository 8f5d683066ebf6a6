import { expect, test } from 'vitest';
import { Screen } from './screen.js';

test.each([
  [{ columns: 0, rows: 0 }, [80, 24]],
  [{}, [80, 24]],
  [{ columns: 100, rows: 50 }, [100, 50]],
])('a terminal that reports %j has a size', (reported, expected) => {
  const screen = new Screen(reported as NodeJS.WriteStream);
  expect([screen.columns, screen.rows]).toEqual(expected);
});
