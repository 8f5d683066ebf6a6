/** `@boxcar/adapters`: hands tasks over to the agents and models of other platforms. Rule: packages/adapters/README.md. */
export {
  type AdapterCapabilities,
  type AdapterRequest,
  type AdapterResult,
  type AdapterUsage,
  type AskedTask,
  CARRIED_KINDS,
  type CancelOptions,
  type CarriedKind,
  type ExecuteOptions,
  type HandoffAdapter,
  type LossReport,
  type LostCard,
  type PackedCard,
  type ResultPart,
} from './adapter.js';
export { AdapterError, adviseRetry, type RetryAdvice } from './adapter-error.js';
export { type ADKAdapterOptions, ADKHandoffAdapter } from './adk/adk-adapter.js';
export { type CarriedRequest, checkCapabilities, estimateRequest } from './capabilities.js';
export { type AdapterSettings, type Environment, readSettings } from './config.js';
export { lossOf } from './loss.js';
export { AnthropicHandoffAdapter, OpenAIHandoffAdapter } from './model/model-adapter.js';
export { AdapterRegistry } from './registry.js';
export {
  type AdkTarget,
  type CustomTarget,
  checkTargets,
  type ModelTarget,
  type ParseTargetsOptions,
  parseTargets,
  readTargetsFile,
  resolveTarget,
  type Target,
  type Targets,
} from './targets/index.js';
export { AddressRules } from './wire/private-address.js';
