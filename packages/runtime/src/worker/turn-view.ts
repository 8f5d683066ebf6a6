import type { NewCard, TapeEntry, ViewRows } from '@boxcar/kernel';
import type { LoadedView } from '@boxcar/store';
import { type TurnLoader, toRows, type ViewedTurn } from './loader.js';
import type { ViewRoom } from './view-room.js';

/** A view up to this size comes along with its claim and is kept from step to step. */
export const INLINE_VIEW_BYTES = 256 * 1024;

type Rows = Omit<ViewRows, 'turn' | 'profile'>;

/**
 * The rows of a turn's view in its worker's memory. They are read once; what the turn itself appends is added here, as long
 * as nobody else has written to its tape in between. A large view is read again for every step.
 */
export class TurnView {
  readonly #loader: TurnLoader;
  readonly #room: ViewRoom;
  readonly #turn: ViewedTurn;
  #held: { readonly rows: Rows; readonly entries: TapeEntry[]; sizeBytes: number } | undefined;

  constructor(loader: TurnLoader, room: ViewRoom, turn: ViewedTurn, claimed: LoadedView | undefined) {
    this.#loader = loader;
    this.#room = room;
    this.#turn = turn;
    if (claimed === undefined) return;
    try {
      this.#hold(claimed);
    } catch {
      // The first step will say so, where it can be dealt with.
    }
  }

  #hold(view: LoadedView): Rows {
    const entries = [...view.entries];
    const rows = { ...toRows(view, this.#loader.kinds), entries };
    this.#held = { rows, entries, sizeBytes: view.sizeBytes };
    this.#room.take(view.sizeBytes);
    return rows;
  }

  async rows(): Promise<Rows> {
    if (this.#held !== undefined) return this.#held.rows;
    await this.#room.enter(INLINE_VIEW_BYTES);
    try {
      return this.#hold(await this.#loader.view(this.#turn));
    } finally {
      this.#room.leave(INLINE_VIEW_BYTES);
    }
  }

  /**
   * Adds what a commit of this turn wrote behind `basePosition`.
   *
   * @param basePosition - The head of the tape before it; null = not known.
   */
  append(
    basePosition: number | null,
    step: number,
    written: readonly { readonly kind: TapeEntry['kind']; readonly card: NewCard }[],
  ): void {
    const held = this.#held;
    if (held === undefined) return;
    const addedBytes = written.reduce((sum, { card }) => sum + card.sizeBytes, 0);
    const head = held.entries.at(-1)?.position;
    if (basePosition === null || basePosition !== head || held.sizeBytes + addedBytes > INLINE_VIEW_BYTES) {
      this.drop();
      return;
    }
    written.forEach(({ kind, card }, index) => {
      held.entries.push({
        position: basePosition + index + 1,
        kind,
        card,
        payload: null,
        anchorName: null,
        turnId: this.#turn.turnId,
        step,
      });
    });
    held.sizeBytes += addedBytes;
    this.#room.take(addedBytes);
  }

  drop(): void {
    if (this.#held === undefined) return;
    this.#room.leave(this.#held.sizeBytes);
    this.#held = undefined;
  }
}
