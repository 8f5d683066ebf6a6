/** What a runtime knows of handoffs, for the parts that meet them: turns, sweeps, decisions, workers. */
import type { CardContent, CardId, JsonObject, JsonValue, Role, TicketId } from '@boxcar/kernel';
import type { ServedHandoff } from '@boxcar/store';

/** A handoff with the cards that were packed beside its task, its context and its payload, in the order of the box. */
export interface PackedHandoff extends ServedHandoff {
  readonly cards: readonly {
    readonly id: CardId;
    readonly type: string;
    readonly role: Role | null;
    readonly content: CardContent;
  }[];
}

/** What an adapter or a function has brought. */
export interface ServedResult {
  readonly result: JsonValue;
  /** Null: none was reported. */
  readonly usage: { readonly input_tokens: number; readonly output_tokens: number } | null;
  /** What the platform calls it; null: nothing. */
  readonly remoteId: string | null;
  /** What the platform could not carry; null for a function, which is given everything. */
  readonly loss: JsonObject | null;
}

export interface QuestionOptions {
  readonly timeoutMs: number;
  /** By which another attempt finds the question again. Default: its text. */
  readonly key?: string | undefined;
  /** The task of the platform that waits for the reply. */
  readonly remoteTask?: string | undefined;
}

/** A handoff that this process can serve. */
export interface PreparedHandoff {
  /** `safe`: an attempt that was cut off may be followed by another one. */
  readonly retry: 'safe' | 'never';
  /** An attempt that was cut off while its platform waited for a reply is followed by one that goes on with its task. */
  readonly resumes?: boolean | undefined;
  /** What is reserved before the call. `model` names the price; null: it costs nothing that is known. */
  readonly need: {
    readonly promptTokens: number;
    readonly maxOutputTokens: number;
    readonly model: string | null;
  };
  /** One attempt. Ends at once when the signal aborts. */
  execute(options: {
    readonly signal: AbortSignal;
    readonly attempt: number;
    readonly onRemoteId: (id: string) => void;
    /** Gets a text result while it is written. */
    readonly onText: (text: string) => void;
    /** Asks whoever follows the handoff, and waits for the reply without a slot of the worker. */
    readonly ask: (text: string, options: QuestionOptions) => Promise<string>;
    /** The task of the platform that this attempt goes on with. */
    readonly resumeId: string | undefined;
    /** Waits for another handoff without a slot of the worker. */
    readonly whileWaiting: <T>(work: () => Promise<T>) => Promise<T>;
  }): Promise<ServedResult>;
  /** Tells the platform to stop; undefined: it cannot be told. */
  readonly cancel: ((remoteId: string, signal: AbortSignal) => Promise<boolean>) | undefined;
  /** Whether a failed attempt may be followed by another one, and how long the platform asks to wait. */
  adviseRetry(error: unknown): { readonly retryable: boolean; readonly retryAfterMs?: number | undefined };
}

export interface Handoffs {
  /** Models and doors may hand off. */
  readonly isEnabled: boolean;
  /** What a worker of this process can serve beside its own targets. */
  readonly workerTargets: readonly string[];
  /** @throws KernelError for a target that this process does not know. */
  prepare(handoff: PackedHandoff, workerTarget: string): Promise<PreparedHandoff>;
  /** Moves on what waits for a ticket that was decided, or whose call is over. */
  decided(ticketId: TicketId): Promise<void>;
}

/** Turns with such a target are served by an adapter or a function. Rule: docs/reference/handoff.md, "Who serves a handoff". */
export const HANDOFF_TARGET = 'handoff-';

/** Who takes chains: processes that may hand off. */
export const CHAIN_TARGET = `${HANDOFF_TARGET}chain`;
/** The tool of chains alone: makes their next move. */
export const CHAIN_TOOL = 'handoff_hop';
