/**
 * OpenAI's Responses API. Refused, in addition to the findings of `checkPrompt`:
 *
 * R1  An output that does not follow its call, a call without its output, a call id that is used twice or longer than 64 characters.
 *     https://platform.openai.com/docs/guides/function-calling, https://github.com/diegosouzapw/OmniRoute/pull/4317
 * R2  Ids of items without the prefix of their kind (`msg…`, `rs…`).
 *     https://platform.openai.com/docs/api-reference/responses/create
 * R3  Reasoning without its encrypted content, since nothing is stored; with changed content; or without a following item of the same
 *     answer. https://github.com/openai/openai-node/issues/1567
 * R4  A message with its id whose reasoning is missing, when it came with reasoning.
 *     https://github.com/continuedev/continue/issues/11994
 */
import type { JsonValue, Message, MessageToolCall } from '@boxcar/kernel';
import { z } from 'zod';
import { checkPrompt } from './check-prompt.js';
import { DEFAULT_USAGE, finishOf, frame, piecesOf, type ServerAnswer, sealOf, type Wire } from './wire.js';

const json = z.custom<JsonValue>((value) => value !== undefined);

const itemSchema = z.union([
  z.strictObject({ role: z.enum(['system', 'developer']), content: z.string().min(1) }),
  z.strictObject({
    role: z.literal('user'),
    content: z
      .array(
        z.discriminatedUnion('type', [
          z.strictObject({ type: z.literal('input_text'), text: z.string().min(1) }),
          z.strictObject({ type: z.literal('input_image'), image_url: z.url() }),
          z.strictObject({ type: z.literal('input_file'), file_url: z.url() }),
        ]),
      )
      .min(1),
  }),
  z.strictObject({
    type: z.literal('reasoning'),
    id: z.string().regex(/^rs/).optional(),
    encrypted_content: z.string().min(1),
    summary: z.array(z.strictObject({ type: z.literal('summary_text'), text: z.string() })),
  }),
  z.strictObject({
    role: z.literal('assistant'),
    id: z.string().regex(/^msg/).optional(),
    content: z.array(z.strictObject({ type: z.literal('output_text'), text: z.string().min(1) })).min(1),
  }),
  z.strictObject({
    type: z.literal('function_call'),
    call_id: z.string().min(1).max(64),
    name: z.string(),
    arguments: z.string(),
  }),
  z.strictObject({ type: z.literal('function_call_output'), call_id: z.string(), output: z.string() }),
]);

const bodySchema = z.strictObject({
  model: z.string(),
  input: z.array(itemSchema).min(1),
  max_output_tokens: z.number().int().positive().optional(),
  temperature: z.number().optional(),
  store: z.literal(false),
  include: z.tuple([z.literal('reasoning.encrypted_content')]).optional(),
  tools: z
    .array(
      z.strictObject({
        type: z.literal('function'),
        name: z.string(),
        description: z.string(),
        parameters: json,
        strict: z.literal(false),
      }),
    )
    .min(1)
    .optional(),
  tool_choice: z.enum(['auto', 'none']).optional(),
  stream: z.literal(true).optional(),
});

function readMessages(items: z.infer<typeof bodySchema>['input']): readonly Message[] {
  const nameOf = new Map<string, string>();
  const read: Message[] = [];
  for (const item of items) {
    if ('type' in item && item.type === 'reasoning') continue;
    if ('type' in item && item.type === 'function_call') {
      nameOf.set(item.call_id, item.name);
      const call: MessageToolCall = {
        id: item.call_id,
        name: item.name,
        arguments: json.parse(JSON.parse(item.arguments)),
      };
      const last = read.at(-1);
      if (last?.role === 'assistant')
        read.splice(-1, 1, { ...last, toolCalls: [...(last.toolCalls ?? []), call] });
      else read.push({ role: 'assistant', content: '', toolCalls: [call] });
    } else if ('type' in item) {
      const name = nameOf.get(item.call_id) ?? '';
      read.push({ role: 'tool', toolCallId: item.call_id, name, content: item.output, isError: false });
    } else if (typeof item.content === 'string') {
      read.push({ role: 'system', content: item.content });
    } else if (item.role === 'user' || item.role === 'assistant') {
      const content = item.content.map((part) => ('text' in part ? part.text : '')).join('');
      read.push({ role: item.role, content });
    }
  }
  return read;
}

type Items = z.infer<typeof bodySchema>['input'];

const isOfAnswer = (item: Items[number] | undefined): boolean =>
  item !== undefined &&
  (('role' in item && item.role === 'assistant') || ('type' in item && item.type === 'function_call'));

/** R3, R4 */
function checkReasoning(items: Items): void {
  for (const [index, item] of items.entries()) {
    if ('type' in item && item.type === 'reasoning') {
      const words = item.summary.map(({ text }) => text).join('');
      if (item.encrypted_content !== sealOf(words))
        throw new Error(`The encrypted content for item ${item.id} could not be verified.`);
      if (!isOfAnswer(items[index + 1]))
        throw new Error(
          `Item '${item.id}' of type 'reasoning' was provided without its required following item.`,
        );
    }
    if ('role' in item && item.role === 'assistant' && item.id?.endsWith(THOUGHT) === true) {
      const before = items[index - 1];
      if (before === undefined || !('type' in before) || before.type !== 'reasoning')
        throw new Error(
          `Item '${item.id}' of type 'message' was provided without its required 'reasoning' item.`,
        );
    }
  }
}

/** The suffix of the id of a message that came with reasoning. */
const THOUGHT = '_thought';

function usageOf({ usage = DEFAULT_USAGE }: ServerAnswer) {
  if (usage === null) return undefined;
  return {
    input_tokens: usage.input,
    input_tokens_details: { cached_tokens: usage.cached ?? 0 },
    output_tokens: usage.output,
    output_tokens_details: { reasoning_tokens: usage.reasoning ?? 0 },
    total_tokens: usage.input + usage.output,
  };
}

function itemsOf(answer: ServerAnswer) {
  return [
    ...(answer.reasoning === undefined
      ? []
      : [
          {
            type: 'reasoning',
            id: `rs_${sealOf(answer.reasoning)}`,
            encrypted_content: sealOf(answer.reasoning),
            summary: [{ type: 'summary_text', text: answer.reasoning }],
          },
        ]),
    ...(answer.text === undefined && answer.refusal === undefined
      ? []
      : [
          {
            type: 'message',
            id: `msg_1${answer.reasoning === undefined ? '' : THOUGHT}`,
            role: 'assistant',
            status: 'completed',
            content:
              answer.refusal === undefined
                ? [{ type: 'output_text', text: answer.text, annotations: [] }]
                : [{ type: 'refusal', refusal: answer.refusal }],
          },
        ]),
    ...(answer.calls ?? []).map(({ id, name, arguments: text }) => ({
      type: 'function_call',
      id: `fc_${id}`,
      call_id: id,
      name,
      arguments: text,
      status: 'completed',
    })),
  ];
}

const INCOMPLETE: Readonly<Record<string, string | undefined>> = {
  length: 'max_output_tokens',
  content_filter: 'content_filter',
};

function responseOf(answer: ServerAnswer) {
  const reason = INCOMPLETE[finishOf(answer)];
  return {
    id: 'resp_1',
    object: 'response',
    created_at: 0,
    model: 'served',
    status: reason === undefined ? 'completed' : 'incomplete',
    error: null,
    incomplete_details: reason === undefined ? null : { reason },
    output: itemsOf(answer),
    usage: usageOf(answer),
  };
}

export const responsesWire: Wire = {
  provider: 'openai',
  base: '/v1',
  path: '/responses',
  keyHeader: ['authorization', 'Bearer '],

  read(body) {
    const parsed = bodySchema.parse(body);
    checkReasoning(parsed.input);
    const messages = readMessages(parsed.input);
    const tools = parsed.tools ?? [];
    checkPrompt(messages, tools);
    return {
      model: parsed.model,
      messages,
      tools,
      toolChoice: parsed.tool_choice,
      isStreaming: parsed.stream ?? false,
    };
  },

  events(answer) {
    let sequence = 0;
    const event = (type: string, data: object): string => {
      sequence += 1;
      return frame({ type, sequence_number: sequence, ...data }, type);
    };
    const events = [
      event('response.created', { response: { ...responseOf(answer), output: [], usage: undefined } }),
    ];
    for (const [output_index, item] of itemsOf(answer).entries()) {
      const at = { item_id: item.id, output_index };
      if (item.type === 'reasoning') {
        const start = { output_index, item: { ...item, summary: [] } };
        events.push(event('response.output_item.added', start));
        const part = { ...at, summary_index: 0 };
        events.push(event('response.reasoning_summary_part.added', part));
        for (const delta of piecesOf(answer.reasoning ?? ''))
          events.push(event('response.reasoning_summary_text.delta', { ...part, delta }));
        events.push(event('response.reasoning_summary_part.done', part));
      } else if (item.type === 'message') {
        events.push(event('response.output_item.added', { output_index, item: { ...item, content: [] } }));
        const kind = answer.refusal === undefined ? 'output_text' : 'refusal';
        for (const delta of piecesOf(answer.refusal ?? answer.text ?? ''))
          events.push(event(`response.${kind}.delta`, { ...at, content_index: 0, delta }));
      } else {
        const start = { output_index, item: { ...item, arguments: '', status: 'in_progress' } };
        events.push(event('response.output_item.added', start));
        for (const delta of piecesOf('arguments' in item ? item.arguments : ''))
          events.push(event('response.function_call_arguments.delta', { ...at, delta }));
      }
      events.push(event('response.output_item.done', { output_index, item }));
    }
    const response = responseOf(answer);
    events.push(event(`response.${response.status}`, { response }));
    return events;
  },

  whole: responseOf,

  error: ({ message, type = 'invalid_request_error', code }) => ({
    error: { message, type, param: null, code: code ?? null },
  }),
  errorEvent: ({ message, code, type }) =>
    frame({ type: 'error', sequence_number: 9, code: code ?? type ?? null, message, param: null }, 'error'),
};
