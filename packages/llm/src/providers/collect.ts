/** The parts of an answer, streamed or whole, as one reply of the port. */
import type {
  LanguageModelV3Content,
  LanguageModelV3FinishReason,
  LanguageModelV3StreamPart,
  LanguageModelV3Usage,
} from '@ai-sdk/provider';
import type { ModelReply, ModelToolCall } from '@boxcar/kernel';
import type { ToolNames } from './tool-names.js';
import { toUsage } from './usage.js';

/** An error inside a stream, as the provider sent it. */
export class StreamError extends Error {
  override readonly name = 'StreamError';
}

/** A stream that ended before its end. */
export class CutOff extends Error {
  override readonly name = 'CutOff';
}

export interface Answer {
  readonly text: string;
  readonly reasoning: string;
  readonly calls: readonly ModelToolCall[];
  readonly usage: LanguageModelV3Usage;
  readonly finish: LanguageModelV3FinishReason;
}

class Collector {
  #text = '';
  readonly #reasoning: string[] = [];
  readonly #calls: ModelToolCall[] = [];

  add(part: LanguageModelV3Content | LanguageModelV3StreamPart): void {
    switch (part.type) {
      case 'text':
        this.#text += part.text;
        break;
      case 'text-delta':
        this.#text += part.delta;
        break;
      case 'reasoning':
        this.#reasoning.push(part.text);
        break;
      case 'reasoning-start':
        this.#reasoning.push('');
        break;
      case 'reasoning-delta':
        this.#reasoning.push(`${this.#reasoning.pop() ?? ''}${part.delta}`);
        break;
      case 'tool-call':
        // What providers run themselves is none of ours; nothing here asks for it.
        if (part.providerExecuted === true) break;
        this.#calls.push({ id: part.toolCallId, name: part.toolName, arguments: part.input });
        break;
      default:
        break;
    }
  }

  end(usage: LanguageModelV3Usage, finish: LanguageModelV3FinishReason): Answer {
    const reasoning = this.#reasoning.filter((part) => part !== '').join('\n\n');
    return { text: this.#text, reasoning, calls: this.#calls, usage, finish };
  }
}

/** @throws StreamError for an error in it, CutOff when it has no end, and what reading it throws. */
export async function collectStream(stream: ReadableStream<LanguageModelV3StreamPart>): Promise<Answer> {
  const collector = new Collector();
  let end: Answer | undefined;
  for await (const part of stream) {
    if (part.type === 'error') throw new StreamError('the stream holds an error', { cause: part.error });
    if (part.type === 'finish') end = collector.end(part.usage, part.finishReason);
    else collector.add(part);
  }
  // The SDK makes up an end with neither reason nor word of the provider when the last event did not come; `error` is
  // that of an answer which the provider gave up without saying why.
  const { unified = 'error', raw } = end?.finish ?? {};
  const hasEnd = unified !== 'error' && (unified !== 'other' || raw !== undefined);
  if (end === undefined || !hasEnd) throw new CutOff('the stream ended before the answer did');
  return end;
}

export function collectContent(result: {
  readonly content: readonly LanguageModelV3Content[];
  readonly usage: LanguageModelV3Usage;
  readonly finishReason: LanguageModelV3FinishReason;
}): Answer {
  const collector = new Collector();
  for (const part of result.content) collector.add(part);
  return collector.end(result.usage, result.finishReason);
}

function finishReasonOf({ finish, calls }: Answer): ModelReply['finishReason'] {
  switch (finish.unified) {
    case 'stop':
      // Some servers say so beside calls.
      return calls.length > 0 ? 'tool_calls' : 'stop';
    case 'tool-calls':
      return 'tool_calls';
    case 'content-filter':
      return 'content_filter';
    case 'length':
      return 'length';
    default:
      return 'other';
  }
}

function bytesOf({ text, reasoning, calls }: Answer): number {
  const words = [text, reasoning, ...calls.map((call) => call.name + call.arguments)];
  return words.reduce((sum, part) => sum + Buffer.byteLength(part), 0);
}

/** The reply with our names for its tools. Arguments stay text; none at all are the empty object that is meant. */
export function toReply(answer: Answer, names: ToolNames, sentBytes: number): ModelReply {
  return {
    text: answer.text,
    ...(answer.reasoning === '' ? {} : { reasoning: answer.reasoning }),
    toolCalls: answer.calls.map((call) => ({
      id: call.id,
      name: names.fromWire(call.name),
      arguments: call.arguments.trim() === '' ? '{}' : call.arguments,
    })),
    usage: toUsage(answer.usage, { sentBytes, answerBytes: bytesOf(answer) }),
    finishReason: finishReasonOf(answer),
  };
}
