/** The limits of concurrent use for the clients of a key. */
export interface KeyLimits {
  /** Requests that have no answer yet. */
  readonly requests: number;
  /** Transport sessions of the revision 2025-11-25. */
  readonly sessions: number;
  /** Open streams of `subscriptions/listen` and of sessions. */
  readonly streams: number;
}

export const DEFAULT_LIMITS: KeyLimits = { requests: 128, sessions: 128, streams: 128 };

/** Counts the current use of each key. */
export class KeyCounts {
  readonly #limits: KeyLimits;
  readonly #taken = new Map<string, number>();

  constructor(limits: KeyLimits) {
    this.#limits = limits;
  }

  /** Reserves `count` units. Returns a function that releases them, once; undefined when the key would exceed its limit. */
  take(kind: keyof KeyLimits, keyId: string, count = 1): (() => void) | undefined {
    const name = `${kind} ${keyId}`;
    const taken = this.#taken.get(name) ?? 0;
    if (taken + count > this.#limits[kind]) return undefined;
    this.#taken.set(name, taken + count);
    let isGiven = false;
    return () => {
      if (isGiven) return;
      isGiven = true;
      const left = (this.#taken.get(name) ?? count) - count;
      if (left > 0) this.#taken.set(name, left);
      else this.#taken.delete(name);
    };
  }
}
