/** The server, and what a process opens on it. What a case needs is loaded in that case. */
export { type DatabaseWait, untilReachable } from './database-wait.js';
export { migrateServer, openServer, openStack, type Server, type Stack, type StackOptions } from './stack.js';
