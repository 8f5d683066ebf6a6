/**
 * One attempt with an app of an ADK API server: the attempt looks the app up, opens its own session, and runs the message in it. Wire
 * format: `/list-apps`, `/apps/{app}/users/{user}/sessions/{session}`, `/run`.
 */
import { type JsonValue, jsonText } from '@boxcar/kernel';
import { z } from 'zod';
import type { AdapterUsage } from '../adapter.js';
import { idempotencyHeaders } from '../idempotency.js';
import { type Piece, textOf } from '../pieces.js';
import { usageFrom } from '../usage.js';
import { type Caller, type Exchange, failureOf, shorten } from '../wire/exchange.js';

const text = z.string().nullish();
/** A malformed figure must not cause the loss of an answer. */
const count = z.number().nonnegative().nullish().catch(undefined);

/** The members of a run's event that are used. */
const eventSchema = z.looseObject({
  author: text,
  partial: z.boolean().nullish(),
  errorCode: text,
  errorMessage: text,
  output: z.custom<JsonValue>().optional(),
  content: z
    .looseObject({
      parts: z
        .array(
          z.looseObject({
            text,
            thought: z.boolean().nullish(),
            functionCall: z.looseObject({}).nullish(),
            functionResponse: z.looseObject({}).nullish(),
          }),
        )
        .nullish(),
    })
    .nullish(),
  usageMetadata: z
    .looseObject({ promptTokenCount: count, candidatesTokenCount: count, thoughtsTokenCount: count })
    .nullish()
    .catch(undefined),
});
type AdkEvent = z.infer<typeof eventSchema>;

export interface AppCall {
  readonly app: string;
  readonly baseUrl: string;
  readonly userId: string;
  readonly sessionId: string;
  readonly idempotencyKey: string;
  readonly pieces: readonly Piece[];
}

export interface AppAnswer {
  readonly result: JsonValue;
  readonly usage: AdapterUsage | null;
}

async function readAnswer<T>(response: Response, schema: z.ZodType<T>, caller: Caller): Promise<T> {
  const body = await response.text();
  try {
    return schema.parse(JSON.parse(body));
  } catch {
    throw failureOf(
      caller,
      { code: 'platform_failed', retryable: false },
      'answered with something that cannot be read',
    );
  }
}

function usageOf(events: readonly AdkEvent[]): AdapterUsage | null {
  const reported = events.flatMap(({ partial, usageMetadata }) =>
    partial === true || usageMetadata == null ? [] : [usageMetadata],
  );
  if (reported.length === 0) return null;
  return usageFrom(
    reported.reduce((sum, { promptTokenCount }) => sum + (promptTokenCount ?? 0), 0),
    reported.reduce(
      (sum, { candidatesTokenCount, thoughtsTokenCount }) =>
        sum + (candidatesTokenCount ?? 0) + (thoughtsTokenCount ?? 0),
      0,
    ),
  );
}

/** The text of an event that completes an agent's message: it has no calls and is not a fragment of a later event. */
function wordsOf({ author, partial, content }: AdkEvent): string {
  const parts = content?.parts ?? [];
  const isStep = parts.some((part) => part.functionCall != null || part.functionResponse != null);
  if (author === 'user' || partial === true || isStep) return '';
  return parts.map((part) => (part.thought === true ? '' : (part.text ?? ''))).join('');
}

const REFUSALS = /^(SAFETY|PROHIBITED_CONTENT|BLOCKLIST|SPII|RECITATION|IMAGE_SAFETY)$/;

/** The last message; for a workflow without messages, its output. */
function resultOf(events: readonly AdkEvent[], caller: Caller): JsonValue {
  const failed = events.findLast(({ errorCode, errorMessage }) => errorCode != null || errorMessage != null);
  if (failed !== undefined && failed === events.at(-1)) {
    const { errorCode, errorMessage } = failed;
    const code = REFUSALS.test(errorCode ?? '') ? 'platform_refused' : 'platform_failed';
    throw failureOf(
      caller,
      { code, retryable: false },
      `did not answer: ${shorten(errorMessage ?? errorCode ?? '', caller)}`,
      { platformCode: errorCode ?? undefined },
    );
  }
  const said = events.findLast((event) => wordsOf(event).trim() !== '');
  if (said !== undefined) return wordsOf(said);
  const output = events.findLast((event) => event.output != null)?.output;
  if (output !== undefined) return output;
  throw failureOf(caller, { code: 'platform_failed', retryable: false }, 'gave an empty answer');
}

export async function runApp(call: AppCall, exchange: Exchange, caller: Caller): Promise<AppAnswer> {
  const { app, baseUrl, userId, sessionId, idempotencyKey, pieces } = call;
  const apps = await readAnswer(await exchange.fetch(`${baseUrl}/list-apps`), z.array(z.string()), caller);
  if (!apps.includes(app))
    throw failureOf(caller, { code: 'target_unknown', retryable: false }, 'has no app of this name');
  const post = (path: string, body: JsonValue): Promise<Response> =>
    exchange.fetch(`${baseUrl}${path}`, {
      method: 'POST',
      headers: { 'content-type': 'application/json', ...idempotencyHeaders(idempotencyKey) },
      body: jsonText(body),
    });
  const [appPath, user, session] = [app, userId, sessionId].map(encodeURIComponent);
  const opened = await post(`/apps/${appPath}/users/${user}/sessions/${session}`, {});
  await readAnswer(opened, z.looseObject({ id: z.string() }), caller);
  const answer = await post('/run', {
    appName: app,
    userId,
    sessionId,
    newMessage: { role: 'user', parts: pieces.map((piece) => ({ text: textOf(piece) })) },
  });
  const events = await readAnswer(answer, z.array(eventSchema), caller);
  return { result: resultOf(events, caller), usage: usageOf(events) };
}
