/**
 * Finds rings that a listener has taken but not claimed. A worker claims a ring milliseconds after taking it. A worker that does not
 * was stopped or lost, and the queue gives the ring to another worker only after the queue's own lock has expired.
 */
export class TakenRings {
  /** By job id: when this process first found that a listener has the ring. */
  readonly #seenAt = new Map<string, number>();

  /**
   * Records the rings that one check has found, and forgets all other rings.
   *
   * @param taken - Job ids of the rings that listeners have now.
   * @returns The rings that were first found at least `takenMs` ago.
   */
  note(taken: ReadonlySet<string>, takenMs: number, now = performance.now()): ReadonlySet<string> {
    for (const id of this.#seenAt.keys()) if (!taken.has(id)) this.#seenAt.delete(id);
    const overdue = new Set<string>();
    for (const id of taken) {
      const seenAt = this.#seenAt.get(id) ?? now;
      this.#seenAt.set(id, seenAt);
      if (now - seenAt >= takenMs) overdue.add(id);
    }
    return overdue;
  }
}
