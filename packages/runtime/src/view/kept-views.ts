import type { BoxId, ContextCard, PromptHasher, TapeEntry } from '@boxcar/kernel';
import type { KnownTape, KnownTapes } from '@boxcar/store';

/** The rows of a view in memory. All of them are sealed, so they are never wrong, only too few. */
export interface HeldView {
  readonly rows: {
    readonly entries: TapeEntry[];
    readonly lastAnchorPosition: number;
    readonly contexts: Map<BoxId, readonly ContextCard[]>;
  };
  /** Where the view begins on the tape. */
  readonly from: number;
  readonly erasures: number;
  /** Knows the beginning of the next prompt. */
  readonly hasher: PromptHasher;
  sizeBytes: number;
}

/** A smaller view is read again as quickly as it is kept. */
const MIN_BYTES = 32 * 1024;
/** Every claim names all of them. */
const MAX_TAPES = 64;
/** What is erased leaves the memory of workers after this time at the latest. */
const MAX_AGE_MS = 5 * 60_000;

export const toKnown = ({ rows, from, erasures }: HeldView): KnownTape => ({
  from,
  to: rows.entries.at(-1)?.position ?? 0,
  contexts: rows.contexts,
  erasures,
});

/**
 * Views between the turns of an agent, and between the steps of a turn that has too large a one to hold. They give way to whatever needs
 * the room. Each method returns the bytes of what had to go.
 */
export class KeptViews {
  /** The longest unused first. */
  readonly #views = new Map<BoxId, { readonly view: HeldView; readonly since: number }>();

  /** What a claim need not read again. */
  get known(): KnownTapes {
    return new Map([...this.#views].map(([tapeId, { view }]) => [tapeId, toKnown(view)]));
  }

  keep(tapeId: BoxId, view: HeldView): number {
    if (view.sizeBytes < MIN_BYTES) return view.sizeBytes;
    this.#views.set(tapeId, { view, since: performance.now() });
    return this.#views.size > MAX_TAPES ? this.dropOldest() : 0;
  }

  /** Its new owner has its place in the room too. */
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

  /** Lets go what nobody has asked for in a while. */
  expire(now = performance.now()): number {
    let freed = 0;
    for (const { since } of [...this.#views.values()]) {
      if (now - since < MAX_AGE_MS) break;
      freed += this.dropOldest();
    }
    return freed;
  }
}
