/** What is asked of a tape, and what it answers. */
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

/** A tape by its name, or the one of an agent (id or name), of a session in a workspace, or a box. */
export type TapeTarget = string | { readonly agent: string } | { readonly box: string } | SessionAddress;

/** What a model, a program or a command line calls a tape: a session, the id of its box, else its name. */
export function toTarget(tape: string | SessionAddress): TapeTarget {
  if (typeof tape !== 'string') return tape;
  const box = tryParseId<'box'>(tape);
  return box === undefined ? tape : { box };
}

export interface AppendOptions {
  /** The head that was read: when there is more, nothing is appended (`tape_conflict`). */
  readonly expectedHead?: number | undefined;
  /** Names this append: the same again appends nothing and gives the same answer. */
  readonly dedupKey?: string | undefined;
}

export interface Appended {
  /** Positions of the first and last entry. */
  readonly first: number;
  readonly last: number;
  /** True when another append had been made before under its key. */
  readonly isRepeated: boolean;
  /** What to mend about the entries: they hold secrets, for example. */
  readonly warnings?: readonly string[];
}

export interface HandoffOptions extends AppendOptions, EntryOptions {
  /** What is handed over: the view shows it first from then on. */
  readonly state?: JsonValue;
}

export interface Handoff {
  readonly anchor: number;
  readonly event: number;
  /** The anchor and its event, as readers get them; of a repetition those that were made first. */
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
  /** Default 20, 500 at most. */
  readonly limit?: number | undefined;
  /** Only anchors before this position. Default: all. */
  readonly before?: number | undefined;
}

/** A part of the anchors of a tape. */
export interface AnchorsPage {
  /** In the order of the tape. */
  readonly anchors: readonly AnchorSummary[];
  /** The position before which the next page ends; null when no anchor is before these. */
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
  /** Of the last model call that was recorded near the head, by a turn or by an imported `run` event; null when there is none. */
  readonly last_token_usage: number | null;
}

export interface KindsOption {
  /** Of entries, or of imported lines. None: all. */
  readonly kinds?: readonly string[];
}

export interface MessagesOptions extends Pick<TapeMessagesOptions, 'strictBub'> {
  /** Which entries: those after the last anchor (default), after the latest of a name, or all (null). */
  readonly anchor?: AnchorSelector | undefined;
  /** Chooses or makes entries of them: for compaction, summaries, retrieval. Hidden ones are not among them. */
  readonly select?: (
    records: readonly TapeRecord[],
  ) => readonly TapeRecord[] | Promise<readonly TapeRecord[]>;
}

export interface SearchOptions {
  /** Default `message` and `tool_result`; none: all. */
  readonly kinds?: readonly string[] | undefined;
  /** ISO dates, inclusive. */
  readonly start?: string | undefined;
  readonly end?: string | undefined;
  /** Default 20, 500 at most. */
  readonly limit?: number | undefined;
}

export const DEFAULT_MATCHES = 20;
export const MAX_MATCHES = 500;
export const DEFAULT_ANCHORS = 20;
export const MAX_ANCHORS = 500;

export interface EntryOptions {
  /** Said besides; `context: false` hides the entry from readers that make messages. */
  readonly meta?: JsonObject;
  /** The turn and step that write it. */
  readonly turnId?: TurnId;
  readonly step?: number;
}
