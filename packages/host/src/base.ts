/** The parts that a program needs from its first line: the environment, stray calls, plain text. This module loads almost nothing else. */
export {
  childEnvironment,
  declareEnvironmentSecrets,
  type Environment,
  processEnvironment,
} from './environment.js';
export { cut, toLine, toPlain, widthOf } from './plain-text.js';
export { strayCalls } from './stray-calls.js';
