/**
 * The seed's files: `tape/main.jsonl`, `manifest.json`, `session_graph.jsonl`. Texts in, plain data out, and back.
 *
 * J1  A line that was imported is exported byte for byte.
 * J2  A file is read as a whole or not at all: the first broken line is named by its number.
 */
import type { StoredEntry, EntryDraft, TapeRecord } from './tape-record.js';

/** One line of a tape file and what is appended for it: one entry, or one for each of its calls or results. */
export interface TapeLine {
  /** As it stands in the file, without its end of line. */
  readonly text: string;
  readonly record: TapeRecord;
  readonly drafts: readonly EntryDraft[];
}

/**
 * @param options.newCallId - Ids for the calls, which need one of their own in any prompt; the line's stays beside it.
 * @throws KernelError `bad_request` with `details.line`, from 1.
 */
export function parseTapeLines(_text: string, _options: { readonly newCallId: () => string }): readonly TapeLine[] {
  throw new Error('not yet');
}

/** The text of a tape file, each line with its end. Ids are those of imported lines, and go on by one behind them. */
export function formatTapeLines(_entries: readonly StoredEntry[]): string {
  throw new Error('not yet');
}

export interface ManifestTape {
  /** The name of the tape. */
  readonly id: string;
  /** Relative to the folder of the manifest. */
  readonly file: string;
  readonly head_id: number;
  /** Where it was forked from; null for a tape of its own. */
  readonly parent: { readonly tape: string; readonly entry: number } | null;
  /** The latest entry of each anchor name. */
  readonly anchors: Readonly<Record<string, number>>;
  readonly archived: boolean;
}

export interface TapeFolderManifest {
  readonly version: 1;
  readonly tapes: readonly ManifestTape[];
}

export function formatManifest(_manifest: TapeFolderManifest): string {
  throw new Error('not yet');
}

/** @throws KernelError `bad_request` naming the field. */
export function parseManifest(_text: string): TapeFolderManifest {
  throw new Error('not yet');
}

/** One line of the session graph; of several for one session the last counts. */
export interface SessionLine {
  readonly session_id: string;
  readonly parent_session_id: string | null;
  readonly from_anchor: string | null;
  readonly created_at: string | null;
  readonly status: string;
}

/** The text of a session graph file, each line with its end. */
export function formatSessionGraph(_sessions: readonly SessionLine[]): string {
  throw new Error('not yet');
}

/** The sessions in the order in which they were first named. @throws KernelError `bad_request` with `details.line`. */
export function parseSessionGraph(_text: string): readonly SessionLine[] {
  throw new Error('not yet');
}
