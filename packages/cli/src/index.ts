export {
  type Boxcar,
  type Config,
  declareEnvironmentSecrets,
  openStack,
  parseConfig,
  reportError,
  type Stack,
  type StackOptions,
  type StartOptions,
  startBoxcar,
} from '@boxcar/host';
export { type CliOptions, runCli } from './run-cli.js';
