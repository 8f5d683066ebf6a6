import { startTimer, type Timer } from '@boxcar/kernel';

/**
 * The outcome of `work`, or the signal's reason as soon as the signal aborts. The work must watch the signal too: after an abort nothing
 * waits for it, and its outcome is not reported.
 */
export function raceAbort<T>(work: Promise<T>, signal: AbortSignal): Promise<T> {
  return new Promise<T>((resolve, reject) => {
    const abort = (): void => reject(signal.reason);
    if (signal.aborted) abort();
    else signal.addEventListener('abort', abort, { once: true });
    work.then(resolve, reject).finally(() => signal.removeEventListener('abort', abort));
  });
}

/** Waits. An abort ends the wait at once with the signal's reason and leaves no timer and no listener. */
export async function pause(delayMs: number, signal: AbortSignal): Promise<void> {
  let timer: Timer | undefined;
  const elapsed = new Promise<void>((resolve) => {
    timer = startTimer(delayMs, resolve);
  });
  try {
    await raceAbort(elapsed, signal);
  } finally {
    timer?.clear();
  }
}
