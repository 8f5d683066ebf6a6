import { expect, test } from 'vitest';
import { OnceAtATime } from './once-at-a-time.js';

test('work that is requested while it runs runs once more, however often it was requested; other keys run in parallel', async () => {
  const open: { readonly key: string; readonly end: () => void }[] = [];
  const once = new OnceAtATime<string>(
    (key) => new Promise<void>((resolve) => open.push({ key, end: resolve })),
  );
  const first = once.ask('a');
  await Promise.all([once.ask('a'), once.ask('a')]);
  const other = once.ask('b');
  expect(open.map(({ key }) => key)).toEqual(['a', 'b']);
  open[0]?.end();
  open[1]?.end();
  await other;
  expect(open.map(({ key }) => key)).toEqual(['a', 'b', 'a']);
  open[2]?.end();
  await first;
  void once.ask('a');
  expect(open).toHaveLength(4);
});

test('work that fails can be requested again', async () => {
  let runs = 0;
  const once = new OnceAtATime<string>(async () => {
    runs += 1;
    if (runs === 1) throw new Error('away');
  });
  await expect(once.ask('a')).rejects.toThrow('away');
  await once.ask('a');
  expect(runs).toBe(2);
});
