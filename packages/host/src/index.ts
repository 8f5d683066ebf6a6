export { type Config, parseConfig, settingSchemas } from './config.js';
export { type DatabaseWait, untilReachable } from './database-wait.js';
export { childEnvironment, declareEnvironmentSecrets, type Environment } from './environment.js';
export { detailsOf, errorLine } from './error-text.js';
export { createProcessLog } from './log.js';
export { describeError, reportError } from './report-error.js';
export {
  migrateServer,
  openServer,
  openStack,
  type Server,
  type ServerConfig,
  type Stack,
  type StackOptions,
} from './stack.js';
export { type Boxcar, type StartOptions, startBoxcar } from './start-boxcar.js';
export { strayCalls } from './stray-calls.js';
