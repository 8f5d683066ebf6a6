import {
  type NewCard,
  PromptHasher,
  providerDataBytes,
  type TapeEntry,
  type ToolSchema,
  type View,
} from '@boxcar/kernel';
import type { LoadedView } from '@boxcar/store';
import { toRows } from '../pack/index.js';
import { type HeldView, type KeptViews, toKnown } from './kept-views.js';
import type { TurnLoader, ViewedTurn } from './loader.js';
import type { ViewRoom } from './view-room.js';

/** At most this much of a view is read with its claim, and is held while a model is asked. */
export const INLINE_VIEW_BYTES = 256 * 1024;

export interface ViewHost {
  readonly loader: TurnLoader;
  readonly room: ViewRoom;
  readonly kept: KeptViews;
}

const headOf = ({ rows }: HeldView): number => rows.entries.at(-1)?.position ?? 0;
const firstOf = ({ entries }: LoadedView): number => entries[0]?.position ?? 0;
/** The read left out the beginning of the view, because a worker was known to have it. */
const isRest = (view: LoadedView): boolean => firstOf(view) > view.from;
const isRestOf = (view: LoadedView, known: HeldView | undefined): boolean =>
  known !== undefined &&
  known.from === view.from &&
  known.erasures === view.erasures &&
  headOf(known) >= firstOf(view) - 1;

/**
 * The rows of a turn's view in its worker's memory. They are read once. Entries that the turn itself appends are added
 * here, as long as no other process has written to its tape in between. A large view is only kept between steps, and
 * read again if it was dropped.
 */
export class TurnView {
  readonly #host: ViewHost;
  readonly #turn: ViewedTurn;
  #held: HeldView | undefined;

  constructor(host: ViewHost, turn: ViewedTurn, claimed: LoadedView | undefined) {
    this.#host = host;
    this.#turn = turn;
    if (claimed === undefined) return;
    const known = host.kept.take(turn.outputBoxId);
    try {
      if (isRest(claimed) && !isRestOf(claimed, known)) host.room.leave(known?.sizeBytes ?? 0);
      else this.#held = this.#join(claimed, known);
    } catch {
      // The first step reads again and reports the error, where it can be handled.
    }
  }

  /**
   * The rows that were read, appended to the known rows if they are the rest of them. @throws KernelError
   * `unsupported_format`.
   */
  #join(view: LoadedView, known: HeldView | undefined): HeldView {
    const { room, loader } = this.#host;
    const before = isRest(view) ? known : undefined;
    let read: ReturnType<typeof toRows> | undefined;
    try {
      read = toRows(view, loader.kinds);
    } finally {
      if (before === undefined || read === undefined) room.leave(known?.sizeBytes ?? 0);
    }
    const head = before === undefined ? 0 : headOf(before);
    const entries = before?.rows.entries ?? [];
    for (const entry of read.entries) if (entry.position > head) entries.push(entry);
    const contexts = before?.rows.contexts ?? new Map();
    for (const [boxId, cards] of read.contexts) contexts.set(boxId, cards);
    // The last entry is read even when it is known.
    const addedBytes = entries.at(-1)?.position === head ? 0 : view.sizeBytes;
    room.take(addedBytes);
    return {
      rows: { entries, contexts, lastAnchorPosition: view.lastAnchorPosition },
      from: view.from,
      erasures: view.erasures,
      hasher: before?.hasher ?? new PromptHasher(),
      sizeBytes: (before?.sizeBytes ?? 0) + addedBytes,
    };
  }

  async rows(): Promise<HeldView['rows']> {
    this.#held ??= await this.#read();
    return this.#held.rows;
  }

  async #read(): Promise<HeldView> {
    const { loader, room, kept } = this.#host;
    await room.enter(INLINE_VIEW_BYTES);
    const known = kept.take(this.#turn.outputBoxId);
    try {
      const view = await loader.view(this.#turn, known && toKnown(known)).catch((error: unknown) => {
        room.leave(known?.sizeBytes ?? 0);
        throw error;
      });
      return this.#join(view, known);
    } finally {
      room.leave(INLINE_VIEW_BYTES);
    }
  }

  /** sha256 of the prompt that is built from this view. */
  hash({ messages, firstMessage }: View, tools: readonly ToolSchema[]): string {
    return (this.#held?.hasher ?? new PromptHasher()).hash(messages, tools, firstMessage);
  }

  /**
   * Adds the entries that a commit of this turn wrote after `basePosition`.
   *
   * @param basePosition - The head of the tape before the commit; null when it is not known.
   */
  append(
    basePosition: number | null,
    step: number,
    written: readonly { readonly kind: TapeEntry['kind']; readonly card: NewCard }[],
  ): void {
    const held = this.#held;
    if (held === undefined) return;
    if (basePosition === null || basePosition !== headOf(held)) {
      this.drop();
      return;
    }
    for (const { kind, card } of written) {
      held.rows.entries.push({
        position: headOf(held) + 1,
        kind,
        card,
        payload: null,
        anchorName: null,
        turnId: this.#turn.turnId,
        step,
      });
      const sizeBytes = card.sizeBytes + providerDataBytes(card.providerData);
      held.sizeBytes += sizeBytes;
      this.#host.room.take(sizeBytes);
    }
    if (held.sizeBytes > INLINE_VIEW_BYTES) this.#leave(held, true);
  }

  /** Releases the rows. The rows of a conversation are kept for its next turn until their room is needed. */
  drop(): void {
    const held = this.#held;
    if (held !== undefined) this.#leave(held, held.rows.contexts.size > 1);
  }

  #leave(held: HeldView, isNeeded: boolean): void {
    const { room, kept } = this.#host;
    this.#held = undefined;
    room.leave(isNeeded ? kept.keep(this.#turn.outputBoxId, held) : held.sizeBytes);
  }
}
