export { findHandoffSession, type HandoffSession } from './handoff-sessions.js';
export { countHandoffSessions, listHandoffSessions, type SessionFilters } from './list-sessions.js';
export { type ContextEntry, type ContextPage, loadContext, loadSessionEdges } from './read-session.js';
export {
  type NewContextEntry,
  type NewHandoffSession,
  type RegisterResult,
  registerSession,
  type SessionWrite,
  type SessionWriteResult,
  type Written,
  type WrittenEntry,
  writeSession,
} from './write-session.js';
