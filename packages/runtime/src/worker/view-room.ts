/**
 * Bounds what the views of a worker's turns hold in memory: who wants more waits, in order, until others have left. One
 * that is larger than the whole room gets in when it is empty.
 */
export class ViewRoom {
  readonly #limitBytes: number;
  readonly #waiting: { readonly sizeBytes: number; readonly admit: () => void }[] = [];
  #usedBytes = 0;

  constructor(limitBytes: number) {
    this.#limitBytes = limitBytes;
  }

  get usedBytes(): number {
    return this.#usedBytes;
  }

  /** Takes this much as soon as there is room for it. */
  enter(sizeBytes: number): Promise<void> {
    return new Promise((admit) => {
      this.#waiting.push({ sizeBytes, admit });
      this.#admit();
    });
  }

  /** Takes what is there already, whether there is room or not. */
  take(sizeBytes: number): void {
    this.#usedBytes += sizeBytes;
  }

  leave(sizeBytes: number): void {
    this.#usedBytes -= sizeBytes;
    this.#admit();
  }

  #admit(): void {
    for (let next = this.#waiting[0]; next !== undefined; next = this.#waiting[0]) {
      if (this.#usedBytes > 0 && this.#usedBytes + next.sizeBytes > this.#limitBytes) return;
      this.#waiting.shift();
      this.#usedBytes += next.sizeBytes;
      next.admit();
    }
  }
}
