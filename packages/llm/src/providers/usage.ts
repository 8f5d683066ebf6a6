/**
 * The usage of a call as far as it is known: the provider's report, else an estimate from the bytes that were sent and received. A failed
 * call is charged with it.
 */
import type { LanguageModelV3StreamPart, LanguageModelV3Usage } from '@ai-sdk/provider';
import { estimateTokens, type ModelUsage } from '@boxcar/kernel';
import { readRaw } from './raw-chunk.js';
import { findReportedUsage } from './reported-usage.js';

const bytesOf = (text: string): number => Buffer.byteLength(text);

/** Reads the parts of a stream as they pass. */
export class UsageMeter {
  #reported: LanguageModelV3Usage | undefined;
  #early: ModelUsage | undefined;
  #bytes = 0;
  readonly #hidesRefusals: boolean;

  /** @param hidesRefusals - The SDK's provider does not pass on the text of refusals. */
  constructor(hidesRefusals: boolean) {
    this.#hidesRefusals = hidesRefusals;
  }

  /** The usage that the provider reported at the end of its answer. */
  get reported(): LanguageModelV3Usage | undefined {
    return this.#reported;
  }

  /** The usage that the provider reported earlier: Anthropic at the beginning, Gemini in each event. */
  get early(): ModelUsage | undefined {
    return this.#early;
  }

  /** The bytes of the answer's text so far, including reasoning, calls and a refusal; the surrounding JSON does not count. */
  get answerBytes(): number {
    return this.#bytes;
  }

  watch(stream: ReadableStream<LanguageModelV3StreamPart>): ReadableStream<LanguageModelV3StreamPart> {
    return stream.pipeThrough(
      new TransformStream<LanguageModelV3StreamPart, LanguageModelV3StreamPart>({
        transform: (part, controller) => {
          this.#note(part);
          controller.enqueue(part);
        },
      }),
    );
  }

  #note(part: LanguageModelV3StreamPart): void {
    switch (part.type) {
      case 'text-delta':
      case 'reasoning-delta':
      case 'tool-input-delta':
        this.#bytes += bytesOf(part.delta);
        break;
      case 'tool-input-start':
        this.#bytes += bytesOf(part.toolName);
        break;
      case 'raw':
        this.#early = findReportedUsage(part.rawValue) ?? this.#early;
        if (this.#hidesRefusals) this.#bytes += bytesOf(readRaw(part.rawValue).refusal);
        break;
      case 'finish':
        this.#reported = part.usage;
        break;
      default:
        break;
    }
  }
}

/** Usage in the port's form; figures that were not reported are estimated. */
export function toUsage(
  { inputTokens: input, outputTokens: output }: LanguageModelV3Usage,
  seen: { readonly sentBytes: number; readonly answerBytes: number; readonly isCut?: boolean },
): ModelUsage {
  const hasInput = (input.total ?? 0) > 0;
  const estimated = estimateTokens(seen.answerBytes);
  // The figures of an answer that was cut may be from its beginning.
  const outputTokens =
    seen.isCut === true ? Math.max(output.total ?? 0, estimated) : (output.total ?? estimated);
  const isEstimated = !hasInput || outputTokens !== output.total;
  return {
    inputTokens: hasInput ? (input.total ?? 0) : estimateTokens(seen.sentBytes),
    outputTokens,
    ...(hasInput && input.cacheRead !== undefined ? { cachedInputTokens: input.cacheRead } : {}),
    ...(hasInput && input.cacheWrite !== undefined ? { cacheWriteTokens: input.cacheWrite } : {}),
    ...(hasInput && output.reasoning !== undefined ? { reasoningTokens: output.reasoning } : {}),
    ...(isEstimated ? { isEstimated: true } : {}),
  };
}

const NOTHING_REPORTED: LanguageModelV3Usage = {
  inputTokens: { total: undefined, noCache: undefined, cacheRead: undefined, cacheWrite: undefined },
  outputTokens: { total: undefined, text: undefined, reasoning: undefined },
};

/** The request had been sent when the connection broke: the provider may have worked on it. */
const SENT = new Set([
  'ECONNRESET',
  'EPIPE',
  'UND_ERR_SOCKET',
  'UND_ERR_HEADERS_TIMEOUT',
  'UND_ERR_BODY_TIMEOUT',
]);

/**
 * The usage of a failed call. Undefined when the call used nothing, because it was not sent or was refused.
 *
 * @param failed.reported - Usage reported next to the error.
 * @param failed.hasError - The provider gave a reason.
 * @param failed.receivedBytes - All received bytes, whatever their content.
 */
export function usageOfFailure(
  meter: UsageMeter,
  failed: {
    readonly reported: ModelUsage | undefined;
    readonly status: number | undefined;
    readonly network: string | undefined;
    readonly hasError: boolean;
    readonly isPage: boolean;
    readonly sentBytes: number;
    readonly receivedBytes: number;
    readonly isStreaming: boolean;
  },
): ModelUsage | undefined {
  const { reported, status, network, hasError, isPage, sentBytes, receivedBytes, isStreaming } = failed;
  if (reported !== undefined) return reported;
  const isAnswered = status !== undefined && status >= 200 && status < 300 && !isPage;
  const isLost = status === undefined && network !== undefined && SENT.has(network);
  // An error before the first word is a refusal, whatever the status says.
  const isRefused = hasError && meter.answerBytes === 0 && meter.reported === undefined;
  if (!(isAnswered || isLost) || isRefused) return undefined;
  const answerBytes = isStreaming ? meter.answerBytes : receivedBytes;
  const { early } = meter;
  if (meter.reported === undefined && early !== undefined && early.inputTokens > 0) {
    const outputTokens = Math.max(early.outputTokens, estimateTokens(answerBytes));
    return {
      ...early,
      outputTokens,
      ...(outputTokens === early.outputTokens ? {} : { isEstimated: true }),
    };
  }
  return toUsage(meter.reported ?? NOTHING_REPORTED, { sentBytes, answerBytes, isCut: true });
}
