/** The handoff functions of a runtime that turns, sweeps, decisions and workers use. */
import type { CardContent, CardId, JsonObject, JsonValue, Role, TicketId } from '@boxcar/kernel';
import type { ServedHandoff } from '@boxcar/store';

/** A handoff with the cards that were packed in addition to its task, its context and its payload, in the order of the box. */
export interface PackedHandoff extends ServedHandoff {
  readonly cards: readonly {
    readonly id: CardId;
    readonly type: string;
    readonly role: Role | null;
    readonly content: CardContent;
  }[];
}

/** The result of an adapter or a function. */
export interface ServedResult {
  readonly result: JsonValue;
  /** Null when no usage was reported. */
  readonly usage: { readonly input_tokens: number; readonly output_tokens: number } | null;
  /** The platform's id of the task; null when it has none. */
  readonly remoteId: string | null;
  /** The parts that the platform could not carry; null for a function, which receives everything. */
  readonly loss: JsonObject | null;
}

export interface QuestionOptions {
  readonly timeoutMs: number;
  /** The key by which another attempt finds the question again. Default: its text. */
  readonly key?: string | undefined;
  /** The task of the platform that waits for the reply. */
  readonly remoteTask?: string | undefined;
}

/** A handoff that this process can serve. */
export interface PreparedHandoff {
  /** `safe`: an attempt that was cut off may be followed by another one. */
  readonly retry: 'safe' | 'never';
  /** True: after an attempt was cut off while its platform waited for a reply, the next attempt continues the platform's task. */
  readonly resumes?: boolean | undefined;
  /** The reservation before the call. `model` names the price; null when no cost is known. */
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
    /** Receives a text result while it is written. */
    readonly onText: (text: string) => void;
    /** Asks the person or program that follows the handoff. Waits for the reply without a slot of the worker. */
    readonly ask: (text: string, options: QuestionOptions) => Promise<string>;
    /** The platform's task that this attempt continues. */
    readonly resumeId: string | undefined;
    /** Waits for another handoff without a slot of the worker. */
    readonly whileWaiting: <T>(work: () => Promise<T>) => Promise<T>;
  }): Promise<ServedResult>;
  /** Tells the platform to stop. Undefined when the platform has no way to stop a task. */
  readonly cancel: ((remoteId: string, signal: AbortSignal) => Promise<boolean>) | undefined;
  /** Whether a failed attempt may be followed by another one, and how long the platform asks to wait. */
  adviseRetry(error: unknown): { readonly retryable: boolean; readonly retryAfterMs?: number | undefined };
}

export interface Handoffs {
  /** True when models and doors may hand off. */
  readonly isEnabled: boolean;
  /** The targets that a worker of this process can serve in addition to its own targets. */
  readonly workerTargets: readonly string[];
  /** @throws KernelError for a target that this process does not know. */
  prepare(handoff: PackedHandoff, workerTarget: string): Promise<PreparedHandoff>;
  /** Continues the work that waits for a ticket, after the ticket was decided or its call has ended. */
  decided(ticketId: TicketId): Promise<void>;
}

/**
 * Turns whose target has this prefix are served by an adapter or a function. Rule: docs/reference/handoff.md, "Who serves a
 * handoff".
 */
export const HANDOFF_TARGET = 'handoff-';

/** The target of chains. Processes that may hand off serve it. */
export const CHAIN_TARGET = `${HANDOFF_TARGET}chain`;
/** The tool of chains only: it makes the chain's next move. */
export const CHAIN_TOOL = 'handoff_hop';
