export { BOOTSTRAP_EVENT, bootstrapEntries } from './bootstrap-entries.js';
export { type Build, THIS_BUILD } from './build.js';
export { afterTransaction, CallerTransaction, type CallerTx, toQueryable } from './caller-transaction.js';
export {
  causeIn,
  type DeadLetter,
  findBlockedJob,
  findNoted,
  forgetSettledFailures,
  IS_OF_STEP,
  listDeadLetters,
  listOf,
  lostCause,
  MAX_TRIES,
  mayRun,
  NOT_GIVEN_UP,
  NOTE_TEXT,
  type NotedFailure,
  type NoteOptions,
  noteSweepFailure,
  noteWithin,
  notSetAside,
  retryDeadLetters,
  type SweepFailure,
  settledFailure,
  UNENDED,
} from './dead-letters.js';
export {
  type ListPage,
  type ListPlace,
  type ListScope,
  loadPage,
  NO_SCAN,
  newestFirst,
  onlyBy,
  SCANNED,
  toPattern,
  Values,
  Window,
} from './list-page.js';
export { findNotifyRefusal, findSessionMaker } from './notify-rights.js';
export { hasQueueTables } from './queue-tables.js';
export {
  CARD_COLUMNS,
  CARD_READ,
  CARD_TARGET,
  CARD_VALUES,
  type CardRow,
  cardRecord,
  contextBoxRecord,
  PACKED_CARD_BYTES,
  PACKED_CARD_READ,
  readCard,
  VIEWED_CARD_BYTES,
  VIEWED_CARD_READ,
} from './records.js';
export {
  ACCESS,
  grantOf,
  HELD,
  KNOWS_END,
  OWNS,
  onceReadable,
  owns,
  type PartReader,
  READABLE,
  READS,
  readsAll,
  readsEntry,
  WRITTEN_BOXES,
  wroteFor,
} from './rights.js';
export { parseRung, RUNG_CHANNEL, RUNG_PAYLOAD, rungChannel } from './rung-channel.js';
export { sessionExpiry } from './session-times.js';
export { grantWorkerRights, readMissingRights } from './worker-rights.js';
