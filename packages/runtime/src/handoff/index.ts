export type { AgentContext, AgentFunction, AgentRunner } from './agents.js';
export { waitForHandoff } from './hand-off.js';
export { handoffForm, handoffPrimitive } from './handoff-primitive.js';
export {
  checkHandoffOptions,
  type HandoffPage,
  HandoffTool,
  type HandoffToolOptions,
  type ListHandoffsOptions,
  listHandoffPage,
} from './handoff-tool.js';
export type { HandoffAnswer, HandoffInput } from './handoff-types.js';
export { AGDDHandoffAdapter, type NativeAdapterOptions, NativeHandoffAdapter } from './native-adapter.js';
export { HandoffParts, type HandoffSettings } from './parts.js';
export {
  checkWebhookOptions,
  type ListWebhooksOptions,
  listWebhookPage,
  retryWebhook,
  type WebhookPage,
} from './webhook-lists.js';
