export { accept, warnAgain } from './accept.js';
export { begin, readInput } from './opening.js';
export { resolveSessions } from './session-agents.js';
export { nameOfSession } from './session-name.js';
