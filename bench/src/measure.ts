import { setTimeout as delay } from 'node:timers/promises';
import type { System } from './system.js';

/** A turn that has no answer by then never gets one. */
const PATIENCE_MS = 60_000;

/**
 * Ends a measurement in which nothing is answered any more, by one timer for all turns: a deadline for each would be a good
 * part of what the caller spends.
 *
 * @param work - Calls `alive` at each answer.
 */
async function whileAlive<T>(name: string, work: (alive: () => void) => Promise<T>): Promise<T> {
  let timer: NodeJS.Timeout | undefined;
  const stuck = new Promise<never>((_settle, fail) => {
    timer = setTimeout(() => fail(new Error(`${name}: no answer for ${PATIENCE_MS / 1000} s`)), PATIENCE_MS);
  });
  try {
    return await Promise.race([work(() => timer?.refresh()), stuck]);
  } finally {
    clearTimeout(timer);
  }
}

/** How long a loop runs before its answers count: until the worker is as busy as it gets. */
const RAMP_MS = 300;

/**
 * Keeps `clients` turns under way for `seconds`: each client submits its next turn when it has the answer to the last.
 *
 * @returns Answers per second, the first moments left out; and how many turns it was in all.
 * @throws when a turn ends otherwise than it must, or not at all.
 */
export async function loadFor(
  system: System,
  options: { readonly clients: number; readonly seconds: number },
): Promise<{ readonly rate: number; readonly total: number }> {
  const countFrom = performance.now() + RAMP_MS;
  const countTo = countFrom + options.seconds * 1000;
  let answers = 0;
  let total = 0;
  const client = async (alive: () => void): Promise<void> => {
    for (let now = performance.now(); now < countTo; ) {
      await system.answer();
      alive();
      total += 1;
      now = performance.now();
      if (now >= countFrom && now < countTo) answers += 1;
    }
  };
  await whileAlive(system.name, (alive) =>
    Promise.all(Array.from({ length: options.clients }, () => client(alive))),
  );
  return { rate: answers / options.seconds, total };
}

/**
 * One turn at a time, with pauses in which everything comes to rest; of uneven length, so that no timer of the system falls
 * into step with them.
 *
 * @returns Milliseconds from submit to answer, one for each sample.
 */
export async function sampleIdle(
  system: Pick<System, 'name' | 'answer'>,
  samples: number,
): Promise<number[]> {
  const times: number[] = [];
  await whileAlive(system.name, async (alive) => {
    for (let sample = 0; sample < samples; sample += 1) {
      await delay(5 + Math.random() * 15);
      const from = performance.now();
      await system.answer();
      times.push(performance.now() - from);
      alive();
    }
  });
  return times;
}

/** Milliseconds of one run. */
export async function timed(work: () => Promise<unknown>): Promise<number> {
  const from = performance.now();
  await work();
  return performance.now() - from;
}

/** Milliseconds of each of `count` runs, one after the other. */
export async function sampleTimes(work: () => Promise<unknown>, count: number): Promise<number[]> {
  const times: number[] = [];
  for (let at = 0; at < count; at += 1) times.push(await timed(work));
  return times;
}

/** Milliseconds since 1970: the same clock in all processes of a machine. */
export const now = (): number => performance.timeOrigin + performance.now();
