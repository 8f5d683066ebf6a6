/** Entries in stored form: entries of a test tape, and entries that an import appends. */
import type { JsonObject } from '../base/json.js';
import { parseTapeLines } from '../bub/tape-jsonl.js';
import type { EntryDraft, StoredEntry } from '../tape/record.js';
import type { TapeEntry } from '../tape/tape.js';
import { OTHER, testId } from './view-rows.js';

export const CREATED_AT = '2026-02-21T12:00:00.5Z';

export const stored = (entry: TapeEntry, meta: JsonObject | null = null): StoredEntry => ({
  ...entry,
  meta,
  createdAt: CREATED_AT,
});

const appended = (drafts: readonly EntryDraft[]): readonly StoredEntry[] =>
  drafts.map(({ kind, card, payload, anchorName, meta }, index) => ({
    position: index + 1,
    kind,
    card:
      card === null
        ? null
        : {
            id: testId('card', index + 1),
            type: card.type,
            role: card.role ?? null,
            content: card.content,
            metadata: card.metadata ?? {},
            authorId: OTHER,
            toolCallId: null,
          },
    payload,
    anchorName,
    turnId: null,
    step: null,
    meta,
    createdAt: CREATED_AT,
  }));

/** The entries that an import of this text appends. Call ids are `k1`, `k2`, … in order. */
export function imported(text: string): readonly StoredEntry[] {
  let count = 0;
  const newCallId = (): string => {
    count += 1;
    return `k${count}`;
  };
  return appended(parseTapeLines(text, { newCallId }).flatMap(({ drafts }) => drafts));
}
