/**
 * Mistral's chat completions. Refused, in addition to the findings of `checkPrompt`:
 *
 * M1  Call ids that are not nine letters and digits. https://github.com/langchain-ai/langchain/pull/24668
 * M2  A user message after a result, a result that follows neither a call nor a result, a last message from the assistant.
 *     https://github.com/avante-corp/avante.nvim/pull/2695, https://github.com/0xPlaygrounds/rig/pull/1130
 * M3  An assistant message with neither text nor calls, unknown keys.
 *     https://docs.mistral.ai/api/#tag/chat
 */
import type { JsonValue, Message } from '@boxcar/kernel';
import { z } from 'zod';
import { checkPrompt } from './check-prompt.js';
import type { Wire } from './wire.js';
import { chatAnswers } from './wire-chat.js';

const json = z.custom<JsonValue>((value) => value !== undefined);
const callId = z.string().regex(/^[a-zA-Z0-9]{9}$/, 'must be a-z, A-Z, 0-9, with a length of 9');
const text = z.strictObject({ type: z.literal('text'), text: z.string().min(1) });
const thinking = z.strictObject({
  type: z.literal('thinking'),
  thinking: z.array(z.strictObject({ type: z.literal('text'), text: z.string() })).min(1),
  closed: z.literal(true),
});

const bodySchema = z.strictObject({
  model: z.string(),
  messages: z.array(
    z.discriminatedUnion('role', [
      z.strictObject({ role: z.literal('system'), content: z.string() }),
      z.strictObject({ role: z.literal('user'), content: z.array(text).min(1) }),
      z.strictObject({
        role: z.literal('assistant'),
        content: z.union([z.string(), z.array(z.discriminatedUnion('type', [text, thinking])).min(1)]),
        tool_calls: z
          .array(
            z.strictObject({
              id: callId,
              type: z.literal('function'),
              function: z.strictObject({ name: z.string(), arguments: z.string() }),
            }),
          )
          .min(1)
          .optional(),
      }),
      z.strictObject({
        role: z.literal('tool'),
        name: z.string(),
        tool_call_id: callId,
        content: z.string(),
      }),
    ]),
  ),
  max_tokens: z.number().int().positive().optional(),
  temperature: z.number().min(0).max(1.5).optional(),
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
});

type Messages = z.infer<typeof bodySchema>['messages'];

/** M2, M3 */
function checkOrder(messages: Messages): void {
  for (const [index, message] of messages.entries()) {
    const before = messages[index - 1];
    if (message.role === 'user' && before?.role === 'tool')
      throw new Error("Unexpected role 'user' after role 'tool'");
    const isAnswerable =
      before?.role === 'tool' || (before?.role === 'assistant' && before.tool_calls !== undefined);
    if (message.role === 'tool' && !isAnswerable)
      throw new Error(`Unexpected role 'tool' after role '${before?.role}'`);
    if (message.role === 'assistant' && message.content === '' && message.tool_calls === undefined)
      throw new Error('Assistant message must have either content or tool_calls, but not none.');
  }
  const last = messages.at(-1)?.role;
  if (last !== 'user' && last !== 'tool') throw new Error(`Expected last role User or Tool but got ${last}`);
}

function readMessages(messages: Messages): readonly Message[] {
  return messages.map((message): Message => {
    switch (message.role) {
      case 'system':
        return { role: 'system', content: message.content };
      case 'user':
        return { role: 'user', content: message.content.map((part) => part.text).join('') };
      case 'assistant': {
        const { content, tool_calls: calls = [] } = message;
        const words =
          typeof content === 'string'
            ? content
            : content.map((part) => (part.type === 'text' ? part.text : '')).join('');
        const toolCalls = calls.map(({ id, function: { name, arguments: written } }) => ({
          id,
          name,
          arguments: json.parse(JSON.parse(written)),
        }));
        return { role: 'assistant', content: words, ...(toolCalls.length > 0 ? { toolCalls } : {}) };
      }
      case 'tool':
        return {
          role: 'tool',
          toolCallId: message.tool_call_id,
          name: message.name,
          content: message.content,
          isError: false,
        };
      default:
        return message satisfies never;
    }
  });
}

const answers = chatAnswers(
  (words, written = '') => ({
    content: [
      { type: 'thinking', thinking: [{ type: 'text', text: words }] },
      ...(written === '' ? [] : [{ type: 'text', text: written }]),
    ],
  }),
  { hasUsageAtEnd: true },
);

export const mistralWire: Wire = {
  ...answers,
  // The usage is always present.
  whole: (answer) =>
    answers.whole(answer.usage === null ? { ...answer, usage: { input: 0, output: 0 } } : answer),
  provider: 'mistral',
  base: '/v1',
  path: '/chat/completions',
  keyHeader: ['authorization', 'Bearer '],

  read(body) {
    const parsed = bodySchema.parse(body);
    checkOrder(parsed.messages);
    const messages = readMessages(parsed.messages);
    const tools = (parsed.tools ?? []).map((tool) => tool.function);
    checkPrompt(messages, tools);
    return {
      model: parsed.model,
      messages,
      tools,
      toolChoice: parsed.tool_choice,
      isStreaming: parsed.stream ?? false,
    };
  },
};
