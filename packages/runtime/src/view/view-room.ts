/**
 * Limits the memory for the views of a worker's turns. A turn that needs more room waits, in order, until other views
 * have left. A view that is larger than the whole room enters when the room is empty. Views that no turn needs at the
 * moment are dropped first.
 */
export class ViewRoom {
  readonly #limitBytes: number;
  readonly #giveWay: () => number;
  readonly #onLeave: () => void;
  readonly #waiting: { readonly sizeBytes: number; readonly admit: () => void }[] = [];
  #usedBytes = 0;

  /**
   * @param giveWay - Drops a view and returns its bytes; 0 when all views are in use.
   * @param onLeave - Called when there may be more room.
   */
  constructor(limitBytes: number, giveWay: () => number = () => 0, onLeave: () => void = () => undefined) {
    this.#limitBytes = limitBytes;
    this.#giveWay = giveWay;
    this.#onLeave = onLeave;
  }

  get usedBytes(): number {
    return this.#usedBytes;
  }

  /** True when `enter` would not have to wait. */
  hasRoomFor(sizeBytes: number): boolean {
    return this.#waiting.length === 0 && this.#hasRoomFor(sizeBytes);
  }

  /** Takes this much as soon as there is room for it. */
  enter(sizeBytes: number): Promise<void> {
    return new Promise((admit) => {
      this.#waiting.push({ sizeBytes, admit });
      this.#admit();
    });
  }

  /** Takes the room of rows that are already in memory, even if the limit is exceeded. */
  take(sizeBytes: number): void {
    this.#usedBytes += sizeBytes;
    this.#hasRoomFor(0);
  }

  leave(sizeBytes: number): void {
    this.#usedBytes -= sizeBytes;
    this.#admit();
    this.#onLeave();
  }

  #admit(): void {
    for (let next = this.#waiting[0]; next !== undefined; next = this.#waiting[0]) {
      if (!this.#hasRoomFor(next.sizeBytes)) return;
      this.#waiting.shift();
      this.#usedBytes += next.sizeBytes;
      next.admit();
    }
  }

  #hasRoomFor(sizeBytes: number): boolean {
    while (this.#usedBytes > 0 && this.#usedBytes + sizeBytes > this.#limitBytes) {
      const freedBytes = this.#giveWay();
      if (freedBytes === 0) return false;
      this.#usedBytes -= freedBytes;
    }
    return true;
  }
}
