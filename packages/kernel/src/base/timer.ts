/** Timers for any duration. Node's own timers allow at most 2^31 - 1 ms, and fire after 1 ms when given more. */

/** The longest duration of a single Node timer, about 24.8 days. */
export const LONGEST_TIMER_MS = 2 ** 31 - 1;

export interface Timer {
  /** Cancels the work. */
  clear(): void;
}

/** Calls `work` once after `afterMs`; `Infinity` means never. */
export function startTimer(afterMs: number, work: () => void): Timer {
  let timer: NodeJS.Timeout | undefined;
  const wait = (leftMs: number): void => {
    timer =
      leftMs <= LONGEST_TIMER_MS
        ? setTimeout(work, leftMs)
        : setTimeout(() => wait(leftMs - LONGEST_TIMER_MS), LONGEST_TIMER_MS);
  };
  if (afterMs < Infinity) wait(afterMs);
  return { clear: () => clearTimeout(timer) };
}
