/** Options and answers of the operations on a tape. */
import type { JsonObject, TurnId } from '@boxcar/kernel';
import {
  type AnchorSelector,
  type BoxId,
  type JsonValue,
  type SessionAddress,
  type TapeMessagesOptions,
  type TapeRecord,
  tryParseId,
} from '@boxcar/kernel';

/** A tape by its name, the tape of an agent (id or name), the tape of a session in a workspace, or a box. */
export type TapeTarget = string | { readonly agent: string } | { readonly box: string } | SessionAddress;

/** Interprets the tape that a model, a program or a command line names: a session, the id of a box, or else a name. */
export function toTarget(tape: string | SessionAddress): TapeTarget {
  if (typeof tape !== 'string') return tape;
  const box = tryParseId<'box'>(tape);
  return box === undefined ? tape : { box };
}

export interface AppendOptions {
  /** The head that the caller has read. When the tape has more entries, nothing is appended (`tape_conflict`). */
  readonly expectedHead?: number | undefined;
  /** Names this append. A repeated append with the same key appends nothing and returns the same answer. */
  readonly dedupKey?: string | undefined;
}

export interface Appended {
  /** Positions of the first and last entry. */
  readonly first: number;
  readonly last: number;
  /** True when the key was already used for the same append. */
  readonly isRepeated: boolean;
  /** Problems of the entries that should be fixed, for example secrets in them. */
  readonly warnings?: readonly string[];
}

export interface HandoffOptions extends AppendOptions, EntryOptions {
  /** The state that is handed over. Later views show it first. */
  readonly state?: JsonValue;
}

export interface Handoff {
  readonly anchor: number;
  readonly event: number;
  /** The anchor and its event, in the form for readers. For a repetition, the entries of the first call. */
  readonly entries: readonly TapeRecord[];
  readonly isRepeated: boolean;
  readonly warnings?: readonly string[];
}

export interface AnchorSummary {
  readonly position: number;
  readonly name: string;
  readonly state: JsonValue;
  readonly date: string | null;
}

export interface AnchorsOptions {
  /** Default 20, at most 500. */
  readonly limit?: number | undefined;
  /** Only anchors before this position. Default: all. */
  readonly before?: number | undefined;
}

/** One page of the anchors of a tape. */
export interface AnchorsPage {
  /** In the order of the tape. */
  readonly anchors: readonly AnchorSummary[];
  /** Pass it as `before` to get the next page. Null when there are no earlier anchors. */
  readonly next: number | null;
}

export interface TapeInfo {
  readonly name: string | null;
  readonly box_id: BoxId;
  readonly incarnation: number;
  readonly entries: number;
  readonly anchors: number;
  readonly last_anchor: string | null;
  readonly last_anchor_position: number;
  readonly entries_since_last_anchor: number;
  /** The tokens of the last model call recorded near the head, by a turn or by an imported `run` event. Null when there is none. */
  readonly last_token_usage: number | null;
}

/** A choice of entries by kind. */
export interface KindsOption {
  /** Kinds of entries, or of imported lines. An empty list means all kinds. */
  readonly kinds?: readonly string[];
}

export interface MessagesOptions extends Pick<TapeMessagesOptions, 'strictBub'> {
  /** The entries to use: those after the last anchor (default), those after the latest anchor of a name, or all (null). */
  readonly anchor?: AnchorSelector | undefined;
  /** Chooses or rewrites the entries: for compaction, summaries, retrieval. Hidden entries are not included. */
  readonly select?: (
    records: readonly TapeRecord[],
  ) => readonly TapeRecord[] | Promise<readonly TapeRecord[]>;
}

export interface SearchOptions {
  /** Default `message` and `tool_result`; an empty list means all kinds. */
  readonly kinds?: readonly string[] | undefined;
  /** ISO dates, inclusive. */
  readonly start?: string | undefined;
  readonly end?: string | undefined;
  /** Default 20, at most 500. */
  readonly limit?: number | undefined;
}

export const DEFAULT_MATCHES = 20;
export const MAX_MATCHES = 500;
export const DEFAULT_ANCHORS = 20;
export const MAX_ANCHORS = 500;

export interface EntryOptions {
  /** Additional data. `context: false` hides the entry from readers that build messages. */
  readonly meta?: JsonObject;
  /** The turn and step that write it. */
  readonly turnId?: TurnId;
  readonly step?: number;
}
