import { expect, test } from 'vitest';
import { createProgress } from './progress.js';

function capture(isTTY: boolean) {
  const written: string[] = [];
  return { output: { isTTY, columns: 20, write: (text: string) => written.push(text) }, written };
}

test('on a terminal progress is one line that fits, and is erased at the end', () => {
  const { output, written } = capture(true);
  {
    using progress = createProgress({ isJson: false, output });
    progress.show('1 of 2');
    progress.show('2 of 2, which is a long line');
  }
  expect(written).toEqual(['\r\u001b[K1 of 2', '\r\u001b[K2 of 2, which is a ', '\r\u001b[K']);
});

test('without a terminal progress is a line every five seconds', () => {
  const { output, written } = capture(false);
  let now = 0;
  {
    using progress = createProgress({ isJson: false, output, now: () => now });
    progress.show('1 of 3');
    now = 6_000;
    progress.show('2 of 3');
    now = 7_000;
    progress.show('3 of 3');
  }
  expect(written).toEqual(['2 of 3\n']);
});

test('with JSON no progress is printed', () => {
  for (const isTTY of [true, false]) {
    const { output, written } = capture(isTTY);
    let now = 0;
    {
      using progress = createProgress({ isJson: true, output, now: () => now });
      now = 60_000;
      progress.show('1 of 2');
    }
    expect(written).toEqual([]);
  }
});
