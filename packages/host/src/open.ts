/** The server, and the connections that a process opens to it. Packages that only some cases need are loaded by those cases. */
export { type DatabaseWait, untilReachable } from './database-wait.js';
export {
  migrateServer,
  openServer,
  openStack,
  type Server,
  type ServerConfig,
  type Stack,
  type StackOptions,
} from './stack.js';
