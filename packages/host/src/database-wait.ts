/** Waits for a database that is being started or restarted. */
import { setTimeout as delay } from 'node:timers/promises';
import { KernelError } from '@boxcar/kernel/base';
import type { Log } from '@boxcar/runtime/log';
import { toDatabaseError } from '@boxcar/store/health';

const PAUSE_MS = 100;
const LONGEST_PAUSE_MS = 1_000;

export interface DatabaseWait {
  /** How long to wait for the database; 0: no wait. */
  readonly waitMs: number;
  readonly log: Log;
}

/**
 * Runs the first work on a database, and repeats it while the database cannot be reached. Logs the wait once. A refused password or a
 * missing database fails at once.
 *
 * @throws The last error of `work`: `database_unavailable` when the time is up.
 */
export async function untilReachable<T>(work: () => Promise<T>, { waitMs, log }: DatabaseWait): Promise<T> {
  const deadline = performance.now() + waitMs;
  for (let pauseMs = PAUSE_MS, tries = 1; ; pauseMs = Math.min(pauseMs * 2, LONGEST_PAUSE_MS), tries++) {
    try {
      return await work();
    } catch (thrown) {
      const error = toDatabaseError(thrown);
      const leftMs = deadline - performance.now();
      if (!(error instanceof KernelError) || error.code !== 'database_unavailable' || leftMs <= 0)
        throw error;
      if (tries === 1)
        log('warn', 'database.waiting', {
          message: `the database cannot be reached; waiting ${Math.ceil(waitMs / 1000)} s for it`,
          error: error.message,
        });
      await delay(Math.min(pauseMs, leftMs));
    }
  }
}
