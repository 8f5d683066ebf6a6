import { createWorker } from '@boxcar/runtime';
import type { Boxcar } from '../boxcar/system.js';
import { openLocalTurns } from '../least/local.js';
import { sampleIdle } from '../measure.js';
import type { QueueName } from '../options.js';
import { quantile } from '../report.js';
import type { Bench, Figures } from '../suite.js';
import { interleave, settle } from './pair.js';

const SAMPLES = 300;
const WARM_UP = 30;

/**
 * One durable turn at a time on an idle system, from submit to answer: between two processes, and with a worker in the caller's process.
 */
export async function benchIdle(bench: Bench, queue: QueueName): Promise<Figures> {
  const { servers, options, say } = bench;
  const samples = options.samples ?? SAMPLES;
  const pair = await bench.openPair();
  for (const system of [pair.floor, pair.boxcar]) await sampleIdle(system, Math.min(WARM_UP, samples));
  await settle(servers.databaseUrl);
  const perRound = Math.ceil(samples / options.rounds);
  const times = await interleave(pair, options.rounds, (system) => sampleIdle(system, perRound));
  const [boxcar, floor] = [times.boxcar.flat(), times.floor.flat()];
  const own = await sampleInProcess(pair.boxcar, samples);
  const local = await sampleLocal(servers.databaseUrl, samples);
  say(`idle ${queue}: ${boxcar.length} samples of each`);
  return {
    p50: { value: quantile(boxcar, 0.5), floor: quantile(floor, 0.5) },
    p99: { value: quantile(boxcar, 0.99), floor: quantile(floor, 0.99) },
    'in process p50': {
      value: quantile(own, 0.5),
      floor: quantile(floor, 0.5),
      least: quantile(local, 0.5),
    },
  };
}

async function sampleInProcess(boxcar: Boxcar, samples: number): Promise<readonly number[]> {
  await using _worker = await createWorker(boxcar.runtime);
  await sampleIdle(boxcar, Math.min(WARM_UP, samples));
  return await sampleIdle(boxcar, samples);
}

/** The same three commits by one process, without the queue. */
async function sampleLocal(databaseUrl: string, samples: number): Promise<readonly number[]> {
  await using local = openLocalTurns(databaseUrl);
  const system = { name: 'least', answer: () => local.answer() } as const;
  await sampleIdle(system, Math.min(WARM_UP, samples));
  return await sampleIdle(system, samples);
}
