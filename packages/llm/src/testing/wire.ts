/** What a loopback server needs to know of a provider's wire format. */
import { type Message, sha256 } from '@boxcar/kernel';

/** What the model on the server says, in no provider's words. */
export interface ServerAnswer {
  readonly text?: string;
  readonly reasoning?: string;
  /** Reasoning of which the API gives only a sealed form, where it has one. */
  readonly redacted?: string;
  readonly calls?: readonly { readonly id: string; readonly name: string; readonly arguments: string }[];
  /** Default: follows from the rest. */
  readonly finish?: 'stop' | 'tool_calls' | 'length' | 'content_filter';
  /** Words by which the model refuses, where the API has a place for them. */
  readonly refusal?: string;
  /** Default: figures that no test takes for estimates. `null`: the server says none. */
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

/** What a server knows of a request besides its body. */
export interface Seen {
  readonly path: string;
  /** The answers that this server has given. */
  readonly answers: readonly ServerAnswer[];
}

/** The answer that made a call, the last one when several did. */
export const answerOfCall = (answers: readonly ServerAnswer[], id: string): ServerAnswer | undefined =>
  answers.findLast((answer) => (answer.calls ?? []).some((call) => call.id === id));

/** What only the server can have made of these words: a signature, an encrypted form. */
export const sealOf = (words: string): string => `sealed-${sha256(words).slice(0, 24)}`;

/** A request's prompt as the server understood it. */
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
  /** Where its base URL ends. */
  readonly base: string;
  /** Behind the base; `generate` of Gemini has the model in it. */
  readonly path: string | RegExp;
  /** The header that carries the key, and what stands before it. */
  readonly keyHeader: readonly [name: string, prefix: string];
  /** Reads a body as strictly as the provider does. @throws Error naming what it would refuse. */
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

/** A text in up to three pieces, so that no reader gets away with looking at one. */
export function piecesOf(text: string): readonly string[] {
  const size = Math.max(1, Math.ceil(text.length / 3));
  const pieces: string[] = [];
  for (let start = 0; start < text.length; start += size) pieces.push(text.slice(start, start + size));
  return pieces;
}

export const finishOf = (answer: ServerAnswer): NonNullable<ServerAnswer['finish']> =>
  answer.finish ?? ((answer.calls ?? []).length > 0 ? 'tool_calls' : 'stop');
