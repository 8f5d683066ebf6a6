export { accept } from './accept.js';
export { findNamedTarget } from './named-target.js';
export { parseSubmission, readInput } from './parse.js';
export { warnAgain } from './receipt.js';
export { resolveSessions } from './session-agents.js';
export { nameOfSession } from './session-name.js';
export { writeHere } from './write-here.js';
