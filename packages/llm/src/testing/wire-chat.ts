/**
 * Chat completions in three dialects: as gateways and local servers speak them, OpenAI's own, and DeepSeek's. Refused, in addition to the
 * findings of `checkPrompt`:
 *
 * C1  Unknown keys, in the body and in messages; a stream request that does not ask for usage (our own rule).
 * C2  A result that does not follow the message with its call. https://platform.openai.com/docs/guides/function-calling
 * C3  Compatible: consecutive messages of one role: chat templates of small models require alternation.
 *     https://huggingface.co/docs/transformers/chat_templating
 * C4  OpenAI: call ids above 40 characters; `max_tokens` and a temperature for reasoning models.
 *     https://github.com/vercel/ai/issues/5171,
 *     https://platform.openai.com/docs/guides/reasoning
 * C5  OpenAI: a description above 1,024 characters. https://github.com/getsentry/sentry-mcp/issues/106
 * C6  DeepSeek: a message with calls but without `reasoning_content`, or with other reasoning than came with the call.
 *     https://api-docs.deepseek.com/guides/thinking_mode, https://github.com/deepseek-ai/deepseek-harness/discussions/739
 */
import { type JsonValue, type Message, sha256 } from '@boxcar/kernel';
import { z } from 'zod';
import { checkPrompt } from './check-prompt.js';
import {
  answerOfCall,
  DEFAULT_USAGE,
  finishOf,
  frame,
  piecesOf,
  type ReadPrompt,
  type Seen,
  type ServerAnswer,
  type Wire,
} from './wire.js';

const json = z.custom<JsonValue>((value) => value !== undefined);

const bodyOf = ({
  maxCallId = 1_000,
  systemRoles = [],
  assistant = {},
  maxDescription = 1_000_000,
  tool = {},
  body = {},
}: {
  readonly maxCallId?: number;
  /** In addition to `system`. */
  readonly systemRoles?: readonly ['developer'] | readonly [];
  readonly assistant?: z.ZodRawShape;
  readonly maxDescription?: number;
  readonly tool?: z.ZodRawShape;
  readonly body?: z.ZodRawShape;
}) => {
  const callSchema = z.strictObject({
    id: z.string().min(1).max(maxCallId),
    type: z.literal('function'),
    function: z.strictObject({ name: z.string(), arguments: z.string() }),
  });
  return z.strictObject({
    model: z.string(),
    messages: z.array(
      z.discriminatedUnion('role', [
        z.strictObject({ role: z.enum(['system', ...systemRoles]), content: z.string() }),
        z.strictObject({ role: z.literal('user'), content: z.string().min(1) }),
        z.strictObject({
          role: z.literal('assistant'),
          content: z.string().nullable(),
          tool_calls: z.array(callSchema).min(1).optional(),
          ...assistant,
        }),
        z.strictObject({ role: z.literal('tool'), tool_call_id: z.string(), content: z.string() }),
      ]),
    ),
    temperature: z.number().optional(),
    tools: z
      .array(
        z.strictObject({
          type: z.literal('function'),
          function: z.strictObject({
            name: z.string(),
            description: z.string().max(maxDescription),
            parameters: json,
            ...tool,
          }),
        }),
      )
      .min(1)
      .optional(),
    tool_choice: z.enum(['auto', 'none']).optional(),
    stream: z.literal(true).optional(),
    stream_options: z.strictObject({ include_usage: z.literal(true) }).optional(),
    ...body,
  });
};

const maxTokens = { max_tokens: z.number().int().positive().optional() };
const reasoning = { reasoning_content: z.string().optional() };

const compatibleBody = bodyOf({
  assistant: { reasoning_content: z.string().min(1).optional() },
  body: maxTokens,
});
const deepseekBody = bodyOf({ assistant: reasoning, body: maxTokens });
const openaiBody = bodyOf({
  maxCallId: 40,
  maxDescription: 1_024,
  systemRoles: ['developer'],
  tool: { strict: z.literal(false) },
  body: {
    ...maxTokens,
    max_completion_tokens: z.number().int().positive().optional(),
    store: z.literal(false),
  },
});

type ChatMessage = z.infer<typeof compatibleBody>['messages'][number];

function readMessages(messages: readonly ChatMessage[]): readonly Message[] {
  const nameOf = new Map<string, string>();
  return messages.map((message): Message => {
    switch (message.role) {
      case 'user':
        return { role: 'user', content: message.content };
      case 'system':
      case 'developer':
        return { role: 'system', content: message.content };
      case 'assistant': {
        const calls = message.tool_calls ?? [];
        for (const call of calls) nameOf.set(call.id, call.function.name);
        const toolCalls = calls.map(({ id, function: { name, arguments: text } }) => ({
          id,
          name,
          arguments: json.parse(JSON.parse(text)),
        }));
        const content = message.content ?? '';
        return { role: 'assistant', content, ...(toolCalls.length > 0 ? { toolCalls } : {}) };
      }
      case 'tool': {
        const name = nameOf.get(message.tool_call_id) ?? '';
        return {
          role: 'tool',
          toolCallId: message.tool_call_id,
          name,
          content: message.content,
          isError: false,
        };
      }
      default:
        return message satisfies never;
    }
  });
}

/** C3 */
function checkAlternation(messages: readonly ChatMessage[]): void {
  for (const [index, message] of messages.entries()) {
    if (message.role === 'user' && messages[index - 1]?.role === 'user')
      throw new Error(`messages[${index}]: roles must alternate`);
  }
}

/** C6 */
function checkReasoning(messages: readonly Record<string, unknown>[], { answers }: Seen): void {
  for (const [index, message] of messages.entries()) {
    const calls = Array.isArray(message.tool_calls) ? message.tool_calls : [];
    if (calls.length === 0) continue;
    const given = calls.flatMap(({ id }) => answerOfCall(answers, id)?.reasoning ?? []);
    if (message.reasoning_content === undefined)
      throw new Error('The `reasoning_content` in the thinking mode must be passed back to the API.');
    if (given.length > 0 && message.reasoning_content !== given[0])
      throw new Error(`messages[${index}]: another reasoning_content than was given with its calls`);
  }
}

const REASONING_MODEL = /^(o\d|gpt-5)/;

/** C4 */
function checkReasoningModel(body: z.infer<typeof openaiBody>): void {
  if (!REASONING_MODEL.test(body.model)) return;
  const { max_tokens: maxTokens, temperature } = body as { max_tokens?: number; temperature?: number };
  if (maxTokens !== undefined)
    throw new Error("Unsupported parameter: 'max_tokens' is not supported with this model.");
  if (temperature !== undefined && temperature !== 1)
    throw new Error("Unsupported value: 'temperature' does not support this value with this model.");
}

const usageOf = ({ usage = DEFAULT_USAGE }: ServerAnswer) =>
  usage === null
    ? undefined
    : {
        prompt_tokens: usage.input,
        completion_tokens: usage.output,
        total_tokens: usage.input + usage.output,
        ...(usage.cached === undefined ? {} : { prompt_tokens_details: { cached_tokens: usage.cached } }),
        ...(usage.reasoning === undefined
          ? {}
          : { completion_tokens_details: { reasoning_tokens: usage.reasoning } }),
      };

const head = { id: 'chatcmpl-1', created: 0, model: 'served' };

/** Writes an answer; shared by the dialects of chat completions. */
export const chatAnswers = (
  /** How reasoning is written, in pieces and as a whole. */
  writeReasoning: (words: string, text?: string) => object,
  /** The last piece of an answer has the usage; otherwise it is in a separate piece. */
  { hasUsageAtEnd = false } = {},
): Pick<Wire, 'events' | 'whole' | 'error' | 'errorEvent'> => ({
  events(answer) {
    const chunk = (delta: unknown, finish: string | null = null): string =>
      frame({
        ...head,
        object: 'chat.completion.chunk',
        choices: [{ index: 0, delta, finish_reason: finish }],
        ...(hasUsageAtEnd && finish !== null ? { usage: usageOf(answer) } : {}),
      });
    const calls = answer.calls ?? [];
    const usage = usageOf(answer);
    return [
      chunk({ role: 'assistant', content: '' }),
      ...piecesOf(answer.reasoning ?? '').map((piece) => chunk(writeReasoning(piece))),
      ...piecesOf(answer.text ?? '').map((piece) => chunk({ content: piece })),
      ...piecesOf(answer.refusal ?? '').map((piece) => chunk({ refusal: piece })),
      ...calls.map(({ id, name }, index) =>
        chunk({ tool_calls: [{ index, id, type: 'function', function: { name, arguments: '' } }] }),
      ),
      ...calls.flatMap((call, index) =>
        piecesOf(call.arguments).map((piece) =>
          chunk({ tool_calls: [{ index, function: { arguments: piece } }] }),
        ),
      ),
      chunk({}, finishOf(answer)),
      ...(usage === undefined || hasUsageAtEnd
        ? []
        : [frame({ ...head, object: 'chat.completion.chunk', choices: [], usage })]),
      'data: [DONE]\n\n',
    ];
  },

  whole(answer) {
    const calls = (answer.calls ?? []).map(({ id, name, arguments: text }) => ({
      id,
      type: 'function',
      function: { name, arguments: text },
    }));
    return {
      ...head,
      object: 'chat.completion',
      choices: [
        {
          index: 0,
          message: {
            role: 'assistant',
            content: answer.text ?? null,
            ...(answer.refusal === undefined ? {} : { refusal: answer.refusal }),
            ...(answer.reasoning === undefined ? {} : writeReasoning(answer.reasoning, answer.text)),
            ...(calls.length > 0 ? { tool_calls: calls } : {}),
          },
          finish_reason: finishOf(answer),
        },
      ],
      usage: usageOf(answer),
    };
  },

  error: chatError,
  errorEvent: (error) => frame(chatError(error)),
});

const chatError: Wire['error'] = ({ message, type = 'invalid_request_error', code }) => ({
  error: { message, type, param: null, code: code ?? null },
});

interface ChatBody {
  readonly model: string;
  readonly messages: readonly ChatMessage[];
  readonly tools?:
    | readonly { readonly function: { name: string; description: string; parameters: JsonValue } }[]
    | undefined;
  readonly tool_choice?: string | undefined;
  readonly stream?: true | undefined;
  readonly stream_options?: unknown;
}

/** Replaces ids of any form that the server itself gave with ids that every provider accepts. */
function withOwnIds(messages: readonly Message[], { answers }: Seen): readonly Message[] {
  const given = new Set(answers.flatMap(({ calls = [] }) => calls.map(({ id }) => id)));
  const toId = (id: string): string => (given.has(id) ? sha256(id).slice(0, 32) : id);
  return messages.map((message) => {
    if (message.role === 'tool') return { ...message, toolCallId: toId(message.toolCallId) };
    if (message.role !== 'assistant' || message.toolCalls === undefined) return message;
    return { ...message, toolCalls: message.toolCalls.map((call) => ({ ...call, id: toId(call.id) })) };
  });
}

/** C1, C2 */
function readChat(parsed: ChatBody, seen: Seen): ReadPrompt {
  const messages = readMessages(parsed.messages);
  const tools = (parsed.tools ?? []).map((tool) => tool.function);
  checkPrompt(withOwnIds(messages, seen), tools);
  if (parsed.stream === true && parsed.stream_options === undefined) throw new Error('no usage asked for');
  return {
    model: parsed.model,
    messages,
    tools,
    toolChoice: parsed.tool_choice,
    isStreaming: parsed.stream ?? false,
  };
}

const chat = {
  base: '/v1',
  path: '/chat/completions',
  keyHeader: ['authorization', 'Bearer '],
  ...chatAnswers((words) => ({ reasoning_content: words })),
} as const;

export const chatWire: Wire = {
  ...chat,
  provider: 'openai-compatible',
  read(body, seen) {
    const parsed = compatibleBody.parse(body);
    checkAlternation(parsed.messages);
    return readChat(parsed, seen);
  },
};

export const deepseekWire: Wire = {
  ...chat,
  provider: 'deepseek',
  read(body, seen) {
    const parsed = deepseekBody.parse(body);
    checkReasoning(parsed.messages, seen);
    return readChat(parsed, seen);
  },
};

/** It does not show reasoning. */
export const openaiChatWire: Wire = {
  ...chat,
  ...chatAnswers(() => ({})),
  provider: 'openai-chat',
  read(body, seen) {
    const parsed = openaiBody.parse(body);
    checkReasoningModel(parsed);
    return readChat(parsed, seen);
  },
};
