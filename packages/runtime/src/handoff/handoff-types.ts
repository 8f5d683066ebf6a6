/** What programs give to handoffs, and what they get. */
import type { HandoffArguments, HandoffStatus, JsonValue } from '@boxcar/kernel';

/** A request, as a program gives it. Times are in seconds. */
export interface HandoffInput {
  /** From outside any text. */
  readonly source_agent: string;
  readonly target_agent: string;
  readonly task: string;
  readonly payload?: JsonValue | undefined;
  readonly context?: { readonly [key: string]: unknown } | undefined;
  /** Any name of a platform, in any case. Default: that of the target of this name, else `agdd`. */
  readonly platform?: string | undefined;
  /** Any text of the caller. */
  readonly run_id?: string | undefined;
  /** Of the execution, over all attempts. Default 3,600. */
  readonly timeout?: number | undefined;
  readonly retry?: Partial<NonNullable<HandoffArguments['retry']>> | undefined;
  /** The same key gives the same handoff. Default: `context.idempotency_key`. */
  readonly idempotency_key?: string | undefined;
  readonly parent_handoff_id?: string | undefined;
  /** Boxes whose cards go along. */
  readonly context_box_id?: string | readonly string[] | undefined;
  /** Default true: the call resolves with the result. */
  readonly wait?: boolean | undefined;
  /** Where the end is sent to, signed. */
  readonly callback?: { readonly url: string } | undefined;
  /** True: the end is told on the tape of `source_agent`, an agent of the project. */
  readonly notify?: boolean | undefined;
}

export interface HandoffAnswer {
  readonly handoff_id: string;
  readonly status: HandoffStatus;
  /** Null while it has not ended. */
  readonly result: JsonValue;
  /** The request for approval that it waits for. */
  readonly ticket_id?: string;
}
