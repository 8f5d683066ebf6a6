export { onPool, type TapeConnection, untilAborted } from './connection.js';
export { systemEntry, toContextEntries } from './context-entries.js';
export { type EntryInput, toNewEntry, toNewHandoff } from './entry-input.js';
export type { TapeFolder } from './export-tape.js';
export { type ForkOptions, type ForkSummary, TapeFork } from './fork.js';
export type { ForkedSession, ForkSessionOptions } from './fork-session.js';
export type { ImportedTape } from './import-key.js';
export type { TapeFile, TapeSource } from './import-source.js';
export { type ImportOptions, importTape } from './import-tape.js';
export { openTape, type TapeOptions } from './open-tape.js';
export type { RecordsPage } from './read-tape.js';
export type { FoundMatches, TapeMatch } from './search-tape.js';
export { SessionGraph, type SessionMetadata, type SessionScope } from './session-graph.js';
export { Tape } from './tape.js';
export { toAppendError } from './tape-errors.js';
export {
  type FoundPlace,
  findTapeHead,
  findTapeRef,
  type ResolvedTapeRef,
  resolveTapeRef,
} from './tape-ref.js';
export {
  type AnchorSummary,
  type AnchorsOptions,
  type AnchorsPage,
  type Appended,
  type AppendOptions,
  DEFAULT_ANCHORS,
  DEFAULT_MATCHES,
  type EntryOptions,
  type Handoff,
  type HandoffOptions,
  type KindsOption,
  type MessagesOptions,
  type SearchOptions,
  type TapeInfo,
  type TapeTarget,
  toTarget,
} from './tape-types.js';
