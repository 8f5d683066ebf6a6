/** What a program needs from its first line: the environment, stray calls, plain text. It loads next to nothing. */
export {
  childEnvironment,
  declareEnvironmentSecrets,
  type Environment,
  processEnvironment,
} from './environment.js';
export { cut, toLine, toPlain, widthOf } from './plain-text.js';
export { strayCalls } from './stray-calls.js';
