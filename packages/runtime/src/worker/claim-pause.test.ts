import { createPool } from '@boxcar/store';
import { testDatabase } from '@boxcar/testkit';
import { afterEach, beforeEach, expect, test, vi } from 'vitest';
import { ClaimPause } from './claim-pause.js';

beforeEach(() => void vi.useFakeTimers({ toFake: ['setInterval', 'clearInterval', 'performance'] }));
afterEach(() => void vi.useRealTimers());

test('each pause is twice as long as the one before it, up to four seconds, until a claim is answered', async () => {
  await using database = await testDatabase();
  const pool = createPool({ connectionString: database.url });
  let ended = 0;
  const pause = new ClaimPause(pool, () => {
    ended += 1;
  });
  const lengthOf = async (): Promise<number> => {
    pause.start();
    // A pause that is on does not begin again.
    pause.start();
    let ms = 0;
    while (pause.isOn) {
      vi.advanceTimersByTime(50);
      ms += 50;
      // An answer, whoever asked.
      await pool.query('select 1');
    }
    return ms;
  };
  const lengths: number[] = [];
  for (let round = 0; round < 7; round += 1) lengths.push(await lengthOf());
  expect(lengths).toEqual([100, 200, 400, 800, 1_600, 3_200, 4_000]);
  expect(ended).toBe(7);
  pause.claimed();
  expect(await lengthOf()).toBe(100);
  pause.start();
  pause.stop();
  expect([pause.isOn, ended]).toEqual([false, 8]);
  await pool.end();
});
