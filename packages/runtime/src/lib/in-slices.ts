/** Long computations in a process that has more to do. */
import { setImmediate } from 'node:timers/promises';

/** About so many characters are worked through at once: one or two milliseconds. */
export const SLICE_CHARACTERS = 32_768;

/**
 * Runs a computation in slices, between which the process does what else there is.
 *
 * @param work - Yields how many characters it has worked through since it last did; `SLICE_CHARACTERS` after work that is worth a slice by itself.
 * @throws the reason of the signal, when it fires between two slices.
 */
export async function inSlices<T>(work: Generator<number, T>, signal?: AbortSignal): Promise<T> {
  let characters = 0;
  signal?.throwIfAborted();
  for (;;) {
    const step = work.next();
    if (step.done === true) return step.value;
    characters += step.value;
    if (characters < SLICE_CHARACTERS) continue;
    characters = 0;
    await setImmediate();
    signal?.throwIfAborted();
  }
}
