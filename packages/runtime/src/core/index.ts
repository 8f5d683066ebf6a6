export { claimOf, joinAlong } from './along.js';
export type { CallGateOptions, Ends, LocalWorker, QueueToolCalls, Reservation, RuntimeCore } from './core.js';
export {
  CHAIN_TARGET,
  CHAIN_TOOL,
  HANDOFF_TARGET,
  type Handoffs,
  type PackedHandoff,
  type PreparedHandoff,
  type QuestionOptions,
  type ServedResult,
} from './handoffs.js';
export {
  type Accepted,
  type Caller,
  DEFAULT_WAIT_SECONDS,
  type InnerSubmitOptions,
  type ParsedSubmission,
  type SubmitOptions,
} from './submit-options.js';
export type { Webhooks } from './webhooks.js';
