/**
 * Gemini's generateContent. Refused, in addition to the findings of `checkPrompt`:
 *
 * G1  Contents without parts, parts without data, a first content that is not from the user, unknown keys.
 *     https://ai.google.dev/api/caching#Content
 * G2  A number of function responses that differs from the number of calls in the turn before; a call that follows neither a user's turn
 *     nor responses.
 *     https://ai.google.dev/gemini-api/docs/function-calling, https://github.com/google-gemini/gemini-cli/issues/4217
 * G3  In the current turn (after the last text of the user) a first call without its signature, or with another signature than came with
 *     it.
 *     https://ai.google.dev/gemini-api/docs/thought-signatures
 * G4  Names of functions outside `^[a-zA-Z_][a-zA-Z0-9_.:-]{0,63}$`. https://github.com/cline/cline/issues/7339
 * G5  Schemas: unknown keywords, arrays whose items have no type, enums of anything but text, an object without properties, a `required`
 *     that names a missing property. https://ai.google.dev/api/caching#Schema,
 *     https://github.com/zed-extensions/mcp-server-brave-search/issues/12, https://github.com/spiritledsoftware/caplets/issues/178
 */
import { isJsonObject, type JsonValue, type Message } from '@boxcar/kernel';
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
const signed = { thoughtSignature: z.string().min(1).optional() };

const userPart = z.union([
  z.strictObject({ text: z.string().min(1) }),
  z.strictObject({
    functionResponse: z.strictObject({
      id: z.string(),
      name: z.string(),
      response: z.strictObject({ name: z.string(), content: z.string() }),
    }),
  }),
]);
const modelPart = z.union([
  z.strictObject({ text: z.string().min(1), thought: z.literal(true).optional(), ...signed }),
  z.strictObject({
    functionCall: z.strictObject({ id: z.string(), name: z.string(), args: z.record(z.string(), json) }),
    ...signed,
  }),
]);

const bodySchema = z.strictObject({
  contents: z.array(
    z.discriminatedUnion('role', [
      z.strictObject({ role: z.literal('user'), parts: z.array(userPart).min(1) }),
      z.strictObject({ role: z.literal('model'), parts: z.array(modelPart).min(1) }),
    ]),
  ),
  systemInstruction: z
    .strictObject({ parts: z.array(z.strictObject({ text: z.string().min(1) })).min(1) })
    .optional(),
  generationConfig: z.strictObject({
    maxOutputTokens: z.number().int().positive().optional(),
    temperature: z.number().min(0).max(2).optional(),
  }),
  tools: z
    .array(
      z.strictObject({
        functionDeclarations: z
          .array(z.strictObject({ name: z.string(), description: z.string(), parameters: json.optional() }))
          .min(1),
      }),
    )
    .optional(),
  toolConfig: z
    .strictObject({ functionCallingConfig: z.strictObject({ mode: z.enum(['AUTO', 'NONE']) }) })
    .optional(),
});
type Contents = z.infer<typeof bodySchema>['contents'];

const callsIn = (content: Contents[number] | undefined) =>
  content?.role === 'model'
    ? content.parts.flatMap((part) => ('functionCall' in part ? [{ ...part.functionCall, ...part }] : []))
    : [];
const responsesIn = (content: Contents[number] | undefined) =>
  content?.role === 'user'
    ? content.parts.flatMap((part) => ('functionResponse' in part ? [part.functionResponse] : []))
    : [];

/** G1, G2 */
function checkOrder(contents: Contents): void {
  if (contents[0]?.role !== 'user') throw new Error('Please ensure that the first content is of role user.');
  for (const [index, content] of contents.entries()) {
    const before = contents[index - 1];
    if (callsIn(content).length > 0 && before?.role !== 'user')
      throw new Error(
        'Please ensure that function call turn comes immediately after a user turn or after a function response turn.',
      );
    if (callsIn(before).length > 0 && responsesIn(content).length !== callsIn(before).length)
      throw new Error(
        'Please ensure that the number of function response parts is equal to the number of function call parts of the function call turn.',
      );
  }
}

/** The value that Google documents for calls whose signature is not known. */
const SKIP = 'skip_thought_signature_validator';

/** G3 */
function checkSignatures(contents: Contents, { answers, path }: Seen): void {
  if (!path.includes('/gemini-3')) return;
  const start = contents.findLastIndex(
    (content) => content.role === 'user' && content.parts.some((part) => 'text' in part),
  );
  for (const [index, content] of contents.entries()) {
    const [first, ...others] = callsIn(content);
    if (first === undefined || index < start) continue;
    const { reasoning } = answerOfCall(answers, first.id) ?? {};
    const isGiven = first.thoughtSignature === (reasoning === undefined ? SKIP : sealOf(reasoning));
    if (first.thoughtSignature === undefined)
      throw new Error(`Function call is missing a thought_signature in functionCall parts: ${first.name}`);
    if (!isGiven) throw new Error('Corrupted thought signature.');
    const hasOwn = others.some(({ thoughtSignature }) => ![undefined, SKIP].includes(thoughtSignature));
    if (hasOwn) throw new Error('Corrupted thought signature.');
  }
}

const KEYWORDS = new Set([
  ...['type', 'format', 'title', 'description', 'nullable', 'enum', 'maxItems', 'minItems', 'properties'],
  ...['required', 'minLength', 'maxLength', 'pattern', 'anyOf', 'items', 'minimum', 'maximum', 'default'],
]);

/** G5 */
function checkSchema(schema: JsonValue | undefined, place: string): void {
  if (!isJsonObject(schema)) throw new Error(`${place}: is not a schema`);
  for (const keyword of Object.keys(schema))
    if (!KEYWORDS.has(keyword))
      throw new Error(`Unknown name "${keyword}" at '${place}': Cannot find field.`);
  if (schema.anyOf === undefined && typeof schema.type !== 'string')
    throw new Error(`${place}.type: must be specified`);
  if (schema.type === 'array' && schema.items === undefined)
    throw new Error(`${place}.items: missing field.`);
  if (
    schema.enum !== undefined &&
    !(schema.enum as readonly JsonValue[]).every((value) => typeof value === 'string')
  )
    throw new Error(`${place}.enum: only allowed for STRING type`);
  if (schema.items !== undefined) checkSchema(schema.items, `${place}.items`);
  for (const part of (schema.anyOf ?? []) as readonly JsonValue[]) checkSchema(part, `${place}.anyOf`);
  const properties = (schema.properties ?? {}) as Record<string, JsonValue>;
  if (schema.properties !== undefined && Object.keys(properties).length === 0)
    throw new Error(`${place}.properties: should be non-empty for OBJECT type`);
  for (const name of (schema.required ?? []) as readonly string[])
    if (!Object.hasOwn(properties, name)) throw new Error(`${place}.required: property is not defined`);
  for (const [name, member] of Object.entries(properties))
    checkSchema(member, `${place}.properties[${name}]`);
}

function readMessages({ systemInstruction, contents }: z.infer<typeof bodySchema>): readonly Message[] {
  const system = (systemInstruction?.parts ?? []).map(
    ({ text }): Message => ({ role: 'system', content: text }),
  );
  return [
    ...system,
    ...contents.flatMap((content): readonly Message[] => {
      if (content.role === 'model') {
        const toolCalls = callsIn(content).map(({ id, name, args }) => ({ id, name, arguments: args }));
        const words = content.parts.flatMap((part) =>
          'text' in part && part.thought !== true ? [part.text] : [],
        );
        return [
          { role: 'assistant', content: words.join(''), ...(toolCalls.length > 0 ? { toolCalls } : {}) },
        ];
      }
      return content.parts.map((part): Message => {
        if ('text' in part) return { role: 'user', content: part.text };
        const { id, name, response } = part.functionResponse;
        return { role: 'tool', toolCallId: id, name, content: response.content, isError: false };
      });
    }),
  ];
}

const FINISH = { stop: 'STOP', tool_calls: 'STOP', length: 'MAX_TOKENS', content_filter: 'SAFETY' };

function usageOf({ usage = DEFAULT_USAGE }: ServerAnswer) {
  if (usage === null) return undefined;
  const { input, output, cached, reasoning = 0 } = usage;
  return {
    promptTokenCount: input,
    candidatesTokenCount: output - reasoning,
    totalTokenCount: input + output,
    ...(cached === undefined ? {} : { cachedContentTokenCount: cached }),
    ...(usage.reasoning === undefined ? {} : { thoughtsTokenCount: reasoning }),
  };
}

const STATUSES: Readonly<Record<string, readonly [string, number] | undefined>> = {
  rate_limit_error: ['RESOURCE_EXHAUSTED', 429],
  overloaded_error: ['UNAVAILABLE', 503],
  server_error: ['INTERNAL', 500],
  authentication_error: ['UNAUTHENTICATED', 401],
  not_found_error: ['NOT_FOUND', 404],
};

const partsOf = (answer: ServerAnswer, cut: (text: string) => readonly string[]): readonly object[] => {
  const calls = (answer.calls ?? []).map(({ id, name, arguments: text }, index) => ({
    functionCall: { id, name, args: JSON.parse(text === '' ? '{}' : text) as unknown },
    // One signature for all calls of an answer, on the first call.
    ...(index === 0 && answer.reasoning !== undefined ? { thoughtSignature: sealOf(answer.reasoning) } : {}),
  }));
  return [
    ...cut(answer.reasoning ?? '').map((text) => ({ text, thought: true })),
    ...cut(answer.text ?? '').map((text) => ({ text })),
    ...calls,
  ];
};

const inOne = (text: string): readonly string[] => (text === '' ? [] : [text]);

const responseOf = (parts: readonly object[], more: object = {}) => ({
  candidates: [{ content: { role: 'model', parts }, index: 0, ...more }],
  modelVersion: 'served',
});

export const geminiWire: Wire = {
  provider: 'google',
  base: '/v1beta',
  path: /^\/models\/[^/:]+:(generateContent|streamGenerateContent\?alt=sse)$/,
  keyHeader: ['x-goog-api-key', ''],

  read(body, seen) {
    const parsed = bodySchema.parse(body);
    checkOrder(parsed.contents);
    checkSignatures(parsed.contents, seen);
    const declared = (parsed.tools ?? []).flatMap(({ functionDeclarations }) => functionDeclarations);
    for (const { name, parameters } of declared) {
      if (!/^[a-zA-Z_][a-zA-Z0-9_.:-]{0,63}$/.test(name)) throw new Error(`${name}: Invalid function name.`);
      if (parameters !== undefined) checkSchema(parameters, `function_declarations[${name}].parameters`);
    }
    const tools = declared.map(({ name, description, parameters = { type: 'object', properties: {} } }) => ({
      name,
      description,
      parameters,
    }));
    const messages = readMessages(parsed);
    checkPrompt(messages, tools);
    return {
      model: /\/models\/([^/:]+):/.exec(seen.path)?.[1] ?? '',
      messages,
      tools,
      toolChoice: parsed.toolConfig?.functionCallingConfig.mode.toLowerCase(),
      isStreaming: seen.path.includes(':streamGenerateContent'),
    };
  },

  events(answer) {
    const usageMetadata = usageOf(answer);
    // Each event has the usage up to that event.
    const soFar =
      usageMetadata === undefined
        ? {}
        : {
            usageMetadata: {
              promptTokenCount: usageMetadata.promptTokenCount,
              totalTokenCount: usageMetadata.promptTokenCount,
            },
          };
    return [
      frame({ ...responseOf([{ text: '' }]), ...soFar }),
      ...partsOf(answer, piecesOf).map((part) => frame({ ...responseOf([part]), ...soFar })),
      frame({ ...responseOf([{ text: '' }], { finishReason: FINISH[finishOf(answer)] }), usageMetadata }),
    ];
  },

  whole: (answer) => ({
    ...responseOf(partsOf(answer, inOne), { finishReason: FINISH[finishOf(answer)] }),
    usageMetadata: usageOf(answer),
  }),

  error: ({ message, type = 'invalid_request_error', code }) => {
    const [status, number] = STATUSES[code ?? type] ?? STATUSES[type] ?? ['INVALID_ARGUMENT', 400];
    return { error: { code: number, message, status } };
  },
  errorEvent: (error) => frame(geminiWire.error(error)),
};
