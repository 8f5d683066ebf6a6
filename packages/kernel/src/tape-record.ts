/**
 * A tape entry in the seed's form: what queries answer, what becomes chat messages, what a line of an exported file holds.
 * Our `position` is the seed's `id`.
 */
import type { CardDraft } from './card.js';
import type { JsonObject, JsonValue } from './json.js';
import type { EntryKind, TapeEntry } from './tape.js';

export interface TapeRecord {
  readonly position: number;
  /** One of `ENTRY_KINDS`; imported lines may name others. */
  readonly kind: string;
  /** By kind: the chat message, `{content}`, `{name, state?}`, `{calls}`, `{results}`, `{kind, message, details?}`, `{name, data?}`. */
  readonly payload: JsonObject;
  /** `run_id` (the turn) and `step`; for results also `tool_call_ids`. What `append` or an imported line said besides. */
  readonly meta: JsonObject;
  /** ISO 8601. Null: a line without a date, which counts as 1970-01-01. */
  readonly date: string | null;
  /** The text of the imported line, when this record is that whole line. */
  readonly line?: string | undefined;
}

/** An entry as it is stored, with what only its record shows. */
export interface StoredEntry extends TapeEntry {
  readonly meta: JsonObject | null;
  readonly createdAt: Date | string;
}

/** What is appended for one entry; the store adds position, author and ids. */
export interface EntryDraft {
  readonly kind: EntryKind;
  /** Null for events alone. */
  readonly card: Omit<CardDraft, 'authorId'> | null;
  /** Events only: `{ name, data }`. */
  readonly payload: JsonObject | null;
  readonly anchorName: string | null;
  readonly meta: JsonObject | null;
}

/** One record for each entry: `position` and order are the entries'. */
export function toRecord(_entry: StoredEntry): TapeRecord {
  throw new Error('not yet');
}

/**
 * One record for each line of the seed's form: the calls of one step make one record, so do its results, and what came from
 * one imported line is that line again. A record has the position of its first entry.
 */
export function toRecords(_entries: readonly StoredEntry[]): readonly TapeRecord[] {
  throw new Error('not yet');
}

/** The state of an anchor's record; null when it has none. */
export function anchorState(_record: TapeRecord): JsonValue {
  throw new Error('not yet');
}
