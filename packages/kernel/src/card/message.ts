import type { JsonValue } from '../base/index.js';
import type { ProviderData } from './provider-data.js';

/** A tool call as a model sees it in its own history. It has the kernel's id, so it is unique in any prompt. */
export interface MessageToolCall {
  readonly id: string;
  readonly name: string;
  readonly arguments: JsonValue;
}

/** The neutral form of a prompt; adapters translate it to a provider's wire format. */
export type Message =
  | { readonly role: 'system'; readonly content: string }
  | { readonly role: 'user'; readonly content: string }
  | {
      readonly role: 'assistant';
      readonly content: string;
      readonly toolCalls?: readonly MessageToolCall[];
      /** The provider's attachment to this answer; present only when the reading model also gave the answer. */
      readonly provider?: ProviderData;
    }
  | {
      readonly role: 'tool';
      readonly toolCallId: string;
      readonly name: string;
      readonly content: string;
      readonly isError: boolean;
    };

/** A tool in the form that is offered to a model; `parameters` is a JSON schema of an object. */
export interface ToolSchema {
  readonly name: string;
  readonly description: string;
  readonly parameters: JsonValue;
}
