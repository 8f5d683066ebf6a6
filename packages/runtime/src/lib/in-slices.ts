/** Long computations in a process that also has other work. */
import { setImmediate } from 'node:timers/promises';

/** About this many characters are processed in one slice: one or two milliseconds. */
export const SLICE_CHARACTERS = 32_768;

/**
 * Runs a computation in slices, and lets the process do its other work between the slices.
 *
 * @param work - Yields the number of characters that it has processed since its last yield; `SLICE_CHARACTERS` after work that
 * takes a slice by itself.
 * @throws the reason of the signal, when it aborts between two slices.
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
