/**
 * Anthropic's Messages API. Refused, in addition to the findings of `checkPrompt`:
 *
 * A1  Roles that do not alternate, a prompt that does not begin with the user, empty or blank text blocks.
 *     https://docs.anthropic.com/en/api/messages, https://github.com/anthropics/claude-code/issues/23440
 * A2  A `tool_use` whose `tool_result` is not at the start of the next message; a second use of its id.
 *     https://docs.anthropic.com/en/docs/agents-and-tools/tool-use/implement-tool-use
 * A3  A `tool_use` that came with thinking, redacted or not, and is sent back without it; a thinking block that was changed, or that
 *     follows the call.
 *     https://docs.anthropic.com/en/docs/build-with-claude/extended-thinking#preserving-thinking-blocks
 *     https://docs.anthropic.com/en/docs/build-with-claude/extended-thinking#thinking-redaction
 * A4  A temperature above 1, more than four cache marks, a cache mark on thinking.
 *     https://docs.anthropic.com/en/docs/build-with-claude/prompt-caching
 * A5  Property names of tools outside `^[a-zA-Z0-9_.-]{1,64}$`. https://github.com/n8n-io/n8n/issues/30590
 */
import type { JsonValue, Message } from '@boxcar/kernel';
import { z } from 'zod';
import { checkPrompt } from './check-prompt.js';
import {
  answerOfCall,
  DEFAULT_USAGE,
  finishOf,
  frame,
  piecesOf,
  type Seen,
  type ServerAnswer,
  sealOf,
  type Wire,
} from './wire.js';

const json = z.custom<JsonValue>((value) => value !== undefined);
const cache_control = z.strictObject({ type: z.literal('ephemeral') }).optional();
const urlSource = z.strictObject({ type: z.literal('url'), url: z.url() });
const textBlock = z.strictObject({ type: z.literal('text'), text: z.string().regex(/\S/), cache_control });

const bodySchema = z.strictObject({
  model: z.string(),
  max_tokens: z.number().int().positive(),
  temperature: z.number().min(0).max(1).optional(),
  system: z.array(textBlock).min(1).optional(),
  messages: z.array(
    z.discriminatedUnion('role', [
      z.strictObject({
        role: z.literal('user'),
        content: z
          .array(
            z.discriminatedUnion('type', [
              textBlock,
              z.strictObject({ type: z.literal('image'), source: urlSource, cache_control }),
              z.strictObject({
                type: z.literal('document'),
                source: urlSource,
                title: z.string().optional(),
                cache_control,
              }),
              z.strictObject({
                type: z.literal('tool_result'),
                tool_use_id: z.string(),
                content: z.string(),
                is_error: z.literal(true).optional(),
                cache_control,
              }),
            ]),
          )
          .min(1),
      }),
      z.strictObject({
        role: z.literal('assistant'),
        content: z
          .array(
            z.discriminatedUnion('type', [
              textBlock,
              z.strictObject({
                type: z.literal('thinking'),
                thinking: z.string(),
                signature: z.string().min(1),
              }),
              z.strictObject({
                type: z.literal('redacted_thinking'),
                data: z.string().startsWith('sealed-'),
              }),
              z.strictObject({
                type: z.literal('tool_use'),
                id: z.string(),
                name: z.string(),
                input: z.record(z.string(), json),
                cache_control,
              }),
            ]),
          )
          .min(1),
      }),
    ]),
  ),
  tools: z
    .array(
      z.strictObject({
        name: z.string(),
        description: z.string(),
        input_schema: json,
        cache_control,
      }),
    )
    .min(1)
    .optional(),
  tool_choice: z.strictObject({ type: z.enum(['auto', 'none']) }).optional(),
  stream: z.literal(true).optional(),
});

/** A5 */
const PROPERTY_KEYS = { propertyName: /^[a-zA-Z0-9_.-]{1,64}$/ };

type Body = z.infer<typeof bodySchema>;

const isThought = (type: string | undefined): boolean => type === 'thinking' || type === 'redacted_thinking';

/** A3 */
function checkThinking(messages: Body['messages'], answers: Seen['answers']): void {
  for (const [index, message] of messages.entries()) {
    if (message.role !== 'assistant') continue;
    const kinds = message.content.map((block) => block.type);
    for (const block of message.content) {
      if (block.type === 'thinking' && block.signature !== sealOf(block.thinking))
        throw new Error(`messages.${index}: invalid signature in thinking block`);
      if (block.type !== 'tool_use') continue;
      const { reasoning, redacted } = answerOfCall(answers, block.id) ?? {};
      const given = [
        ...(redacted === undefined ? [] : [sealOf(redacted)]),
        ...(reasoning === undefined ? [] : [reasoning]),
      ];
      if (given.length === 0) continue;
      const [first] = message.content;
      if (!isThought(first?.type))
        throw new Error(`messages.${index}.content.0.type: expected thinking, but found ${first?.type}`);
      const sent = message.content.flatMap((part) =>
        part.type === 'thinking' ? [part.thinking] : part.type === 'redacted_thinking' ? [part.data] : [],
      );
      if (JSON.stringify(sent) !== JSON.stringify(given))
        throw new Error(`messages.${index}: thinking blocks cannot be modified`);
    }
    if (kinds.includes('tool_use') && kinds.findLastIndex(isThought) > kinds.indexOf('tool_use'))
      throw new Error(`messages.${index}: thinking after tool_use`);
  }
}

/** Checks alternation, and that every result is at the start of the message after its call. */
function checkOrder(messages: Body['messages']): void {
  for (const [index, message] of messages.entries()) {
    const expected = index % 2 === 0 ? 'user' : 'assistant';
    if (message.role !== expected) throw new Error(`messages.${index}: roles must alternate, user first`);
    if (message.role === 'assistant') {
      const kinds = message.content.map((block) => block.type);
      if (kinds.lastIndexOf('text') > kinds.indexOf('tool_use') && kinds.includes('tool_use'))
        throw new Error(`messages.${index}: text after tool_use`);
      continue;
    }
    const before = messages[index - 1];
    const asked =
      before?.role === 'assistant'
        ? before.content.flatMap((block) => (block.type === 'tool_use' ? [block.id] : []))
        : [];
    const answered = message.content.slice(0, asked.length).map((block) => {
      return block.type === 'tool_result' ? block.tool_use_id : undefined;
    });
    if (new Set(answered).size !== asked.length || asked.some((id) => !answered.includes(id)))
      throw new Error(`messages.${index}: tool_use ids were found without tool_result blocks right after`);
  }
  const marks = JSON.stringify(messages).split('"cache_control"').length - 1;
  if (marks > 3) throw new Error('more than four cache marks');
}

function readMessages({ system = [], messages }: Body): readonly Message[] {
  const nameOf = new Map<string, string>();
  const read: Message[] = system.map((block): Message => ({ role: 'system', content: block.text }));
  for (const message of messages) {
    if (message.role === 'assistant') {
      const uses = message.content.filter((block) => block.type === 'tool_use');
      for (const use of uses) nameOf.set(use.id, use.name);
      const toolCalls = uses.map(({ id, name, input }) => ({ id, name, arguments: input }));
      const texts = message.content.flatMap((block) => (block.type === 'text' ? [block.text] : []));
      read.push({
        role: 'assistant',
        content: texts.join('\n\n'),
        ...(toolCalls.length > 0 ? { toolCalls } : {}),
      });
      continue;
    }
    for (const block of message.content) {
      if (block.type === 'text') read.push({ role: 'user', content: block.text });
      else if (block.type === 'tool_result')
        read.push({
          role: 'tool',
          toolCallId: block.tool_use_id,
          name: nameOf.get(block.tool_use_id) ?? '',
          content: block.content,
          isError: block.is_error ?? false,
        });
    }
  }
  return read;
}

const STOP = { stop: 'end_turn', tool_calls: 'tool_use', length: 'max_tokens', content_filter: 'refusal' };

function usageOf({ usage }: ServerAnswer) {
  const { input, output, cached = 0, cacheWrite = 0, reasoning } = usage ?? DEFAULT_USAGE;
  return {
    input_tokens: usage === null ? 0 : input - cached - cacheWrite,
    output_tokens: usage === null ? 0 : output,
    cache_read_input_tokens: cached,
    cache_creation_input_tokens: cacheWrite,
    ...(reasoning === undefined ? {} : { output_tokens_details: { thinking_tokens: reasoning } }),
  };
}

const head = { id: 'msg_1', type: 'message', role: 'assistant', model: 'served' };

export const anthropicWire: Wire = {
  provider: 'anthropic',
  base: '/v1',
  path: '/messages',
  keyHeader: ['x-api-key', ''],

  read(body, { answers }) {
    const parsed = bodySchema.parse(body);
    checkOrder(parsed.messages);
    checkThinking(parsed.messages, answers);
    const messages = readMessages(parsed);
    const tools = (parsed.tools ?? []).map(({ name, description, input_schema }) => ({
      name,
      description,
      parameters: input_schema,
    }));
    checkPrompt(messages, tools, PROPERTY_KEYS);
    return {
      model: parsed.model,
      messages,
      tools,
      toolChoice: parsed.tool_choice?.type,
      isStreaming: parsed.stream ?? false,
    };
  },

  events(answer) {
    const event = (type: string, data: object): string => frame({ type, ...data }, type);
    const block = (index: number, start: object, deltas: readonly object[]): readonly string[] => [
      event('content_block_start', { index, content_block: start }),
      ...deltas.map((delta) => event('content_block_delta', { index, delta })),
      event('content_block_stop', { index }),
    ];
    const blocks: (readonly [object, readonly object[]])[] = [];
    if (answer.redacted !== undefined)
      blocks.push([{ type: 'redacted_thinking', data: sealOf(answer.redacted) }, []]);
    if (answer.reasoning !== undefined) {
      const deltas = piecesOf(answer.reasoning).map((thinking) => ({ type: 'thinking_delta', thinking }));
      blocks.push([
        { type: 'thinking', thinking: '', signature: '' },
        [...deltas, { type: 'signature_delta', signature: sealOf(answer.reasoning) }],
      ]);
    }
    if (answer.text !== undefined) {
      const deltas = piecesOf(answer.text).map((text) => ({ type: 'text_delta', text }));
      blocks.push([{ type: 'text', text: '' }, deltas]);
    }
    for (const { id, name, arguments: text } of answer.calls ?? []) {
      const deltas = ['', ...piecesOf(text)].map((partial_json) => ({
        type: 'input_json_delta',
        partial_json,
      }));
      blocks.push([{ type: 'tool_use', id, name, input: {} }, deltas]);
    }
    const usage = usageOf(answer);
    return [
      event('message_start', {
        message: {
          ...head,
          content: [],
          stop_reason: null,
          stop_sequence: null,
          usage: { ...usage, output_tokens: usage.output_tokens === 0 ? 0 : 1 },
        },
      }),
      event('ping', {}),
      ...blocks.flatMap(([start, deltas], index) => block(index, start, deltas)),
      event('message_delta', {
        delta: { stop_reason: STOP[finishOf(answer)], stop_sequence: null },
        usage,
      }),
      event('message_stop', {}),
    ];
  },

  whole: (answer) => ({
    ...head,
    content: [
      ...(answer.redacted === undefined
        ? []
        : [{ type: 'redacted_thinking', data: sealOf(answer.redacted) }]),
      ...(answer.reasoning === undefined
        ? []
        : [{ type: 'thinking', thinking: answer.reasoning, signature: sealOf(answer.reasoning) }]),
      ...(answer.text === undefined ? [] : [{ type: 'text', text: answer.text }]),
      ...(answer.calls ?? []).map(({ id, name, arguments: text }) => ({
        type: 'tool_use',
        id,
        name,
        input: JSON.parse(text === '' ? '{}' : text) as unknown,
      })),
    ],
    stop_reason: STOP[finishOf(answer)],
    stop_sequence: null,
    usage: usageOf(answer),
  }),

  error: ({ message, type = 'invalid_request_error' }) => ({ type: 'error', error: { type, message } }),
  errorEvent: (error) => frame(anthropicWire.error(error), 'error'),
};
