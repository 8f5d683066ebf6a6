/** How entries become chat messages, in the shape of OpenAI's: the seed's mapping. A turn's own prompt is `buildView`'s. */
import type { JsonObject } from './json.js';
import type { TapeRecord } from './tape-record.js';

/** `{role, content, tool_calls?}` or `{role: 'tool', content, tool_call_id?, name?}`, members in this order. */
export type ChatMessage = JsonObject;

export interface TapeMessagesOptions {
  /**
   * To the byte what the original makes of the same entries, its defects included: the anchor before the slice is not
   * shown, results are paired by position alone. Default false.
   */
  readonly strictBub?: boolean;
  /** The anchor the slice begins behind; its state comes first. */
  readonly anchor?: TapeRecord | null;
}

/** @param records - In the seed's form, see `toRecords`. Those with `meta.context === false` are left out. */
export function tapeMessages(
  _records: readonly TapeRecord[],
  _options: TapeMessagesOptions = {},
): readonly ChatMessage[] {
  throw new Error('not yet');
}
