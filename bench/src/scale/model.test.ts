import { describe, expect, it } from 'vitest';
import { cpuAt, fitModel, growthOf, predict, type ScalePoint, sizeFor, totalOf } from './model.js';

const cpuMs = { worker: 1, caller: 0.5, postgres: 1.2, redis: 0.3 };
const one: ScalePoint = { workers: 1, callers: 1, rate: 600, cpuMs, walBytes: 5_000, commits: 0.5 };
/** Each turn costs a tenth more. */
const two: ScalePoint = {
  ...one,
  workers: 2,
  rate: 600,
  cpuMs: { worker: 1.1, caller: 0.55, postgres: 1.32, redis: 0.33 },
};
const model = fitModel(one, two, 2);

describe('the model of a machine', () => {
  it('returns the points from which it was made', () => {
    expect(model.busy).toBeCloseTo(0.99);
    expect(predict(model, { cores: 2, workers: 2, callers: 1 })).toMatchObject({ limit: 'all cores' });
    expect(predict(model, { cores: 2, workers: 2, callers: 1 }).rate).toBeCloseTo(two.rate);
    expect(cpuAt(model, 1)).toEqual(cpuMs);
  });

  it('lets the CPU per turn grow by the same factor with each doubling, and never predicts a decrease', () => {
    expect(totalOf(cpuAt(model, 4))).toBeCloseTo(3 * 1.1 ** 2);
    expect(totalOf(cpuAt(model, 8))).toBeCloseTo(3 * 1.1 ** 3);
    const falling = fitModel(two, { ...one, workers: 2 }, 2);
    expect(growthOf(falling)).toEqual({ worker: 1, caller: 1, postgres: 1, redis: 1 });
    expect(cpuAt(falling, 4)).toEqual(cpuMs);
  });

  it('gives four workers on two cores no more turns than two workers: the cores are shared', () => {
    const { rate, limit } = predict(model, { cores: 2, workers: 4, callers: 1 });
    expect(limit).toBe('all cores');
    expect(rate).toBeCloseTo(two.rate / 1.1);
  });

  it.each([
    [{ cores: 64, workers: 1, callers: 8 }, 'worker processes', 1_000],
    [{ cores: 64, workers: 4, callers: 1 }, 'caller processes', 1_000 / (0.55 * 1.1)],
    [{ cores: 64, workers: 16, callers: 64 }, 'the Redis thread', 1_000 / (0.33 * 1.1 ** 3)],
  ] as const)('names the first limit of %o: %s', (machine, limit, rate) => {
    const found = predict(model, machine);
    expect(found.limit).toBe(limit);
    expect(found.rate).toBeCloseTo(rate, -1);
  });

  it('sizes for a rate, with and without further growth', () => {
    const { least, most } = sizeFor(model, 10_000);
    expect(least).toMatchObject({
      workers: 16,
      callers: 8,
      postgresCores: 19,
      redisServers: 5,
      walMBPerSecond: 50,
    });
    expect(least.commitsPerSecond).toBe(5_000);
    expect(most.workers).toBeGreaterThan(least.workers);
    expect(most.workers).toBeLessThan(least.workers * 2);
    expect(sizeFor(fitModel(one, { ...one, workers: 2 }, 2), 1_000).most).toEqual(
      sizeFor(fitModel(one, { ...one, workers: 2 }, 2), 1_000).least,
    );
  });
});
