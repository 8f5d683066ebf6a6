import { sampleIdle } from '../measure.js';
import type { Options, QueueName } from '../options.js';
import { type Case, judge, quantile, skip } from '../report.js';
import type { Servers } from '../servers.js';
import { interleave, openPair, settle } from './pair.js';

/** docs: design §12; the Postgres queue has a guide for its median only. */
const GOALS: Readonly<Record<QueueName, { readonly p50: number | null; readonly p99: number | null }>> = {
  redis: { p50: 8, p99: 18 },
  postgres: { p50: 15, p99: null },
};
const QUANTILES = [
  ['p50', 0.5],
  ['p99', 0.99],
] as const;
const WARM_UP = 30;
const UNIT = 'ms';

/** One durable turn at a time on a system at rest: submit → answer. */
export async function benchIdle(
  servers: Servers,
  options: Options,
  say: (line: string) => void,
): Promise<Case[]> {
  const cases: Case[] = [];
  for (const queue of options.queues) {
    const goals = GOALS[queue];
    if (queue === 'redis' && 'missing' in servers.redis) {
      const why = servers.redis.missing;
      for (const [name] of QUANTILES)
        cases.push(skip('idle', `${queue} ${name}`, { unit: UNIT, goal: goals[name], why }));
      continue;
    }
    await using pair = await openPair(servers, queue, options);
    const warmUp = Math.min(WARM_UP, options.samples);
    for (const system of [pair.floor, pair.boxcar]) await sampleIdle(system, warmUp);
    await settle(servers);
    const perRound = Math.ceil(options.samples / options.rounds);
    const times = await interleave(pair, options.rounds, (system) => sampleIdle(system, perRound));
    const [boxcar, floor] = [times.boxcar.flat(), times.floor.flat()];
    say(`idle ${queue}: ${boxcar.length} samples of each`);
    for (const [name, of] of QUANTILES) {
      const figure = { suite: 'idle', case: `${queue} ${name}`, unit: UNIT, goal: goals[name] } as const;
      cases.push(judge({ ...figure, value: quantile(boxcar, of), floor: quantile(floor, of) }));
    }
  }
  return cases;
}
