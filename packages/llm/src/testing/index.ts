/** Providers on loopback, for tests here and in packages that depend on this one. Not published. */
export {
  type Behave,
  type Behaviour,
  inOrder,
  openProviderServer,
  type ProviderServer,
  SERVER_KEY,
} from './provider-server.js';
export type { ReadPrompt, ServerAnswer, Wire } from './wire.js';
export { anthropicWire } from './wire-anthropic.js';
export { chatWire, deepseekWire, openaiChatWire } from './wire-chat.js';
export { geminiWire } from './wire-gemini.js';
export { mistralWire } from './wire-mistral.js';
export { responsesWire } from './wire-responses.js';
export { WIRES } from './wires.js';
