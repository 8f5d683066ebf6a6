/** The facts about a provider's wire format that a loopback server needs. */
import { type Message, sha256 } from '@boxcar/kernel';

/** The answer of the model on the server, independent of any provider. */
export interface ServerAnswer {
  readonly text?: string;
  readonly reasoning?: string;
  /** Reasoning that the API gives only in sealed form, where it has such a form. */
  readonly redacted?: string;
  readonly calls?: readonly { readonly id: string; readonly name: string; readonly arguments: string }[];
  /** Default: derived from the other fields. */
  readonly finish?: 'stop' | 'tool_calls' | 'length' | 'content_filter';
  /** The text of a refusal, where the API has a place for it. */
  readonly refusal?: string;
  /** Default: figures that no test can mistake for estimates. `null`: the server reports none. */
  readonly usage?: ServerUsage | null;
}

export interface ServerUsage {
  readonly input: number;
  readonly output: number;
  readonly cached?: number;
  readonly cacheWrite?: number;
  readonly reasoning?: number;
}

export const DEFAULT_USAGE: ServerUsage = { input: 1234, output: 56 };

/** The server's information about a request in addition to the body. */
export interface Seen {
  readonly path: string;
  /** The answers that this server has given. */
  readonly answers: readonly ServerAnswer[];
}

/** The answer that made a call; the last of several such answers. */
export const answerOfCall = (answers: readonly ServerAnswer[], id: string): ServerAnswer | undefined =>
  answers.findLast((answer) => (answer.calls ?? []).some((call) => call.id === id));

/** A value that only the server can derive from the text: a signature, an encrypted form. */
export const sealOf = (words: string): string => `sealed-${sha256(words).slice(0, 24)}`;

/** A request's prompt as the server read it. */
export interface ReadPrompt {
  readonly model: string;
  readonly messages: readonly Message[];
  readonly tools: readonly { readonly name: string; readonly parameters: unknown }[];
  readonly toolChoice: string | undefined;
  readonly isStreaming: boolean;
}

export const PROVIDERS = [
  'openai',
  'openai-chat',
  'anthropic',
  'google',
  'mistral',
  'deepseek',
  'openai-compatible',
] as const;
export type ProviderName = (typeof PROVIDERS)[number];

export interface WireError {
  readonly message: string;
  readonly type?: string;
  readonly code?: string;
}

export interface Wire {
  /** The prefix of the models it serves. */
  readonly provider: ProviderName;
  /** The path at the end of the base URL. */
  readonly base: string;
  /** The path after the base; for Gemini's `generate` it contains the model. */
  readonly path: string | RegExp;
  /** The header that carries the key, and the prefix of its value. */
  readonly keyHeader: readonly [name: string, prefix: string];
  /** Reads a body as strictly as the provider does. @throws Error that names the fault. */
  read(body: unknown, seen: Seen): ReadPrompt;
  /** The frames of a streamed answer. */
  events(answer: ServerAnswer): readonly string[];
  whole(answer: ServerAnswer): unknown;
  /** An error as the body of a response and as a frame in a stream. */
  error(error: WireError): unknown;
  errorEvent(error: WireError): string;
}

export const frame = (data: unknown, event?: string): string =>
  `${event === undefined ? '' : `event: ${event}\n`}data: ${JSON.stringify(data)}\n\n`;

/** A text in up to three pieces, so that a reader that looks at only one piece fails. */
export function piecesOf(text: string): readonly string[] {
  const size = Math.max(1, Math.ceil(text.length / 3));
  const pieces: string[] = [];
  for (let start = 0; start < text.length; start += size) pieces.push(text.slice(start, start + size));
  return pieces;
}

export const finishOf = (answer: ServerAnswer): NonNullable<ServerAnswer['finish']> =>
  answer.finish ?? ((answer.calls ?? []).length > 0 ? 'tool_calls' : 'stop');
