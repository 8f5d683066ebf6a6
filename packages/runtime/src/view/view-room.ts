/**
 * Bounds what the views of a worker's turns hold in memory: who wants more waits, in order, until others have left. One
 * that is larger than the whole room gets in when it is empty. What nobody needs at the moment gives way first.
 */
export class ViewRoom {
  readonly #limitBytes: number;
  readonly #giveWay: () => number;
  readonly #onLeave: () => void;
  readonly #waiting: { readonly sizeBytes: number; readonly admit: () => void }[] = [];
  #usedBytes = 0;

  /**
   * @param giveWay - Lets go of something, and returns its bytes; 0: there is nothing.
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

  /** Takes what is there already, whether there is room or not. */
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
