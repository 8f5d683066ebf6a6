import { type Boxcar, PROFILE } from '../boxcar/system.js';
import { openLocalTurns } from '../least/local.js';
import { sampleTimes, timed } from '../measure.js';
import type { QueueName } from '../options.js';
import { median } from '../report.js';
import type { Bench, Figures } from '../suite.js';
import { ANSWER, type System } from '../system.js';
import { alternate, settle } from './pair.js';

const SAMPLES = 40;
const WARM_UP = 5;
/** The number of hops from the first agent to the last. */
const HOPS = 10;

const nameOf = (hops: number): string => `chain-${hops}`;

/** Profiles of agents that each ask the next agent and pass its answer on; the last agent knows the answer. */
async function applyChain({ runtime }: Boxcar): Promise<void> {
  await runtime.applyProfile({ ...PROFILE, name: nameOf(0) });
  for (let hops = 1; hops <= HOPS; hops += 1) {
    const next = nameOf(hops - 1);
    await runtime.applyProfile({
      ...PROFILE,
      name: nameOf(hops),
      tools: ['launch_principal'],
      delegation_policy: { target_profiles: [next] },
      script: [
        {
          calls: [
            {
              tool: 'launch_principal',
              arguments: { profile_name: next, instruction: 'Count the wagons.', wait: true },
            },
          ],
        },
        { say: ANSWER },
      ],
    });
  }
}

/**
 * The cost of each delegated hop: the time of a chain of eleven agents, each waiting for the next, minus the time of a turn without
 * delegation, ÷ 10. The floor is one bare turn per hop, one after the other. The least floor is the same three commits on one connection,
 * without another process or a queue.
 */
export async function benchChain(bench: Bench, queue: QueueName): Promise<Figures> {
  const { servers, options, say } = bench;
  const samples = options.samples ?? SAMPLES;
  const perRound = Math.ceil(samples / options.rounds);
  const { boxcar, floor } = await bench.openPair();
  await applyChain(boxcar);
  const sample = async (count: number): Promise<number[]> => {
    const found: number[] = [];
    for (let at = 0; at < count; at += 1) {
      const alone = await timed(() => boxcar.answerAs(nameOf(0)));
      found.push(((await timed(() => boxcar.answerAs(nameOf(HOPS)))) - alone) / HOPS);
    }
    return found;
  };
  await using local = openLocalTurns(servers.databaseUrl);
  const sampleBare = async (side: Pick<System, 'answer'>, count: number): Promise<number[]> => {
    const found = await sampleTimes(() => inARow(side), count);
    return found.map((ms) => ms / HOPS);
  };
  await sample(Math.min(WARM_UP, samples));
  for (const side of [floor, local]) await sampleBare(side, Math.min(WARM_UP, samples));
  await settle(servers.databaseUrl);
  const times = await alternate(options.rounds, {
    floor: () => sampleBare(floor, perRound),
    least: () => sampleBare(local, perRound),
    boxcar: () => sample(perRound),
  });
  say(`chain ${queue}: ${times.boxcar.flat().length} chains of ${HOPS} hops`);
  const middle = (side: keyof typeof times): number => median(times[side].flat());
  return { hop: { value: middle('boxcar'), floor: middle('floor'), least: middle('least') } };
}

async function inARow(system: Pick<System, 'answer'>): Promise<void> {
  for (let hop = 0; hop < HOPS; hop += 1) await system.answer();
}
