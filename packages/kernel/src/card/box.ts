/**
 * Boxes: ordered lists of cards. A tape grows at its end; a context box is sealed when it is made.
 *
 * A context box keeps its own card ids once and describes itself by segments: ranges of its own ids, or ranges of
 * another box (the *leaf*). A segment never points to a segment: packing flattens, so expanding a box is one join, however
 * deep the delegation. The segments are the box's manifest: what is in it, from where, by which rule, and what was left out.
 */
import type { BoxId, CardId } from '../base/index.js';

export type SegmentRule = 'pack_arguments' | 'inherit' | 'parent' | 'create_box' | 'snapshot' | 'digest';

/** What a token budget left out of a segment, and by which strategy. */
export interface SegmentCut {
  readonly strategy: string;
  readonly budget: number;
  readonly parts: readonly {
    readonly reason: string;
    readonly count: number;
    readonly tokens: number;
    /** First and last positions in the leaf, both included; what else a range spans was never a card of this segment. */
    readonly ranges: readonly (readonly [number, number])[];
  }[];
}

export interface Segment {
  readonly rule: SegmentRule;
  /** The argument that carried the value or named the box. */
  readonly argument?: string;
  /** The box the caller named; differs from `source` when that box itself refers to another. */
  readonly via?: BoxId;
  /** The leaf whose positions follow; absent = the box's own card ids. */
  readonly source?: BoxId;
  /** First and last position in the leaf, from 1, both included; `to` before `from` when a budget left nothing. */
  readonly from: number;
  readonly to: number;
  /** Positions inside the range that are not part of the box: duplicates of earlier cards, calls of an open step, cuts. */
  readonly skip?: readonly number[];
  readonly count: number;
  readonly tokens: number;
  /** True when the cards are the reader's own history (a clone): calls and results keep their form. */
  readonly native?: true;
  /** Positions of cards that the reader is shown as references: a compaction of whom it was cloned from has left them out. */
  readonly references?: readonly number[];
  /** Positions of summaries whose cards the reader may read by `expand`. */
  readonly summaries?: readonly number[];
  /**
   * Skipped positions whose cards a box that was named before has too. The list of cards has them there, where they came first; the reader is
   * shown them here, as part of its history.
   */
  readonly repeats?: readonly number[];
  /**
   * Positions of starts of turns on the tape at which the reader is shown what the turn was asked. The cards are in the context boxes that the
   * starts name, not in this box, and are not counted.
   */
  readonly asked?: readonly number[];
  /** For readers of the manifest only; expanding a box does not need it. */
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

/** What a clone's view shows of its history in another form or at another place, by position. */
export type ShownMarks = Pick<Segment, 'references' | 'summaries' | 'repeats'>;

/** What a turn was asked, at the position of its start on the tape. */
export interface Asked {
  readonly position: number;
  readonly cardIds: readonly CardId[];
}

/** One leaf range of a box, with its cards: three parallel lists in position order. Positions of events are in none of them. */
export interface LeafRange extends ShownMarks {
  /** What turns were asked that started in the range, as far as the packer may read it. */
  readonly asked?: readonly Asked[];
  readonly source: BoxId;
  readonly from: number;
  readonly to: number;
  /** Positions with cards inside the range that the box had already left out. */
  readonly skip: readonly number[];
  readonly positions: readonly number[];
  readonly cardIds: readonly CardId[];
  readonly tokens: readonly number[];
  /** True for history of the agent that read it; a clone keeps it so, any other heir does not. */
  readonly native: boolean;
}

/** A box as packing reads it: its leaf ranges in order. */
export interface ExpandedBox {
  readonly boxId: BoxId;
  readonly ranges: readonly LeafRange[];
}
