import type { BoxId, CardId, HandoverNotice, Message, Role, Segment, SegmentRule } from '@boxcar/kernel';

/** Counts tokens as the named model does, or nearly. */
export type CountTokens = (text: string, model: string) => number | Promise<number>;

export interface PreviewOptions {
  /** Without it there are the stored estimates only. */
  readonly countTokens?: CountTokens | undefined;
}

export interface PreviewCard {
  /** `new`: the packing makes it. */
  readonly card_id: CardId | 'new';
  readonly type: string;
  readonly role: Role | null;
  readonly author_id: string;
  readonly rule: SegmentRule;
  readonly argument: string | null;
  /** The box or tape it stands in, and its position there. */
  readonly source: BoxId | null;
  readonly position: number | null;
  /** Of its words, by the tokenizer; null without one. */
  readonly tokens: number | null;
  /** The stored estimate, which budgets are counted in. */
  readonly estimated_tokens: number;
  readonly size_bytes: number;
  readonly is_kept: boolean;
  /** Why it is cut. */
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
    /** The estimate of the whole, before anything is cut. */
    readonly estimated_tokens: number;
    readonly is_exceeded: boolean;
  } | null;
  /** In stored order, the cut ones where they would have stood. */
  readonly cards: readonly PreviewCard[];
  readonly kept: PreviewSum;
  readonly cut: PreviewSum;
  /** The manifest of the box. */
  readonly segments: readonly Segment[];
  /** What the model of a fresh agent would be sent first, without its tools. */
  readonly prompt: {
    readonly messages: readonly PreviewMessage[];
    readonly tokens: number | null;
    readonly estimated_tokens: number;
    /** Why there are no messages: the profile's selector makes them, and is not in this process or has failed. */
    readonly unmade?: string;
  };
  /**
   * Rules of the handover that are skipped, and keys that are ignored: settings of a handler, or typing errors. With the field `prompt`:
   * the first step will see another prompt, as this one is too long or nearly so.
   */
  readonly notices: readonly HandoverNotice[];
}
