/**
 * Measures elapsed time, to decide whether a lease is still valid.
 *
 * The monotonic clock of a process does not count the time during which the machine is suspended. The wall clock does, but it can
 * be set. The longer of the two elapsed times counts. If the wall clock is set forward, the worker gives up a lease that is still
 * valid, which costs the step in progress until the next renewal. If it is set back, the monotonic clock counts.
 */
export interface Moment {
  readonly monotonicMs: number;
  readonly wallMs: number;
}

export interface LeaseClock {
  now(): Moment;
  /** Milliseconds since that moment. */
  since(moment: Moment): number;
}

export function createLeaseClock(
  readMonotonic: () => number = () => performance.now(),
  readWall: () => number = () => Date.now(),
): LeaseClock {
  return {
    now: () => ({ monotonicMs: readMonotonic(), wallMs: readWall() }),
    since: (moment) => Math.max(readMonotonic() - moment.monotonicMs, readWall() - moment.wallMs),
  };
}
