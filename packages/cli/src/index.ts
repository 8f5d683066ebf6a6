export { type Config, parseConfig } from './config.js';
export { declareEnvironmentSecrets } from './environment.js';
export { reportError } from './report-error.js';
export { type CliOptions, runCli } from './run-cli.js';
export { openStack, type Stack, type StackOptions } from './stack.js';
export { type Boxcar, type StartOptions, startBoxcar } from './start-boxcar.js';
