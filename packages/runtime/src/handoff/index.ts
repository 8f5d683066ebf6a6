export type { AgentContext, AgentFunction, AgentRunner } from './agents.js';
export { cancelHandoff } from './cancel-handoff.js';
export { chainForm } from './chain-primitives.js';
export { readHandoffEnvironment } from './config.js';
export type { TaskOrigin } from './conversation-agent.js';
export { handoffsOfRoot, logRefused, waitForHandoff, waitForTurnOf } from './hand-off.js';
export {
  handSessionOn,
  type SessionContext,
  type SessionTarget,
} from './handed-session.js';
export { handoffHandlers, handoffModels } from './handlers.js';
export {
  checkHandoffOptions,
  type HandoffPage,
  type ListHandoffsOptions,
  listHandoffPage,
} from './handoff-lists.js';
export { failureOf, handoffForm, handoffPrimitive, makeHandoff } from './handoff-primitive.js';
export { type HandoffRuntime, HandoffTool, type HandoffToolOptions } from './handoff-tool.js';
export type {
  ChainHopInput,
  ChainInput,
  ChainOptions,
  HandoffAnswer,
  HandoffInput,
} from './handoff-types.js';
export { type KeyedReply, messagesOf, type ReplyOptions, replyTo } from './messages.js';
export { AGDDHandoffAdapter, type NativeAdapterOptions, NativeHandoffAdapter } from './native-adapter.js';
export { HandoffParts, type HandoffSettings } from './parts.js';
export { type StreamOptions, streamHandoff } from './stream-handoff.js';
export {
  checkWebhookOptions,
  type ListWebhooksOptions,
  listWebhookPage,
  retryWebhook,
  type WebhookPage,
} from './webhook-lists.js';
