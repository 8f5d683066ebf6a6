import { loadFor } from '../measure.js';
import type { Options, QueueName } from '../options.js';
import { profileLoad } from '../profile/profile-load.js';
import { type Case, judge, median, skip } from '../report.js';
import type { Servers } from '../servers.js';
import { interleave, openPair, settle } from './pair.js';

/** docs: design §12. The Postgres queue has a guide of its own and no share of the floor to reach. */
const GOALS: Readonly<Record<QueueName, { readonly goal: number; readonly minRatio?: number }>> = {
  redis: { goal: 900, minRatio: 0.7 },
  postgres: { goal: 400 },
};
const UNIT = 'turns/s';

/** submit → answer, one step, one worker process, twice as many turns under way as the worker runs at once. */
export async function benchTurns(
  servers: Servers,
  options: Options,
  say: (line: string) => void,
): Promise<Case[]> {
  const cases: Case[] = [];
  for (const queue of options.queues) {
    const { goal } = GOALS[queue];
    if (queue === 'redis' && 'missing' in servers.redis) {
      cases.push(skip('turns', queue, { unit: UNIT, goal, why: servers.redis.missing }));
      continue;
    }
    await using pair = await openPair(servers, queue, options);
    const load = { clients: options.concurrency * 2, seconds: options.seconds };
    for (const system of [pair.floor, pair.boxcar]) await loadFor(system, load);
    await settle(servers);
    const rates = await interleave(pair, options.rounds, async (system) => {
      const { rate } = await loadFor(system, load);
      say(`turns ${queue}: ${system.name} ${rate.toFixed(0)}/s`);
      return rate;
    });
    const figure = { suite: 'turns', case: queue, unit: UNIT, ...GOALS[queue] } as const;
    cases.push(judge({ ...figure, value: median(rates.boxcar), floor: median(rates.floor) }));
    if (options.profile === undefined) continue;
    for (const system of [pair.floor, pair.boxcar]) {
      const name = `${system.name}-${queue}`;
      say(`profiled: ${await profileLoad(servers, system, { ...load, folder: options.profile, name })}`);
    }
  }
  return cases;
}
