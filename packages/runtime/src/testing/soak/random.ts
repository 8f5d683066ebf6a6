/** Pseudorandom numbers. The same seed gives the same numbers. */
export interface Random {
  /** At least 0 and less than 1. */
  next(): number;
  /** From `from` to `to`, both included. */
  between(from: number, to: number): number;
  pick<T>(items: readonly T[]): T | undefined;
}

/** Mulberry32: 32 bits of state are enough to choose faults. */
export function createRandom(seed: number): Random {
  let state = seed >>> 0;
  const next = (): number => {
    state = (state + 0x6d2b79f5) >>> 0;
    let mixed = Math.imul(state ^ (state >>> 15), state | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
  const between = (from: number, to: number): number => from + Math.floor(next() * (to - from + 1));
  return { next, between, pick: (items) => items[between(0, items.length - 1)] };
}
