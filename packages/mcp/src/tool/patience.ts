/** Retries calls within one request while the database is unavailable. */
import { setTimeout as pause } from 'node:timers/promises';
import { decideRetry, KernelError } from '@boxcar/kernel';

const ATTEMPTS = { model_retries: 2, retry_base_seconds: 0.2, retry_max_seconds: 2 } as const;

const isTransient = (error: unknown): boolean =>
  error instanceof KernelError && error.code === 'database_unavailable';

/**
 * Up to three attempts, with growing pauses of random length.
 *
 * @param attempt - Must be idempotent: a second run changes nothing that the first run has done.
 * @param options.signal - When it aborts, no caller waits for the answer, and no further attempt is made.
 */
export async function withPatience<T>(
  attempt: () => Promise<T>,
  options: { readonly signal: AbortSignal; onRetry(error: unknown): void },
): Promise<T> {
  for (let retries = 0; ; retries += 1)
    try {
      return await attempt();
    } catch (error) {
      const decision = decideRetry(
        { canRetry: isTransient(error) && !options.signal.aborted },
        { retries, limits: ATTEMPTS, random: Math.random() },
      );
      if (decision.kind !== 'retry') throw error;
      options.onRetry(error);
      await pause(decision.delayMs, undefined, { signal: options.signal });
    }
}
