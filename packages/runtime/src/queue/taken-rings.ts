/** A ring that no check has asked about for this time is forgotten: its turn was claimed, or has ended. */
const FORGOTTEN_MS = 10 * 60_000;

interface Seen {
  /** When this process first found that a listener has the ring. */
  readonly at: number;
  readonly lastAt: number;
}

/**
 * Finds rings that a listener has taken but not claimed. A worker claims a ring milliseconds after taking it. A worker
 * that does not claim it was stopped or lost, and the queue gives the ring to another worker only after the queue's own
 * lock has expired.
 */
export class TakenRings {
  /** By job id. */
  readonly #seen = new Map<string, Seen>();

  /**
   * Records the findings of one check. A check asks about some of the rings; records of other rings are kept.
   *
   * @param asked - Job ids of the rings that the check has asked about.
   * @param taken - The ids among them that listeners hold now.
   * @returns The rings that were first found at least `takenMs` ago.
   */
  record(
    { asked, taken }: { readonly asked: Iterable<string>; readonly taken: ReadonlySet<string> },
    takenMs: number,
    now = performance.now(),
  ): ReadonlySet<string> {
    for (const id of asked) if (!taken.has(id)) this.#seen.delete(id);
    for (const [id, { lastAt }] of this.#seen) if (now - lastAt > FORGOTTEN_MS) this.#seen.delete(id);
    const overdue = new Set<string>();
    for (const id of taken) {
      const at = this.#seen.get(id)?.at ?? now;
      this.#seen.set(id, { at, lastAt: now });
      if (now - at >= takenMs) overdue.add(id);
    }
    return overdue;
  }
}
