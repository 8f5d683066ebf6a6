export type { AgentContext, AgentFunction, AgentRunner } from './agents.js';
export { chainForm } from './chain-primitives.js';
export { handoffsOfRoot, waitForHandoff } from './hand-off.js';
export { handoffHandlers, handoffModels } from './handlers.js';
export { handoffForm } from './handoff-primitive.js';
export {
  checkHandoffOptions,
  type HandoffPage,
  HandoffTool,
  type HandoffToolOptions,
  type ListHandoffsOptions,
  listHandoffPage,
} from './handoff-tool.js';
export type {
  ChainHopInput,
  ChainInput,
  ChainOptions,
  HandoffAnswer,
  HandoffInput,
} from './handoff-types.js';
export { messagesOf, type ReplyOptions, replyTo } from './messages.js';
export { AGDDHandoffAdapter, type NativeAdapterOptions, NativeHandoffAdapter } from './native-adapter.js';
export { HandoffParts, type HandoffSettings } from './parts.js';
export {
  checkWebhookOptions,
  type ListWebhooksOptions,
  listWebhookPage,
  retryWebhook,
  type WebhookPage,
} from './webhook-lists.js';
