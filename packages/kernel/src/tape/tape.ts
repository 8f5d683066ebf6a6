import { createHash } from 'node:crypto';
import type { JsonValue, TurnId } from '../base/index.js';
import type { Card } from '../card/index.js';

export const ENTRY_KINDS = [
  'message',
  'system',
  'anchor',
  'tool_call',
  'tool_result',
  'error',
  'event',
] as const;
export type EntryKind = (typeof ENTRY_KINDS)[number];

/** The anchor with which every tape begins, at position 1; its event is at position 2. */
export const BOOTSTRAP_ANCHOR = 'session/start';
export const BOOTSTRAP_STATE = { owner: 'human' } as const;
export const BOOTSTRAP_LENGTH = 2;

/** The event that opens a turn on its tape: `{ name: 'turn.started', data: { turn_id, context_box_id, steps_left? } }`. */
export const TURN_STARTED = 'turn.started';

/** An entry as a view reads it: a position on a tape, and the card at that position (events have a payload instead). */
export interface TapeEntry {
  readonly position: number;
  readonly kind: EntryKind;
  readonly card: Card | null;
  readonly payload: JsonValue | null;
  readonly anchorName: string | null;
  /** The turn and step that wrote the entry; null for entries from outside any turn. */
  readonly turnId: TurnId | null;
  readonly step: number | null;
}

/** The name of a tape: md5(workspace)[0:16] + `__` + md5(session)[0:16]. */
export function tapeName(workspace: string, session: string): string {
  const part = (text: string): string => createHash('md5').update(text).digest('hex').slice(0, 16);
  return `${part(workspace)}__${part(session)}`;
}
