import { setTimeout as delay } from 'node:timers/promises';

export interface WaitOptions {
  /** The condition, as a statement: `the turn has ended`. */
  readonly message: string;
  readonly deadlineMs?: number;
  readonly intervalMs?: number;
}

/**
 * Waits until the condition holds, across processes where no event reports it. For events of this process use the clock and `drain`
 * instead.
 *
 * @returns The first value of the condition that is neither false, null nor undefined.
 * @throws Error that names the condition; an error thrown by the condition ends the wait.
 */
export async function waitFor<T>(
  condition: () => T | Promise<T>,
  options: WaitOptions,
): Promise<Exclude<T, false | null | undefined>> {
  const deadlineMs = options.deadlineMs ?? 60_000;
  const deadline = performance.now() + deadlineMs;
  for (;;) {
    const value = await condition();
    if (isSettled(value)) return value;
    if (performance.now() > deadline)
      throw new Error(`waited ${deadlineMs} ms in vain until ${options.message}`);
    await delay(options.intervalMs ?? 10);
  }
}

function isSettled<T>(value: T): value is Exclude<T, false | null | undefined> {
  return value !== false && value !== null && value !== undefined;
}
