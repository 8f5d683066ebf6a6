import type { BoxId, CardId, HandoverNotice, Message, Role, Segment, SegmentRule } from '@boxcar/kernel';

/** Counts tokens as the named model counts them, exactly or approximately. */
export type CountTokens = (text: string, model: string) => number | Promise<number>;

export interface PreviewOptions {
  /** Without it, the preview has only the stored estimates. */
  readonly countTokens?: CountTokens | undefined;
}

export interface PreviewCard {
  /** `new`: the packing makes the card. */
  readonly card_id: CardId | 'new';
  readonly type: string;
  readonly role: Role | null;
  readonly author_id: string;
  readonly rule: SegmentRule;
  readonly argument: string | null;
  /** The box or tape that contains the card, and its position there. */
  readonly source: BoxId | null;
  readonly position: number | null;
  /** The tokens of its text, by the tokenizer; null without a tokenizer. */
  readonly tokens: number | null;
  /** The stored estimate. Budgets use this number. */
  readonly estimated_tokens: number;
  readonly size_bytes: number;
  readonly is_kept: boolean;
  /** Why the card is cut. */
  readonly reason: string | null;
}

export interface PreviewSum {
  readonly cards: number;
  readonly tokens: number | null;
  readonly estimated_tokens: number;
  readonly size_bytes: number;
}

export interface PreviewMessage {
  readonly message: Message;
  readonly tokens: number | null;
  readonly card_ids: readonly (CardId | 'new')[];
}

export interface PackPreview {
  readonly profile: {
    readonly name: string;
    readonly version: number;
    readonly box_id: BoxId;
    readonly model: string;
  };
  readonly budget: {
    readonly budget_tokens: number;
    readonly budget_strategy: string;
    /** The estimate for the whole context before anything is cut. */
    readonly estimated_tokens: number;
    readonly is_exceeded: boolean;
  } | null;
  /** In stored order. Cut cards are at the place that they would have had. */
  readonly cards: readonly PreviewCard[];
  readonly kept: PreviewSum;
  readonly cut: PreviewSum;
  /** The manifest of the box. */
  readonly segments: readonly Segment[];
  /** The first prompt that the model of a fresh agent would get, without its tools. */
  readonly prompt: {
    readonly messages: readonly PreviewMessage[];
    readonly tokens: number | null;
    readonly estimated_tokens: number;
    /** Why there are no messages: they come from the profile's selector, which is not in this process or has failed. */
    readonly unmade?: string;
  };
  /**
   * Rules of the handover that are skipped, and keys that are ignored: settings of a handler, or typing errors. A notice with the
   * field `prompt` means that this prompt is too long or nearly too long, so the first step will see another prompt.
   */
  readonly notices: readonly HandoverNotice[];
}
