/** Collects the parts of an answer, streamed or whole, into one reply of the port. */
import type {
  LanguageModelV3Content,
  LanguageModelV3FinishReason,
  LanguageModelV3StreamPart,
  LanguageModelV3Usage,
  SharedV3ProviderMetadata,
  SharedV3Warning,
} from '@ai-sdk/provider';
import type { JsonObject, ModelReply, ModelToolCall, ModelUsage, ProviderPart } from '@boxcar/kernel';
import { findProviderError } from './failure.js';
import { renameWritten } from './fit-schema.js';
import { mergeOptions } from './parts.js';
import type { WirePrompt } from './prompt.js';
import { readRaw } from './raw-chunk.js';
import { toUsage } from './usage.js';

/** An error inside a stream, as the provider sent it. */
export class StreamError extends Error {
  override readonly name = 'StreamError';
}

/** A stream that broke off before its last event. */
export class CutOff extends Error {
  override readonly name = 'CutOff';
}

export interface Answer {
  readonly text: string;
  readonly reasoning: string;
  readonly calls: readonly ModelToolCall[];
  /** The parts of the answer in order, with the data that the provider attached to them. */
  readonly parts: readonly ProviderPart[];
  /** The text of a refusal, where the provider sends it separately from the answer. */
  readonly refusal: string;
  readonly usage: LanguageModelV3Usage;
  readonly finish: LanguageModelV3FinishReason;
  /** The SDK's warnings about settings that it did not send as given. */
  readonly warnings: readonly SharedV3Warning[];
}

/** A part that is still being written. */
interface OpenPart {
  readonly kind: 'reasoning' | 'text' | 'call';
  readonly callId: string;
  text: string;
  options: JsonObject | undefined;
}

const toPart = ({ kind, callId, text, options }: OpenPart): ProviderPart => {
  const also = options === undefined ? {} : { options };
  switch (kind) {
    case 'reasoning':
      return { kind, text, ...also };
    case 'text':
      return { kind, length: text.length, ...also };
    case 'call':
      return { kind, id: callId, ...also };
    default:
      return kind satisfies never;
  }
};

class Collector {
  readonly #parts: OpenPart[] = [];
  readonly #byId = new Map<string, OpenPart>();
  readonly #calls: ModelToolCall[] = [];
  readonly #warnings: SharedV3Warning[] = [];
  #refusal = '';
  #isNamedOtherwise = false;

  add(part: LanguageModelV3Content | LanguageModelV3StreamPart): void {
    switch (part.type) {
      case 'text':
      case 'reasoning':
        this.#open(part.type, { text: part.text }).options = mergeOptions(undefined, part.providerMetadata);
        break;
      case 'text-start':
      case 'text-delta':
      case 'text-end':
        this.#extend('text', part);
        break;
      case 'reasoning-start':
      case 'reasoning-delta':
      case 'reasoning-end':
        this.#extend('reasoning', part);
        break;
      case 'tool-call': {
        // Tools that the provider runs itself are not the kernel's tools; no request asks for them.
        if (part.providerExecuted === true) break;
        this.#calls.push({ id: part.toolCallId, name: part.toolName, arguments: part.input });
        const call = this.#open('call', { callId: part.toolCallId });
        call.options = mergeOptions(undefined, part.providerMetadata);
        break;
      }
      case 'stream-start':
        this.#warnings.push(...part.warnings);
        break;
      case 'raw':
        this.#read(part.rawValue);
        break;
      default:
        break;
    }
  }

  /** Reads the data of chat completions that the SDK's provider leaves out. */
  #read(raw: unknown): void {
    const { refusal, isNamedOtherwise } = readRaw(raw);
    this.#refusal += refusal;
    this.#isNamedOtherwise ||= isNamedOtherwise;
  }

  #open(kind: OpenPart['kind'], { text = '', callId = '' }): OpenPart {
    const open: OpenPart = { kind, callId, text, options: undefined };
    this.#parts.push(open);
    return open;
  }

  /** The id of a part that has ended may be used again. */
  #extend(
    kind: 'reasoning' | 'text',
    part: {
      readonly type: string;
      readonly id: string;
      readonly delta?: string;
      readonly providerMetadata?: SharedV3ProviderMetadata;
    },
  ): void {
    const key = `${kind} ${part.id}`;
    const open = this.#byId.get(key) ?? this.#open(kind, {});
    this.#byId.set(key, open);
    open.text += part.delta ?? '';
    open.options = mergeOptions(open.options, part.providerMetadata);
    if (part.type.endsWith('-end')) this.#byId.delete(key);
  }

  end(
    usage: LanguageModelV3Usage,
    finish: LanguageModelV3FinishReason,
    more: { readonly warnings?: readonly SharedV3Warning[]; readonly body?: unknown } = {},
  ): Answer {
    this.#read(more.body);
    const textsOf = (kind: OpenPart['kind']): readonly string[] =>
      this.#parts.flatMap((part) => (part.kind === kind && part.text !== '' ? [part.text] : []));
    return {
      text: textsOf('text').join(''),
      reasoning: textsOf('reasoning').join('\n\n'),
      calls: this.#calls,
      // Servers that name the field `reasoning` refuse `reasoning_content`, the name under which the SDK would send it.
      parts: this.#parts
        .map(toPart)
        .filter((part) =>
          part.kind === 'text' ? part.length > 0 : part.kind === 'call' || !this.#isNamedOtherwise,
        ),
      refusal: this.#refusal,
      usage,
      finish,
      warnings: [...this.#warnings, ...(more.warnings ?? [])],
    };
  }
}

/** A finish that means an error: the provider gave the answer up without a reason. The SDK does not know all such values. */
const isGivenUp = ({ unified, raw }: LanguageModelV3FinishReason): boolean =>
  unified === 'error' || raw === 'error';

/** @throws StreamError for an error in the stream, CutOff when the stream has no end, and any error of reading it. */
export async function collectStream(
  stream: ReadableStream<LanguageModelV3StreamPart>,
  onText?: (text: string) => void,
): Promise<Answer> {
  const collector = new Collector();
  let end: Answer | undefined;
  for await (const part of stream) {
    if (part.type === 'error') throw new StreamError('the stream holds an error', { cause: part.error });
    if (part.type === 'finish') end = collector.end(part.usage, part.finishReason);
    else collector.add(part);
    if (part.type === 'text-delta' && part.delta !== '') onText?.(part.delta);
  }
  // When the last event is missing, the SDK makes up a finish with neither a reason nor the provider's own word.
  const isMadeUp = end?.finish.unified === 'other' && end.finish.raw === undefined;
  if (end === undefined || isMadeUp || isGivenUp(end.finish))
    throw new CutOff('the stream ended before the answer did');
  return end;
}

export function collectContent(result: {
  readonly content: readonly LanguageModelV3Content[];
  readonly usage: LanguageModelV3Usage;
  readonly finishReason: LanguageModelV3FinishReason;
  readonly warnings: readonly SharedV3Warning[];
  readonly response?: { readonly body?: unknown };
}): Answer {
  const collector = new Collector();
  for (const part of result.content) collector.add(part);
  const { usage, finishReason, warnings, response } = result;
  // A body in which the SDK's provider found neither an answer nor a finish reason.
  const isEmpty = result.content.length === 0 && finishReason.raw === undefined;
  if (isEmpty && finishReason.unified === 'other') {
    if (findProviderError(response?.body) === undefined) throw new CutOff('the body holds no answer');
    throw new StreamError('the body holds an error', { cause: response?.body });
  }
  if (isGivenUp(finishReason))
    throw new CutOff('the body holds a part of an answer', { cause: response?.body });
  return collector.end(usage, finishReason, { warnings, body: response?.body });
}

/** OpenAI reports a refusal as a completed answer, whose text is the text of the refusal. */
const COMPLETED: ReadonlySet<string | undefined> = new Set([undefined, 'stop']);

/**
 * The text of a refusal; empty for an answer that a filter emptied; undefined for an answer. An answer that a filter cut short counts as
 * an answer.
 */
export function refusalOf({ text, calls, finish, refusal }: Answer): string | undefined {
  if (refusal.trim() !== '') return refusal;
  if (finish.unified !== 'content-filter' || calls.length > 0) return undefined;
  return COMPLETED.has(finish.raw) || text.trim() === '' ? text.trim() : undefined;
}

function finishReasonOf({ finish, calls }: Answer): ModelReply['finishReason'] {
  switch (finish.unified) {
    case 'stop':
      // Some servers say `stop` although the answer has calls.
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

/** The size of the answer's text. Some of the SDK's providers repeat the text of a refusal in the answer's text. */
function bytesOf({ text, reasoning, refusal, calls }: Answer): number {
  const apart = text.endsWith(refusal) ? '' : refusal;
  const words = [text, reasoning, apart, ...calls.map((call) => call.name + call.arguments)];
  return words.reduce((sum, part) => sum + Buffer.byteLength(part), 0);
}

/** The usage of an answer, given the size of its request. */
export const usageOf = (answer: Answer, sentBytes: number): ModelUsage =>
  toUsage(answer.usage, { sentBytes, answerBytes: bytesOf(answer) });

/** A plain text without attached data needs no parts. */
const hasAttachments = ({ parts }: Answer): boolean =>
  parts.some(({ kind, options }) => kind !== 'text' || options !== undefined);

function wordsOf(warning: SharedV3Warning): string {
  if (warning.type === 'other') return warning.message;
  const { feature, details } = warning;
  return `${feature} is ${warning.type}${details === undefined ? '' : `: ${details}`}`;
}

/** The reply with the kernel's tool names. Arguments stay text; empty arguments become the empty object. */
export function toReply(
  answer: Answer,
  { names, members }: Pick<WirePrompt, 'names' | 'members'>,
  sentBytes: number,
): ModelReply {
  const written = (call: ModelToolCall): string =>
    renameWritten(call.arguments, members(names.fromWire(call.name)));
  return {
    text: answer.text,
    ...(answer.reasoning === '' ? {} : { reasoning: answer.reasoning }),
    ...(hasAttachments(answer) ? { providerParts: answer.parts } : {}),
    ...(answer.warnings.length === 0 ? {} : { warnings: answer.warnings.map(wordsOf) }),
    toolCalls: answer.calls.map((call) => ({
      id: call.id,
      name: names.fromWire(call.name),
      arguments: call.arguments.trim() === '' ? '{}' : written(call),
    })),
    usage: usageOf(answer, sentBytes),
    finishReason: finishReasonOf(answer),
  };
}
