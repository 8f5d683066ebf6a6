import type { BoxId, ContextCard, PromptHasher, TapeEntry } from '@boxcar/kernel';
import type { KnownTape, KnownTapes } from '@boxcar/store';

/** The rows of a view in memory. All of them are sealed, so none is ever wrong; only newer rows can be missing. */
export interface HeldView {
  readonly rows: {
    readonly entries: TapeEntry[];
    readonly lastAnchorPosition: number;
    readonly contexts: Map<BoxId, readonly ContextCard[]>;
  };
  /** The position on the tape at which the view begins. */
  readonly from: number;
  readonly erasures: number;
  /** Holds the hash state for the beginning of the next prompt. */
  readonly hasher: PromptHasher;
  sizeBytes: number;
}

/** Reading a smaller view again costs no more than keeping it. */
const MIN_BYTES = 32 * 1024;
/** Every claim lists all kept tapes. */
const MAX_TAPES = 64;
/** Erased content leaves the memory of workers after this time at the latest. */
const MAX_AGE_MS = 5 * 60_000;

export const toKnown = ({ rows, from, erasures }: HeldView): KnownTape => ({
  from,
  to: rows.entries.at(-1)?.position ?? 0,
  contexts: rows.contexts,
  erasures,
});

/**
 * Views kept between the turns of an agent, and between the steps of a turn whose view is too large to hold. They are
 * dropped when their room is needed. Each method returns the bytes of the views that it dropped.
 */
export class KeptViews {
  /** In order of use, the longest unused first. */
  readonly #views = new Map<BoxId, { readonly view: HeldView; readonly since: number }>();

  /** The tapes that a claim need not read again. */
  get known(): KnownTapes {
    return new Map([...this.#views].map(([tapeId, { view }]) => [tapeId, toKnown(view)]));
  }

  keep(tapeId: BoxId, view: HeldView): number {
    if (view.sizeBytes < MIN_BYTES) return view.sizeBytes;
    // Two turns of one agent can have views in one worker: a canceled turn whose end this worker has not heard of, and the next turn.
    const replaced = this.take(tapeId)?.sizeBytes ?? 0;
    this.#views.set(tapeId, { view, since: performance.now() });
    return replaced + (this.#views.size > MAX_TAPES ? this.dropOldest() : 0);
  }

  /** The new owner also takes over the view's bytes in the room. */
  take(tapeId: BoxId): HeldView | undefined {
    const kept = this.#views.get(tapeId);
    this.#views.delete(tapeId);
    return kept?.view;
  }

  dropOldest(): number {
    const [oldest] = this.#views;
    if (oldest === undefined) return 0;
    this.#views.delete(oldest[0]);
    return oldest[1].view.sizeBytes;
  }

  /** Drops the views that have not been used for a while. */
  expire(now = performance.now()): number {
    let freed = 0;
    for (const { since } of [...this.#views.values()]) {
      if (now - since < MAX_AGE_MS) break;
      freed += this.dropOldest();
    }
    return freed;
  }
}
