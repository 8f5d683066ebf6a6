/** What a loopback server needs to know of a provider's wire format. */
import type { Message } from '@boxcar/kernel';

/** What the model on the server says, in no provider's words. */
export interface ServerAnswer {
  readonly text?: string;
  readonly reasoning?: string;
  readonly calls?: readonly { readonly id: string; readonly name: string; readonly arguments: string }[];
  /** Default: follows from the rest. */
  readonly finish?: 'stop' | 'tool_calls' | 'length' | 'content_filter';
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

/** A request's prompt as the server understood it. */
export interface ReadPrompt {
  readonly model: string;
  readonly messages: readonly Message[];
  readonly tools: readonly { readonly name: string; readonly parameters: unknown }[];
  readonly toolChoice: string | undefined;
  readonly isStreaming: boolean;
}

export interface WireError {
  readonly message: string;
  readonly type?: string;
  readonly code?: string;
}

export interface Wire {
  /** The prefix of the models it serves. */
  readonly provider: 'openai' | 'anthropic' | 'openai-compatible';
  readonly path: string;
  /** The header that carries the key, and what stands before it. */
  readonly keyHeader: readonly [name: string, prefix: string];
  /** Reads a body as strictly as the provider does. @throws Error naming what it would refuse. */
  read(body: unknown): ReadPrompt;
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
