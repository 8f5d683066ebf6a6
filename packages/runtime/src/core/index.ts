export type { CallGateOptions, Ends, QueueToolCalls, RuntimeCore } from './core.js';
export {
  type Accepted,
  type Caller,
  DEFAULT_WAIT_SECONDS,
  type InnerSubmitOptions,
  type ParsedSubmission,
  type SubmitOptions,
} from './submit-options.js';
