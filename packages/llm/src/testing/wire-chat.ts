/** OpenAI's chat completions, as gateways and local servers speak them. */
import type { JsonValue, Message } from '@boxcar/kernel';
import { z } from 'zod';
import { checkPrompt } from './check-prompt.js';
import { DEFAULT_USAGE, finishOf, frame, piecesOf, type ServerAnswer, type Wire } from './wire.js';

const json = z.custom<JsonValue>((value) => value !== undefined);

const callSchema = z.strictObject({
  id: z.string(),
  type: z.literal('function'),
  function: z.strictObject({ name: z.string(), arguments: z.string() }),
});

const bodySchema = z.strictObject({
  model: z.string(),
  messages: z.array(
    z.discriminatedUnion('role', [
      z.strictObject({ role: z.literal('system'), content: z.string() }),
      z.strictObject({ role: z.literal('user'), content: z.string() }),
      z.strictObject({
        role: z.literal('assistant'),
        content: z.string().nullable(),
        tool_calls: z.array(callSchema).min(1).optional(),
      }),
      z.strictObject({ role: z.literal('tool'), tool_call_id: z.string(), content: z.string() }),
    ]),
  ),
  max_tokens: z.number().int().positive().optional(),
  temperature: z.number().optional(),
  tools: z
    .array(
      z.strictObject({
        type: z.literal('function'),
        function: z.strictObject({ name: z.string(), description: z.string(), parameters: json }),
      }),
    )
    .min(1)
    .optional(),
  tool_choice: z.enum(['auto', 'none']).optional(),
  stream: z.literal(true).optional(),
  stream_options: z.strictObject({ include_usage: z.literal(true) }).optional(),
});

function readMessages(messages: z.infer<typeof bodySchema>['messages']): readonly Message[] {
  const nameOf = new Map<string, string>();
  return messages.map((message): Message => {
    switch (message.role) {
      case 'system':
      case 'user':
        return message;
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

/** What chat templates of small models insist on. */
function checkAlternation(messages: readonly Message[]): void {
  for (const [index, message] of messages.entries()) {
    if (message.role === 'user' && messages[index - 1]?.role === 'user')
      throw new Error(`messages[${index}]: roles must alternate`);
  }
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

export const chatWire: Wire = {
  provider: 'openai-compatible',
  path: '/v1/chat/completions',
  keyHeader: ['authorization', 'Bearer '],

  read(body) {
    const parsed = bodySchema.parse(body);
    const messages = readMessages(parsed.messages);
    const tools = (parsed.tools ?? []).map((tool) => tool.function);
    checkPrompt(messages, tools);
    checkAlternation(messages);
    if (parsed.stream === true && parsed.stream_options === undefined) throw new Error('no usage asked for');
    return {
      model: parsed.model,
      messages,
      tools,
      toolChoice: parsed.tool_choice,
      isStreaming: parsed.stream ?? false,
    };
  },

  events(answer) {
    const chunk = (delta: unknown, finish: string | null = null): string =>
      frame({
        ...head,
        object: 'chat.completion.chunk',
        choices: [{ index: 0, delta, finish_reason: finish }],
      });
    const calls = answer.calls ?? [];
    const usage = usageOf(answer);
    return [
      chunk({ role: 'assistant', content: '' }),
      ...piecesOf(answer.reasoning ?? '').map((piece) => chunk({ reasoning_content: piece })),
      ...piecesOf(answer.text ?? '').map((piece) => chunk({ content: piece })),
      ...calls.map(({ id, name }, index) =>
        chunk({ tool_calls: [{ index, id, type: 'function', function: { name, arguments: '' } }] }),
      ),
      ...calls.flatMap((call, index) =>
        piecesOf(call.arguments).map((piece) =>
          chunk({ tool_calls: [{ index, function: { arguments: piece } }] }),
        ),
      ),
      chunk({}, finishOf(answer)),
      ...(usage === undefined
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
            ...(answer.reasoning === undefined ? {} : { reasoning_content: answer.reasoning }),
            ...(calls.length > 0 ? { tool_calls: calls } : {}),
          },
          finish_reason: finishOf(answer),
        },
      ],
      usage: usageOf(answer),
    };
  },

  error: ({ message, type = 'invalid_request_error', code }) => ({
    error: { message, type, param: null, code: code ?? null },
  }),
  errorEvent: (error) => frame(chatWire.error(error)),
};
