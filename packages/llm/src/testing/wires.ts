/** The wire formats of all providers, for tests that ask each of them. */
import type { Wire } from './wire.js';
import { anthropicWire } from './wire-anthropic.js';
import { chatWire, deepseekWire, openaiChatWire } from './wire-chat.js';
import { geminiWire } from './wire-gemini.js';
import { mistralWire } from './wire-mistral.js';
import { responsesWire } from './wire-responses.js';

export const WIRES: readonly Wire[] = [
  responsesWire,
  openaiChatWire,
  anthropicWire,
  geminiWire,
  mistralWire,
  deepseekWire,
  chatWire,
];
