import { expect, test } from 'vitest';
import { run } from './process.js';

test('a program that does not end is cut off, and its output reports this', async () => {
  // The test uses a shell, because a shell starts quickly even on a busy machine. Its child keeps the output open.
  const { code, output } = await run('/bin/sh', ['-c', 'echo begun; sleep 12 & wait'], { limitMs: 3_000 });
  expect(code).toBe(null);
  expect(output).toMatch(/^begun\n+sh did not end within 3 s$/);
});

test('the end of a program is noticed before its time limit', async () => {
  expect(await run(process.execPath, ['-e', 'process.exit(3)'], { limitMs: 60_000 })).toEqual({
    code: 3,
    output: '',
  });
});
