export {
  type AppendRequest,
  type AppendResult,
  appendEntries,
  appendWithin,
  entryRecords,
  type NewTapeEntry,
} from './appends.js';
export { withAsked } from './asked.js';
export {
  findAnchor,
  loadEntries,
  PAGE_BYTES,
  readEntries,
  readEntriesAt,
  type TapeEntryRow,
} from './entries.js';
export {
  appendStaged,
  archiveTape,
  beginImport,
  beginTape,
  endImport,
  findImport,
  type ImportKey,
  type KnownImport,
  loadFolderFacts,
  lockImport,
  openStage,
  stageEntries,
  type TapeFolderFacts,
} from './files.js';
export { discardFork, findLeftForks, leftForks, type MergeResult, mergeFork } from './fork-ends.js';
export {
  type ForkReceipt,
  type ForkRow,
  type ForkStatus,
  findCurrentTape,
  findFork,
  LINE,
  listForks,
  makeFork,
} from './forks.js';
export {
  closeHandoffNotice,
  dueHandoffNotices,
  findDueHandoffNotices,
  type HandoffNotice,
  loadHandoffNotice,
  tellHandoffEnd,
} from './handoff-notices.js';
export { countAnchors, loadTapeFacts } from './info.js';
export { findListedTape, type ListedTape, listTapes, listWorkspaceTapes } from './list.js';
export {
  closeNotice,
  dueNotices,
  findDueNotices,
  loadNotice,
  markTold,
  type Notice,
  passUnseen,
  tellEnd,
  UNREAD_CAUSES,
} from './notices.js';
export {
  findTapePlace,
  handOverTape,
  loadTapeSlice,
  lockGrants,
  lockTape,
  type TapePlace,
} from './refs.js';
export { type ResetRequest, type ResetResult, resetTape, resetWithin } from './reset.js';
export { makeSessionAgents, type SessionAgent } from './session-agents.js';
export {
  findSession,
  insertImportedSession,
  listChildSessions,
  listLineage,
  listSessions,
  makeSession,
  type Session,
  sessionIdOfTape,
  setSessionStatus,
} from './sessions.js';
export { createTape, findTape, type TapeActor, type TapeAddress, type TapeRow } from './tapes.js';
export { type EntryWords, findWords, insertWords, loadParts, type TapePart } from './words.js';
