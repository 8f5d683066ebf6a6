/** One attempt with a model as the target: a prompt of one user message, and its answer as the result. */
import type { LanguageModelV3CallOptions, LanguageModelV3FinishReason } from '@ai-sdk/provider';
import { findProviderError, type ProviderError } from '@boxcar/llm/failures';
import type { AdapterRequest, AdapterResult, ExecuteOptions, HandoffAdapter } from '../adapter.js';
import type { AdapterError } from '../adapter-error.js';
import { type CarriedRequest, checkCapabilities } from '../capabilities.js';
import { readVariable } from '../config.js';
import { idempotencyHeaders } from '../idempotency.js';
import { lossOf } from '../loss.js';
import { fixedPieces, type Piece, pieceOfCard } from '../pieces.js';
import { type ModelTarget, withoutSlashes } from '../targets/target.js';
import { checkKey } from '../wire/check-key.js';
import { Concealer } from '../wire/conceal.js';
import { type Caller, Exchange, failureOf, shorten } from '../wire/exchange.js';
import { createFetch } from '../wire/http-fetch.js';
import { judge } from '../wire/judge.js';
import type { ModelPlatform } from './model-platform.js';
import { AnswerReader, CutOff, StreamError } from './read-answer.js';

interface Connection {
  readonly key: string;
  readonly baseUrl: string;
  readonly caller: Caller;
}

function connect(
  platform: ModelPlatform,
  target: ModelTarget,
  request: AdapterRequest,
  { attempt }: ExecuteOptions,
): Connection {
  const keyVariable = target.api_key_env ?? platform.keyVariable;
  const key = readVariable(keyVariable);
  const ownUrl = readVariable(platform.baseUrlVariable);
  const configured = target.base_url ?? (ownUrl === undefined ? undefined : withoutSlashes(ownUrl));
  const concealer = new Concealer({
    key: { variable: keyVariable, value: key ?? '' },
    model: target.model,
    addresses: [configured],
  });
  const { handoff_id: handoffId } = request;
  const caller: Caller = { platform: platform.name, handoffId, attempt, keyVariable, concealer };
  if (configured !== undefined && !URL.canParse(configured))
    throw failureOf(
      caller,
      { code: 'platform_failed', retryable: false },
      `has no address: ${platform.baseUrlVariable} is not a URL where the handoff runs`,
    );
  return { key: checkKey(key, caller), baseUrl: configured ?? platform.defaultBaseUrl, caller };
}

type UserPart = Extract<
  LanguageModelV3CallOptions['prompt'][number],
  { readonly role: 'user' }
>['content'][number];

const toUserPart = (piece: Piece): UserPart =>
  piece.kind === 'file'
    ? { type: 'file', mediaType: piece.mediaType, data: new URL(piece.url) }
    : { type: 'text', text: piece.text };

/** Builds the call: the operator's instructions as the system prompt, the handed-over content as one user message. */
function toCall(
  request: AdapterRequest,
  target: ModelTarget,
  carried: CarriedRequest,
): LanguageModelV3CallOptions {
  const { instructions, max_output_tokens: maxOutputTokens, temperature } = target;
  const content = [...carried.cards.map(pieceOfCard), ...fixedPieces(request)].map(toUserPart);
  return {
    prompt: [
      ...(instructions === undefined ? [] : [{ role: 'system', content: instructions } as const]),
      { role: 'user', content },
    ],
    ...(maxOutputTokens === undefined ? {} : { maxOutputTokens }),
    ...(temperature === undefined ? {} : { temperature }),
  };
}

/** Rejects an answer that is not a result: refused, cut by its limit, or empty. */
function checkAnswer(finish: LanguageModelV3FinishReason, text: string, caller: Caller): void {
  const fail = (code: 'platform_refused' | 'answer_cut' | 'platform_failed', did: string): never => {
    throw failureOf(caller, { code, retryable: false }, did);
  };
  if (finish.unified === 'content-filter')
    fail(
      'platform_refused',
      text.trim() === '' ? 'refused the task' : `refused the task: ${shorten(text, caller)}`,
    );
  if (finish.unified === 'length') fail('answer_cut', 'stopped at the limit of its answer');
  if (text.trim() === '') fail('platform_failed', 'gave an empty answer');
}

/** The platform's error in an event; for an event that the SDK cannot read, the error holds the event. */
const saidIn = (cause: unknown): ProviderError | undefined =>
  findProviderError(cause instanceof Error ? Reflect.get(cause, 'value') : cause);

/** The failure of an answer that had begun. */
function explainAnswer(error: unknown, caller: Caller): AdapterError {
  if (error instanceof CutOff)
    return failureOf(
      caller,
      { code: 'platform_unavailable', retryable: true },
      'broke its answer off before the end',
    );
  const said = error instanceof StreamError ? saidIn(error.cause) : undefined;
  if (said === undefined)
    return failureOf(
      caller,
      { code: 'platform_failed', retryable: false },
      'answered with something that cannot be read',
    );
  const words = shorten(said.message === '' ? (said.code ?? '') : said.message, caller);
  return failureOf(caller, judge(200, said), `broke its answer off: ${words}`, { platformCode: said.code });
}

export async function runModel(
  adapter: Pick<HandoffAdapter, 'capabilities'>,
  platform: ModelPlatform,
  target: ModelTarget,
  request: AdapterRequest,
  options: ExecuteOptions,
): Promise<AdapterResult> {
  const carried = checkCapabilities(adapter, request);
  const { key, baseUrl, caller } = connect(platform, target, request, options);
  const { signal, onPart, onRemoteId, idempotencyKey } = options;
  using exchange = new Exchange({ fetch: createFetch(), signal, caller, isStream: true });
  const answer = new AnswerReader({
    concealed: caller.concealer.openText(),
    onPart: exchange.guard(onPart),
    onId: exchange.guard(onRemoteId),
  });
  try {
    const model = await platform.open({ model: target.model, key, baseUrl, fetch: exchange.fetch });
    const { stream } = await model.doStream({
      ...toCall(request, target, carried),
      providerOptions: platform.options,
      headers: idempotencyHeaders(idempotencyKey),
      includeRawChunks: true,
      abortSignal: exchange.signal,
    });
    checkAnswer(await answer.read(stream), answer.text, caller);
  } catch (error) {
    const failure = exchange.explain(error, (other) => explainAnswer(other, caller));
    throw failure instanceof Error && 'withUsage' in failure
      ? (failure as AdapterError).withUsage(answer.usage)
      : failure;
  }
  return {
    result: answer.text,
    usage: answer.usage,
    remote_id: answer.id,
    loss: lossOf(request.cards, exchange.sentBodies, carried.lost),
  };
}
