/** The kernel's messages and tools in the form of the AI SDK, made valid for the provider behind it. */
import type {
  LanguageModelV3CallOptions,
  LanguageModelV3FunctionTool,
  LanguageModelV3Message,
  LanguageModelV3Prompt,
  SharedV3ProviderOptions,
} from '@ai-sdk/provider';
import type { JsonValue, Message, MessageToolCall, ModelRequest, ToolSchema } from '@boxcar/kernel';
import { type CallIdRules, mapCallIds } from './call-ids.js';
import { type FittedSchema, fitSchema, renameMembers } from './fit-schema.js';
import { type PartRules, toAssistantParts } from './parts.js';
import { mapToolNames, type ToolNames } from './tool-names.js';
import { toObjectSchema } from './tool-schema.js';

/** How providers differ in what they take. */
export interface PromptRules extends PartRules, CallIdRules {
  /** Neighbours of one role become one message: chat templates of small models insist on alternation. */
  readonly joinsNeighbours?: boolean;
  /** The assistant has to speak between results and the user's next message. */
  readonly closesResults?: boolean;
  /** Characters of a tool's description that the provider takes. */
  readonly maxDescription?: number;
  /** The provider's own form of schemas. */
  readonly toSchema?: (fitted: FittedSchema) => FittedSchema;
  /** Marks how far the prompt may be cached, where a provider caches only what is marked. */
  readonly cacheMark?: SharedV3ProviderOptions;
  /** Says explicitly whether tools are strict, where leaving it out means that they are. */
  readonly strictTools?: boolean;
}

type AssistantMessage = Extract<Message, { readonly role: 'assistant' }>;
type ToolMessage = Extract<Message, { readonly role: 'tool' }>;

const join = (first: string, second: string): string =>
  first === '' || second === '' ? first + second : `${first}\n\n${second}`;

const hasCalls = (message: AssistantMessage): boolean => (message.toolCalls ?? []).length > 0;

/** What was attached to the first answer is left out: its words are now a part of another message. */
const joinAnswers = (first: AssistantMessage, second: AssistantMessage): AssistantMessage => ({
  ...second,
  content: join(first.content, second.content),
});

function joinNeighbours(messages: readonly Message[]): readonly Message[] {
  const joined: Message[] = [];
  for (const message of messages) {
    const last = joined.at(-1);
    if (message.role === 'user' && last?.role === 'user') {
      joined.splice(-1, 1, { ...last, content: join(last.content, message.content) });
    } else if (message.role === 'assistant' && last?.role === 'assistant' && !hasCalls(last)) {
      joined.splice(-1, 1, joinAnswers(last, message));
    } else {
      joined.push(message);
    }
  }
  return joined;
}

/** What stands for the kernel's names and ids in one prompt. */
interface WireWords {
  readonly names: ToolNames;
  readonly members: MemberNames;
  readonly callIds: ReadonlyMap<string, string>;
  readonly rules: PromptRules;
}

const toolResult = (message: ToolMessage, { names, callIds }: WireWords) => ({
  type: 'tool-result' as const,
  toolCallId: callIds.get(message.toolCallId) ?? message.toolCallId,
  toolName: names.toWire(message.name),
  output: { type: message.isError ? ('error-text' as const) : ('text' as const), value: message.content },
});

function toWireMessage(message: Exclude<Message, ToolMessage>, words: WireWords): LanguageModelV3Message {
  switch (message.role) {
    case 'system':
      return { role: 'system', content: message.content };
    case 'user':
      return { role: 'user', content: [{ type: 'text', text: message.content }] };
    case 'assistant': {
      const toCall = (call: MessageToolCall) => ({
        type: 'tool-call' as const,
        toolCallId: words.callIds.get(call.id) ?? call.id,
        toolName: words.names.toWire(call.name),
        input: renameMembers(call.arguments, words.members(call.name)),
      });
      return { role: 'assistant', content: toAssistantParts(message, toCall, words.rules) };
    }
    default:
      return message satisfies never;
  }
}

function toWireMessages(messages: readonly Message[], words: WireWords): LanguageModelV3Prompt {
  const prompt: LanguageModelV3Prompt = [];
  for (const message of messages) {
    if (message.role !== 'tool') {
      prompt.push(toWireMessage(message, words));
      continue;
    }
    // Results of one step stand together: Anthropic wants them in one message.
    const last = prompt.at(-1);
    if (last?.role === 'tool') last.content.push(toolResult(message, words));
    else prompt.push({ role: 'tool', content: [toolResult(message, words)] });
  }
  return prompt;
}

/** A fixed word, so that a prompt stays the beginning of the next one. */
const NOTED: LanguageModelV3Message = { role: 'assistant', content: [{ type: 'text', text: '[noted]' }] };

const closeResults = (prompt: LanguageModelV3Prompt): LanguageModelV3Prompt =>
  prompt.flatMap((message, index) =>
    message.role === 'user' && prompt[index - 1]?.role === 'tool' ? [NOTED, message] : [message],
  );

/**
 * On the system prompt and the end of the inherited context, which siblings share, and on the last message, which the next step
 * repeats: at most three of the four that Anthropic takes.
 *
 * @param shared - How many messages of the prompt siblings share.
 */
function markCache(
  prompt: LanguageModelV3Prompt,
  { mark, shared }: { readonly mark: SharedV3ProviderOptions; readonly shared: number },
): LanguageModelV3Prompt {
  return prompt.map((message, index) =>
    message.role === 'system' || index === shared - 1 || index === prompt.length - 1
      ? { ...message, providerOptions: mark }
      : message,
  );
}

/** The messages on the wire that stand for the first `count`; results of one step are one message there. */
const wireCount = (messages: readonly Message[], count: number): number =>
  messages
    .slice(0, count)
    .filter(({ role }, index) => role !== 'tool' || messages[index - 1]?.role !== 'tool').length;

const callsIn = (messages: readonly Message[]) =>
  messages.flatMap((message) => (message.role === 'assistant' ? (message.toolCalls ?? []) : []));

const NONE: ReadonlyMap<string, string> = new Map();

/** The parameters of a tool as this provider takes them. */
function fitTool(parameters: JsonValue, { toSchema }: Pick<PromptRules, 'toSchema'>): FittedSchema {
  const fitted = fitSchema(toObjectSchema(parameters));
  return toSchema?.(fitted) ?? fitted;
}

const describeTool = ({ description }: ToolSchema, { maxDescription }: PromptRules): string =>
  description.slice(0, maxDescription).toWellFormed();

/** What a model of this provider is not told of a tool, in words. */
export function findUntold(tool: ToolSchema, rules: PromptRules): readonly string[] {
  const { description } = tool;
  const told = describeTool(tool, rules).length;
  const cut =
    told < description.length
      ? [`its description has ${description.length} characters: the first ${told} are told`]
      : [];
  return [...fitTool(tool.parameters, rules).findings, ...cut];
}

/** Stands for a tool that the history used and this step does not offer. */
const pastTool = (name: string): ToolSchema => ({
  name,
  description: 'Not available in this step.',
  parameters: { type: 'object', properties: {} },
});

/** By the name of a tool: which members of its arguments have another name on the wire. */
export type MemberNames = (tool: string) => ReadonlyMap<string, string>;

export interface WirePrompt {
  readonly names: ToolNames;
  readonly members: MemberNames;
  readonly options: Pick<LanguageModelV3CallOptions, 'prompt' | 'tools' | 'toolChoice'>;
}

/**
 * Translates a request's messages and tools. A step without tools whose history used some declares those and forbids
 * to call them: Anthropic, and gateways in front of it, refuse a history of undeclared calls.
 */
export function toWirePrompt(
  request: Pick<ModelRequest, 'messages' | 'tools'> & {
    readonly turn?: Pick<ModelRequest['turn'], 'sharedMessages'>;
  },
  rules: PromptRules,
): WirePrompt {
  const called = new Set(callsIn(request.messages).map((call) => call.name));
  const names = mapToolNames([...request.tools.map((tool) => tool.name), ...called]);
  const offersTools = request.tools.length > 0;
  const declared = offersTools ? request.tools : [...called].map(pastTool);
  const schemas = new Map(
    declared.map(({ name, parameters }) => [name, fitTool(parameters, rules)] as const),
  );
  const members: MemberNames = (tool) => schemas.get(tool)?.renamed ?? NONE;
  const tools = declared.map(
    (tool): LanguageModelV3FunctionTool => ({
      type: 'function',
      name: names.toWire(tool.name),
      description: describeTool(tool, rules),
      // The SDK's type of a JSON schema is narrower than what schemas may hold; it passes them on as they are.
      inputSchema: { ...schemas.get(tool.name)?.schema },
      ...(rules.strictTools === undefined ? {} : { strict: rules.strictTools }),
    }),
  );
  const messages = rules.joinsNeighbours === true ? joinNeighbours(request.messages) : request.messages;
  const written = toWireMessages(messages, { names, members, callIds: mapCallIds(messages, rules), rules });
  const { cacheMark: mark } = rules;
  const shared = wireCount(messages, request.turn?.sharedMessages ?? 0);
  const marked = mark === undefined ? written : markCache(written, { mark, shared });
  return {
    names,
    members,
    options: {
      prompt: rules.closesResults === true ? closeResults(marked) : marked,
      ...(tools.length === 0 ? {} : { tools, toolChoice: { type: offersTools ? 'auto' : 'none' } }),
    },
  };
}
