import { afterAll, beforeAll, expect, test } from 'vitest';
import { World } from '../testing/world.js';
import { purgeRuns, purgeTapes } from './purge.js';

let world: World;

beforeAll(async () => {
  world = await World.open();
});

afterAll(() => world[Symbol.asyncDispose]());

const purges = { purgeRuns, purgeTapes };

test.each(Object.entries(purges))('%s accepts every moment that Postgres can store', async (_name, purge) => {
  for (const at of [-2.1e14, -1e14, -62_198_755_200_000, 0, 253_402_300_800_000, 8.64e15])
    expect(await purge(world.pool, { before: new Date(at), isDryRun: true })).toMatchObject({
      kept: [],
      isStopped: false,
    });
});

test.each(Object.entries(purges))('%s refuses a moment that Postgres cannot store', async (_name, purge) => {
  for (const at of [Number.NaN, -210_866_803_200_001, -8.64e15])
    await expect(purge(world.pool, { before: new Date(at) })).rejects.toMatchObject({
      code: 'bad_request',
      details: { field: 'before' },
    });
});
