import { setTimeout as delay } from 'node:timers/promises';
import type { System } from './system.js';

/** A turn without an answer after this time is considered lost. */
const PATIENCE_MS = 60_000;

/**
 * Ends a measurement in which no more answers arrive, with one timer for all turns: a timer per turn would be a considerable part of the
 * caller's work.
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

/** How long a loop runs before its answers count: until the worker is fully loaded. */
const RAMP_MS = 300;

/**
 * Keeps `clients` turns in progress for `seconds`: each client submits its next turn when it has the previous answer.
 *
 * @returns Answers per second, without the initial ramp, and the total number of turns.
 * @throws when a turn does not end as expected, or not at all.
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
 * One turn at a time, with pauses in which the system becomes idle. The pauses vary, so that no timer of the system synchronizes with
 * them.
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

/** The duration of one run in milliseconds. */
export async function timed(work: () => Promise<unknown>): Promise<number> {
  const from = performance.now();
  await work();
  return performance.now() - from;
}

/** The durations of `count` consecutive runs, in milliseconds. */
export async function sampleTimes(work: () => Promise<unknown>, count: number): Promise<number[]> {
  const times: number[] = [];
  for (let at = 0; at < count; at += 1) times.push(await timed(work));
  return times;
}

/** Milliseconds since 1970: the same clock in all processes of a machine. */
export const now = (): number => performance.timeOrigin + performance.now();
