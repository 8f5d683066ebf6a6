import { loadFor } from '../measure.js';
import type { QueueName } from '../options.js';
import { profileLoad } from '../profile/profile-load.js';
import { median } from '../report.js';
import type { Bench, Figures } from '../suite.js';
import { concurrencyOf, interleave, settle } from './pair.js';

const SECONDS = 4;

/** submit → answer, one step, one worker process, twice as many turns under way as the worker runs at once. */
export async function benchTurns(bench: Bench, queue: QueueName): Promise<Figures> {
  const { servers, options, say } = bench;
  const pair = await bench.openPair();
  const load = { clients: concurrencyOf(options) * 2, seconds: options.seconds ?? SECONDS };
  for (const system of [pair.floor, pair.boxcar]) await loadFor(system, load);
  await settle(servers.databaseUrl);
  const rates = await interleave(pair, options.rounds, async (system) => {
    const { rate } = await loadFor(system, load);
    say(`turns ${queue}: ${system.name} ${rate.toFixed(0)}/s`);
    return rate;
  });
  if (options.profile !== undefined) {
    for (const system of [pair.floor, pair.boxcar]) {
      const name = `${system.name}-${queue}`;
      say(`profiled: ${await profileLoad(servers, system, { ...load, folder: options.profile, name })}`);
    }
  }
  return { '': { value: median(rates.boxcar), floor: median(rates.floor) } };
}
