/** Timers by name, all of which end with their owner. Setting one again keeps the earlier moment. */
export class Timers {
  readonly #running = new Map<string, { readonly at: number; readonly timer: NodeJS.Timeout }>();
  #isClosed = false;

  set(name: string, afterMs: number, work: () => void): void {
    if (this.#isClosed) return;
    const at = performance.now() + afterMs;
    const known = this.#running.get(name);
    if (known !== undefined && known.at <= at) return;
    clearTimeout(known?.timer);
    const timer = setTimeout(() => {
      this.#running.delete(name);
      work();
    }, afterMs);
    this.#running.set(name, { at, timer });
  }

  close(): void {
    this.#isClosed = true;
    for (const { timer } of this.#running.values()) clearTimeout(timer);
    this.#running.clear();
  }
}
