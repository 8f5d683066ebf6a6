export { parseTapeDate, pythonDate } from './date.js';
export { type ChatMessage, type TapeMessagesOptions, tapeMessages } from './messages.js';
export {
  type AnchorSelector,
  anchorNotFound,
  buildTapeQuery,
  LAST_ANCHOR,
  matchesText,
  parseTapeQuery,
  selectRecords,
  type TapeQuery,
  type TapeQueryBuilder,
  type TapeSlice,
  toSlice,
} from './query.js';
export {
  anchorNameOf,
  anchorState,
  askedAsMessage,
  countSettled,
  type EntryDraft,
  type FileMark,
  type ImportMark,
  isDate,
  readRecord,
  type StoredEntry,
  startedContext,
  type TapeRecord,
  toRecord,
  toRecords,
} from './record.js';
export { formatTapeRef, parseTapeRef, type TapeRef } from './ref.js';
export { foldedWords, matchSearch, parseSearch, type TapeSearch, wordsOf } from './search.js';
export {
  type SessionAddress,
  type SessionRef,
  sessionAddressSchema,
  sessionRefSchema,
  sessionTapeName,
  workspacePrefix,
} from './session-address.js';
export {
  BOOTSTRAP_ANCHOR,
  BOOTSTRAP_STATE,
  ENTRY_KINDS,
  type EntryKind,
  type TapeEntry,
  TURN_STARTED,
  tapeName,
} from './tape.js';
export {
  anchorsText,
  handoffOf,
  handoffText,
  infoText,
  matchLine,
  searchText,
  TAPE_HANDOFF,
  type TapeAnchors,
  type TapeHandoff,
  type TapeSearchInput,
  tapeAnchorsSchema,
  tapeHandoffSchema,
  tapeInfoSchema,
  tapeResetSchema,
  tapeSearchSchema,
} from './tools.js';
