import { expect, test } from 'vitest';
import { run } from './process.js';

test('a program that does not end is cut off, and its output reports this', async () => {
  // A child of the program keeps the output open.
  const script = "console.log('begun'); require('child_process').spawn('sleep', ['8'], { stdio: 'inherit' })";
  const { code, output } = await run(process.execPath, ['-e', script], { limitMs: 1_000 });
  expect(code).toBe(null);
  expect(output).toMatch(/^begun\n+node did not end within 1 s$/);
});

test('the end of a program is noticed before its time limit', async () => {
  expect(await run(process.execPath, ['-e', 'process.exit(3)'], { limitMs: 60_000 })).toEqual({
    code: 3,
    output: '',
  });
});
