export { findHandoffSession, type HandoffSession } from './handoff-sessions.js';
export { countHandoffSessions, listHandoffSessions } from './list-sessions.js';
export {
  findNewestPackage,
  findSessionPackage,
  movePackage,
  type PackageMove,
  type SessionPackage,
} from './packages.js';
export { findRecentEntries, loadContext, loadSessionEdges } from './read-session.js';
export {
  type NewContextEntry,
  type RegisterResult,
  registerSession,
  type SessionWrite,
  type SessionWriteResult,
  type Written,
  writeSession,
  writeSessionWithin,
} from './write-session.js';
