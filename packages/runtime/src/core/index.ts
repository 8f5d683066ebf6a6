export type { Ends, QueueToolCalls, RuntimeCore } from './core.js';
export {
  type Accepted,
  type Begun,
  DEFAULT_WAIT_SECONDS,
  type DoorOptions,
  type Opened,
  type SubmitOptions,
} from './submit-options.js';
