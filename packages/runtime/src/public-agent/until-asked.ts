/** Waits for the question of a task without reading its rows for every word that it says. */
import { setTimeout as pause } from 'node:timers/promises';

/** How often the rows are read without a notice. */
const LOOK_MS = 5_000;
/** Between two looks, however much is said. */
const REST_MS = 200;

/** @throws The signal's reason. */
export async function untilAsked(
  follower: { news(ms: number, signal: AbortSignal): Promise<unknown> },
  signal: AbortSignal,
  isAsked: () => Promise<boolean>,
): Promise<void> {
  for (;;) {
    await follower.news(LOOK_MS, signal);
    if (await isAsked()) return;
    await pause(REST_MS, undefined, { signal });
  }
}
