/** The types of handoff requests and answers for programs. */
import type { HandoffArguments, HandoffStatus, JsonValue } from '@boxcar/kernel';

/** A request in the form for programs. Times are in seconds. */
export interface HandoffInput {
  /** Any text, for a caller outside. */
  readonly source_agent: string;
  readonly target_agent: string;
  readonly task: string;
  readonly payload?: JsonValue | undefined;
  readonly context?: { readonly [key: string]: unknown } | undefined;
  /** Any name of a platform, in any case. Default: the platform of the target with this name, else `agdd`. */
  readonly platform?: string | undefined;
  /** Any text of the caller. */
  readonly run_id?: string | undefined;
  /** The time for the execution, over all attempts. Default 3,600. */
  readonly timeout?: number | undefined;
  readonly retry?: Partial<NonNullable<HandoffArguments['retry']>> | undefined;
  /** The same key gives the same handoff. Default: `context.idempotency_key`. */
  readonly idempotency_key?: string | undefined;
  readonly parent_handoff_id?: string | undefined;
  /** Boxes whose cards go along. */
  readonly context_box_id?: string | readonly string[] | undefined;
  /** Take the result of an identical handoff that completed at most this long ago. Default: no cached result is used. */
  readonly cache?: { readonly ttl_seconds: number } | undefined;
  /** Default true: the call resolves with the result. */
  readonly wait?: boolean | undefined;
  /** The signed end of the handoff is sent to this address. */
  readonly callback?: { readonly url: string } | undefined;
  /** True: the end is written to the tape of `source_agent`, which must be an agent of the project. */
  readonly notify?: boolean | undefined;
}

export interface HandoffAnswer {
  readonly handoff_id: string;
  readonly status: HandoffStatus;
  /** Null until the handoff has ended. */
  readonly result: JsonValue;
  /** The pending request for approval. */
  readonly ticket_id?: string;
}

/** A hop of a chain. Without a payload it gets the result of the hop before it. */
export interface ChainHopInput
  extends Pick<
    HandoffInput,
    'target_agent' | 'task' | 'context' | 'payload' | 'platform' | 'timeout' | 'retry' | 'cache'
  > {
  /** The request that undoes the hop when a later hop fails. Its payload is the result of the hop. */
  readonly compensate?: Omit<ChainHopInput, 'payload' | 'cache' | 'compensate'> | undefined;
}

export interface ChainInput
  extends Pick<
    HandoffInput,
    'source_agent' | 'run_id' | 'idempotency_key' | 'parent_handoff_id' | 'callback' | 'notify' | 'wait'
  > {
  readonly hops: readonly ChainHopInput[];
}

export interface ChainOptions extends Omit<ChainInput, 'hops'> {
  readonly signal?: AbortSignal | undefined;
}
