/**
 * Boxes: ordered lists of cards. A tape grows at its end; a context box is sealed when it is made.
 *
 * A context box stores its own card ids once and describes its content by segments: ranges of its own ids, or ranges of
 * another box (the *leaf*). A segment never points to a segment, because packing flattens: expanding a box is one join,
 * however deep the delegation. The segments are the box's manifest. They record the cards, their sources, the rules
 * that added them, and the cards that were left out.
 */
import type { BoxId, CardId } from '../base/index.js';

export type SegmentRule = 'pack_arguments' | 'inherit' | 'parent' | 'create_box' | 'snapshot' | 'digest';

/** The cards that a token budget cut from a segment, and the strategy that chose them. */
export interface SegmentCut {
  readonly strategy: string;
  readonly budget: number;
  readonly parts: readonly {
    readonly reason: string;
    readonly count: number;
    readonly tokens: number;
    /**
     * First and last positions in the leaf, both included. Other positions inside a range never belonged to this
     * segment.
     */
    readonly ranges: readonly (readonly [number, number])[];
  }[];
}

export interface Segment {
  readonly rule: SegmentRule;
  /** The argument that carried the value or named the box. */
  readonly argument?: string;
  /** The box that the caller named; present when that box itself refers to another box. */
  readonly via?: BoxId;
  /** The leaf whose positions follow; absent for the box's own card ids. */
  readonly source?: BoxId;
  /** First and last position in the leaf, from 1, both included; `to` is before `from` when a budget cut every card. */
  readonly from: number;
  readonly to: number;
  /** Positions inside the range that are not part of the box: duplicates of earlier cards, calls of an open step, cuts. */
  readonly skip?: readonly number[];
  readonly count: number;
  readonly tokens: number;
  /** True when the cards are the reader's own history (a clone): calls and results then keep their form. */
  readonly native?: true;
  /**
   * Positions of cards that the reader sees as references, because a compaction of the clone's source has left them
   * out.
   */
  readonly references?: readonly number[];
  /** Positions of summaries whose cards the reader may read with `expand`. */
  readonly summaries?: readonly number[];
  /**
   * Skipped positions whose cards are also in a box that was named before. The list of cards has them only at that
   * first place. The reader sees them here, as part of its history.
   */
  readonly repeats?: readonly number[];
  /**
   * Positions of `turn.started` events on the tape where the reader sees the turn's request. The cards of the request
   * are in the context boxes that the events name, not in this box, and are not counted.
   */
  readonly asked?: readonly number[];
  /** Only for readers of the manifest; expanding a box does not need it. */
  readonly cut?: SegmentCut;
}

/** A sealed box before it is stored. */
export interface ContextBoxDraft {
  readonly cardIds: readonly CardId[];
  readonly cardTokens: readonly number[];
  readonly segments: readonly Segment[];
  readonly count: number;
  readonly tokens: number;
}

/** Positions where a clone's view shows its history in another form or at another place. */
export type ShownMarks = Pick<Segment, 'references' | 'summaries' | 'repeats'>;

/** The cards of a turn's request, at the position of its `turn.started` on the tape. */
export interface Asked {
  readonly position: number;
  readonly cardIds: readonly CardId[];
}

/**
 * One leaf range of a box, with its cards: three parallel lists in position order. Positions of events are in none of
 * the lists.
 */
export interface LeafRange extends ShownMarks {
  /** The requests of turns that started in the range, as far as the packer may read them. */
  readonly asked?: readonly Asked[];
  readonly source: BoxId;
  readonly from: number;
  readonly to: number;
  /** Positions with cards inside the range that the box had already left out. */
  readonly skip: readonly number[];
  readonly positions: readonly number[];
  readonly cardIds: readonly CardId[];
  readonly tokens: readonly number[];
  /**
   * True for the history of the agent that reads it. A clone keeps the mark; any other agent that inherits the cards
   * does not.
   */
  readonly native: boolean;
}

/** A box in the form that packing reads: its leaf ranges in order. */
export interface ExpandedBox {
  readonly boxId: BoxId;
  readonly ranges: readonly LeafRange[];
}
