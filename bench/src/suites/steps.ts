import { newId } from '@boxcar/runtime';
import pg from 'pg';
import { CLOCK, CLOCK_RESULT } from '../boxcar/model.js';
import { type Boxcar, PROFILE, submitTurn } from '../boxcar/system.js';
import { claimTurns, commitStep, insertTurn } from '../floor/rows.js';
import { now, sampleTimes, timed } from '../measure.js';
import type { QueueName } from '../options.js';
import { type Figure, median } from '../report.js';
import type { Bench, Figures } from '../suite.js';
import { ANSWER, PROMPT } from '../system.js';
import { alternate, settle } from './pair.js';

const SAMPLES = 60;
const WARM_UP = 20;
/** The number of steps that the long turn has in addition to the short one. */
const EXTRA = 10;

const THOUGHT = 'The train has not passed yet.';
const submit = { calls: [{ tool: 'submit_result', arguments: { result: ANSWER } }] };
// Each asks for a different train: a repeated question would be stopped as a loop.
const call = (n: number) => ({ calls: [{ tool: 'count_wagons', arguments: { train: `IC ${n}` } }] });

/** When the turn must end with a call, a step without calls is followed by another step: it adds the text, then the kernel's reminder. */
const VARIANTS = [
  {
    name: 'without a tool',
    profile: { must_end_with: ['submit_result'] },
    last: submit,
    extra: () => ({ say: THOUGHT }),
    /** The text and the reminder, in one commit. */
    floor: [2],
  },
  {
    name: 'with a tool call',
    profile: { tools: ['count_wagons'] },
    last: { say: ANSWER },
    extra: call,
    /** The call in one commit, and its result in another, which opens the next step. */
    floor: [1, 1],
  },
] as const;

/**
 * The cost of each further step, from pairs of turns with one step and with eleven: the difference ÷ 10, with one turn at a time on an
 * idle system. The floor is the same number of bare commits, from this process.
 */
export async function benchSteps(bench: Bench, queue: QueueName): Promise<Figures> {
  const { servers, options, say } = bench;
  const samples = options.samples ?? SAMPLES;
  const perRound = Math.ceil(samples / options.rounds);
  const { boxcar } = await bench.openPair();
  await using floor = await openHeldTurn(servers.databaseUrl);
  const figures: Record<string, Figures[string]> = {};
  for (const variant of VARIANTS) {
    const slug = variant.name.replaceAll(' ', '-');
    const [short, long] = [`${slug}-1`, `${slug}-${EXTRA + 1}`] as const;
    const base = { ...PROFILE, ...variant.profile };
    await boxcar.runtime.applyProfile({ ...base, name: short, script: [variant.last] });
    await boxcar.runtime.applyProfile({
      ...base,
      name: long,
      script: [...Array.from({ length: EXTRA }, (_, n) => variant.extra(n)), variant.last],
    });
    const sample = async (count: number): Promise<number[]> => {
      const found: number[] = [];
      for (let at = 0; at < count; at += 1) {
        const one = await timed(() => boxcar.answerAs(short));
        found.push(((await timed(() => boxcar.answerAs(long))) - one) / EXTRA);
      }
      return found;
    };
    const sampleFloor = async (count: number): Promise<number[]> => {
      const found = await sampleTimes(async () => {
        for (let step = 0; step < EXTRA; step += 1)
          for (const cards of variant.floor) await floor.commit(cards);
      }, count);
      return found.map((ms) => ms / EXTRA);
    };
    await sample(Math.min(WARM_UP, samples));
    await sampleFloor(Math.min(WARM_UP, samples));
    await settle(servers.databaseUrl);
    const rounds = await alternate(options.rounds, {
      floor: () => sampleFloor(perRound),
      boxcar: () => sample(perRound),
    });
    figures[variant.name] = { value: median(rounds.boxcar.flat()), floor: median(rounds.floor.flat()) };
    say(`steps ${queue}, ${variant.name}: ${rounds.boxcar.flat().length} pairs of turns`);
  }
  return { ...figures, 'end by submit_result': await measureEnds(boxcar, options.rounds, perRound) };
}

/**
 * The time from the model's answer until the caller has it: of a turn that ends with `submit_result`, and of a turn that ends with text.
 */
async function measureEnds({ runtime }: Boxcar, rounds: number, perRound: number): Promise<Figure> {
  const { instructions, limits } = PROFILE;
  const profiles = {
    boxcar: { model: `scripted:${CLOCK_RESULT}`, must_end_with: ['submit_result'] },
    floor: { model: `scripted:${CLOCK}` },
  };
  for (const [name, profile] of Object.entries(profiles))
    await runtime.applyProfile({ name: `ends-${name}`, instructions, limits, ...profile });
  const sample = async (name: keyof typeof profiles): Promise<number[]> => {
    const found: number[] = [];
    for (let at = 0; at < perRound; at += 1) {
      const { status, result } = await runtime.waitForTurn(await submitTurn(runtime, `ends-${name}`));
      if (status !== 'success') throw new Error(`steps: a turn of ends-${name} ended as ${status}`);
      found.push(now() - Number(result));
    }
    return found;
  };
  for (const name of ['floor', 'boxcar'] as const) await sample(name);
  const times = await alternate(rounds, { floor: () => sample('floor'), boxcar: () => sample('boxcar') });
  return { value: median(times.boxcar.flat()), floor: median(times.floor.flat()) };
}

/** A claimed turn of the bare loop, for commits of steps. */
async function openHeldTurn(
  databaseUrl: string,
): Promise<AsyncDisposable & { commit(cards: number): Promise<void> }> {
  const pool = new pg.Pool({ connectionString: databaseUrl, max: 1 });
  const holderId = newId();
  const turn = { turnId: newId(), epoch: 1 };
  await insertTurn(pool, { id: turn.turnId, promptCardId: newId(), prompt: PROMPT, joinId: null });
  await claimTurns(pool, [turn], holderId);
  return {
    commit: (cards) => {
      const drafts = Array.from({ length: cards }, () => ({ id: newId(), text: THOUGHT }));
      return commitStep(pool, { ...turn, cards: drafts }, holderId);
    },
    [Symbol.asyncDispose]: () => pool.end(),
  };
}
