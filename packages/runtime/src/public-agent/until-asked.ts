/** Waits for the question of a task, without reading its rows for every piece of text that it writes. */
import { setTimeout as pause } from 'node:timers/promises';

/** How often the rows are read when no notification arrives. */
const LOOK_MS = 5_000;
/** The shortest time between two looks, however much text is written. */
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
