/** Shared by `pack` and `view`: boxes with many cards, in this process, without a queue. */
import { createModelRouter } from '@boxcar/llm';
import { createLog, InProcessDoorbell, newId, Runtime } from '@boxcar/runtime';
import { createPool } from '@boxcar/store';
import type pg from 'pg';
import { PROFILE } from '../boxcar/system.js';
import { Cleanup } from '../cleanup.js';
import { insertBox } from '../floor/rows.js';
import { sampleTimes } from '../measure.js';
import { median } from '../report.js';
import { openDatabase, type Servers } from '../servers.js';
import type { Bench, Figures } from '../suite.js';
import { alternate, settle } from './pair.js';

/** The number of cards of a context: many, and close to the maximum of a box. */
const SIZES = [1_000, 9_000] as const;
const SAMPLES = 40;
const WARM_UP = 5;

/** One run of each side. @throws when the result is wrong. */
type Sides = Readonly<Record<'boxcar' | 'floor', () => Promise<void>>>;

/** Measures both sides at each size, in a separate database. */
export async function benchSizes(
  { servers, options, say }: Bench,
  suite: 'pack' | 'view',
  prepare: (world: World, boxes: Boxes) => Promise<Sides>,
): Promise<Figures> {
  const samples = options.samples ?? SAMPLES;
  const perRound = Math.ceil(samples / options.rounds);
  await using world = await openWorld(servers, suite);
  const figures: Record<string, Figures[string]> = {};
  for (const size of SIZES) {
    const sides = await prepare(world, await makeBoxes(world, size));
    for (const side of [sides.floor, sides.boxcar]) await sampleTimes(side, Math.min(WARM_UP, samples));
    await settle(world.databaseUrl);
    const times = await alternate(options.rounds, {
      floor: () => sampleTimes(sides.floor, perRound),
      boxcar: () => sampleTimes(sides.boxcar, perRound),
    });
    figures[`${size} cards`] = { value: median(times.boxcar.flat()), floor: median(times.floor.flat()) };
    say(`${suite} ${size} cards: ${times.boxcar.flat().length} samples of each`);
  }
  return figures;
}

export interface World extends AsyncDisposable {
  readonly databaseUrl: string;
  readonly pool: pg.Pool;
  readonly runtime: Runtime;
}

/** Three boxes with different cards, except that two tenths of all cards are in two of the boxes. */
export interface Boxes {
  readonly ids: readonly string[];
  /** The same cards in boxes of the bare loop, in this order. */
  readonly floorIds: readonly string[];
  /** Every card once, in the order of the boxes. */
  readonly cardIds: readonly string[];
}

export async function openWorld(servers: Servers, name: string): Promise<World> {
  const cleanup = new Cleanup();
  try {
    const database = await openDatabase(servers, name);
    cleanup.defer(() => database[Symbol.asyncDispose]());
    const pool = createPool({ connectionString: database.url, max: 6 });
    cleanup.defer(() => pool.end());
    const runtime = new Runtime({
      pool,
      directUrl: database.url,
      doorbell: new InProcessDoorbell(),
      model: createModelRouter(),
      log: createLog('warn'),
    });
    cleanup.defer(() => runtime.close());
    await runtime.applyProfile(PROFILE);
    return {
      databaseUrl: database.url,
      pool,
      runtime,
      [Symbol.asyncDispose]: () => cleanup[Symbol.asyncDispose](),
    };
  } catch (error) {
    await cleanup[Symbol.asyncDispose]();
    throw error;
  }
}

/** About 350 bytes each, the size of a paragraph. */
export const textOf = (index: number): string =>
  `Wagon ${index}. ${'It is painted green, carries gravel, and was seen last at the junction. '.repeat(5)}`.slice(
    0,
    350,
  );

async function makeBoxes({ runtime, pool }: World, count: number): Promise<Boxes> {
  const maker = { projectId: 'default', sourceAgentId: 'operator' } as const;
  const cardIds = await runtime.packer.createCards({
    projectId: maker.projectId,
    authorId: maker.sourceAgentId,
    cards: Array.from({ length: count }, (_, index) => ({
      type: 'task.context',
      content: { kind: 'text', text: textOf(index) },
    })),
  });
  const parts = [
    cardIds.slice(0, count * 0.4),
    cardIds.slice(count * 0.3, count * 0.7),
    cardIds.slice(count * 0.6),
  ];
  const ids: string[] = [];
  const floorIds: string[] = [];
  for (const part of parts) {
    ids.push(await runtime.packer.createBox({ ...maker, cardIds: part }));
    const floorId = newId();
    await insertBox(pool, floorId, part);
    floorIds.push(floorId);
  }
  return { ids, floorIds, cardIds };
}
