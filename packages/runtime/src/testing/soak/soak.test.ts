import { queueBackends } from '@boxcar/testkit';
import { expect, test } from 'vitest';
import { testBackend } from '../queue-backend.js';
import { soak } from './soak.js';

test('after a few seconds of load and random faults every accepted turn ends, and all promises hold', async () => {
  await using backend = await testBackend(queueBackends()[0] ?? 'postgres');
  const report = await soak(
    {
      databaseUrl: backend.database.url,
      redis: backend.redis,
      restartPostgres: undefined,
      close: () => Promise.resolve(),
    },
    { seconds: 5, seed: 3, untilErased: true },
  );
  expect(report.promises.filter(({ broken }) => broken.length > 0)).toEqual([]);
  expect(report.ok).toBe(true);
  expect(Object.values(report.struck).length).toBeGreaterThan(0);
  expect(report.accepted).toBeGreaterThan(0);
  expect(report.ended.success).toBeGreaterThan(0);
  expect(report.erased).toBeGreaterThan(0);
  expect(report.checked).toBeGreaterThan(0);
});
