/** Calls that wait: they report progress, end in time, and end when the client cancels them. */
import { errorText, KernelError } from '@boxcar/kernel';
import type { ToolCall } from '../tool/index.js';

/** Some clients give up after 60 seconds, even when they receive progress. */
export const DEFAULT_WAIT_SECONDS = 45;
export const MAX_WAIT_SECONDS = 3_600;
const PROGRESS_MS = 5_000;

/** Undefined: the time is over; the awaited work continues. */
export async function unlessLate<T>(wait: () => Promise<T>): Promise<T | undefined> {
  try {
    return await wait();
  } catch (error) {
    if (error instanceof KernelError && error.code === 'wait_timeout') return undefined;
    throw error;
  }
}

/** Reports progress to a client that asked for it, at once and every few seconds. */
export async function tellingProgress<T>(
  { request, signal, log }: ToolCall,
  describe: () => Promise<string>,
  work: () => Promise<T>,
): Promise<T> {
  const progressToken = request._meta?.progressToken;
  if (progressToken === undefined) return work();
  const startedAt = performance.now();
  let told = -1;
  const tell = async (): Promise<void> => {
    try {
      const message = await describe();
      if (signal.aborted) return;
      // The protocol requires a growing value.
      told = Math.max(told + 0.001, (performance.now() - startedAt) / 1_000);
      const params = { progressToken, progress: told, message };
      await request.notify({ method: 'notifications/progress', params });
    } catch (error) {
      log('warn', 'mcp.progress_not_told', { error: errorText(error) });
    }
  };
  let telling = tell();
  const timer = setInterval(() => {
    telling = telling.then(tell);
  }, PROGRESS_MS);
  try {
    return await work();
  } finally {
    clearInterval(timer);
    // No progress may be sent after the answer.
    await telling;
  }
}
