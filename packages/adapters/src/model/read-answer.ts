/** Reads the stream of a model's answer to its end and emits parts while the answer is written. */
import type {
  LanguageModelV3FinishReason,
  LanguageModelV3StreamPart,
  LanguageModelV3Usage,
} from '@ai-sdk/provider';
import { findReportedUsage } from '@boxcar/llm/failures';
import type { AdapterUsage, ResultPart } from '../adapter.js';
import { usageFrom } from '../usage.js';
import type { ConcealedText } from '../wire/conceal.js';

/** An error inside a stream, as the platform sent it. */
export class StreamError extends Error {}

/** A stream that broke off before its last event. */
export class CutOff extends Error {}

/** The known part of an answer so far. */
export class AnswerReader {
  readonly #concealed: ConcealedText;
  readonly #onPart: (part: ResultPart) => void;
  readonly #onId: (id: string) => void;
  #text = '';
  #id: string | null = null;
  #usage: AdapterUsage | null = null;
  #finish: LanguageModelV3FinishReason | undefined;

  constructor(options: {
    readonly concealed: ConcealedText;
    readonly onPart: (part: ResultPart) => void;
    readonly onId: (id: string) => void;
  }) {
    this.#concealed = options.concealed;
    this.#onPart = options.onPart;
    this.#onId = options.onId;
  }

  get text(): string {
    return this.#text;
  }

  get id(): string | null {
    return this.#id;
  }

  /** The reported usage, also of an answer that broke off. */
  get usage(): AdapterUsage | null {
    return this.#usage;
  }

  /**
   * Reads the stream to its end.
   *
   * @returns Why the model stopped.
   * @throws StreamError for an error in the stream, CutOff when the stream has no end.
   */
  async read(stream: ReadableStream<LanguageModelV3StreamPart>): Promise<LanguageModelV3FinishReason> {
    for await (const part of stream) this.#take(part);
    this.#show(this.#concealed.end());
    const finish = this.#finish;
    // When the last event is missing, the SDK makes up an end.
    const isMadeUp = finish?.unified === 'other' && finish.raw === undefined;
    if (finish === undefined || isMadeUp || finish.unified === 'error' || finish.raw === 'error')
      throw new CutOff('the stream ended before the answer did');
    return finish;
  }

  #take(part: LanguageModelV3StreamPart): void {
    switch (part.type) {
      case 'response-metadata':
        if (part.id === undefined || this.#id !== null) return;
        this.#id = part.id;
        this.#onId(part.id);
        return;
      case 'text-delta':
        this.#show(this.#concealed.push(part.delta));
        return;
      case 'raw':
        this.#noteEarly(part.rawValue);
        return;
      case 'finish':
        this.#finish = part.finishReason;
        this.#noteUsage(part.usage);
        return;
      case 'error':
        throw new StreamError('the stream holds an error', { cause: part.error });
      default:
    }
  }

  #show(text: string): void {
    if (text === '') return;
    this.#text += text;
    this.#onPart({ type: 'text', text });
  }

  /** Anthropic reports the size of the prompt at the beginning; the figure is used when the answer breaks off. */
  #noteEarly(raw: unknown): void {
    const early = findReportedUsage(raw);
    if (early === undefined) return;
    this.#usage = usageFrom(early.inputTokens, early.outputTokens);
  }

  #noteUsage({ inputTokens: { total: input }, outputTokens: { total: output } }: LanguageModelV3Usage): void {
    if (input === undefined && output === undefined) return;
    this.#usage = usageFrom(input ?? 0, output ?? 0);
  }
}
