/** The kernel's messages and tools in the form of the AI SDK, made valid for the target provider. */
import type {
  LanguageModelV3CallOptions,
  LanguageModelV3FunctionTool,
  LanguageModelV3Message,
  SharedV3ProviderOptions,
} from '@ai-sdk/provider';
import type { JsonValue, Message, MessageToolCall, ModelRequest, ToolSchema, WireNote } from '@boxcar/kernel';
import { type CallIdRules, mapCallIds } from './call-ids.js';
import { type FittedSchema, fitSchema, renameMembers } from './fit-schema.js';
import { type PartRules, toAssistantParts } from './parts.js';
import { mapToolNames, type ToolNames } from './tool-names.js';
import { toObjectSchema } from './tool-schema.js';
import {
  cacheNote,
  callIdNote,
  fillerNote,
  joinedNote,
  leftOutNote,
  nameNote,
  placeholderNote,
} from './wire-notes.js';

/** The differences between providers in the prompts that they accept. */
export interface PromptRules extends PartRules, CallIdRules {
  /** Consecutive messages of one role become one message: chat templates of small models require alternation. */
  readonly joinsNeighbours?: boolean;
  /** The assistant must speak between results and the user's next message. */
  readonly closesResults?: boolean;
  /** The longest tool description that the provider accepts, in characters. */
  readonly maxDescription?: number;
  /** The provider's own form of schemas. */
  readonly toSchema?: (fitted: FittedSchema) => FittedSchema;
  /** Marks how far the prompt may be cached, for a provider that caches only marked parts. */
  readonly cacheMark?: SharedV3ProviderOptions;
  /** A filler that the SDK's provider adds to calls: its text, and whether a given message gets it. */
  readonly callFiller?: {
    readonly text: string;
    readonly why: string;
    readonly isNeeded: (message: LanguageModelV3Message, modelId: string) => boolean;
  };
  /** Says explicitly whether tools are strict, for a provider that treats tools as strict by default. */
  readonly strictTools?: boolean;
}

type AssistantMessage = Extract<Message, { readonly role: 'assistant' }>;
type ToolMessage = Extract<Message, { readonly role: 'tool' }>;

const join = (first: string, second: string): string =>
  first === '' || second === '' ? first + second : `${first}\n\n${second}`;

const hasCalls = (message: AssistantMessage): boolean => (message.toolCalls ?? []).length > 0;

/** The data attached to the first answer is left out: its text is now a part of another message. */
const joinAnswers = (first: AssistantMessage, second: AssistantMessage): AssistantMessage => ({
  ...second,
  content: join(first.content, second.content),
});

/** A message that is sent, with the indexes of the prompt's messages that it consists of. */
interface Sent<M> {
  readonly message: M;
  readonly from: readonly number[];
}

function joinNeighbours(messages: readonly Sent<Message>[]): readonly Sent<Message>[] {
  const joined: Sent<Message>[] = [];
  const put = (message: Message, first: Sent<Message>, from: readonly number[]): void => {
    joined.splice(-1, 1, { message, from: [...first.from, ...from] });
  };
  for (const each of messages) {
    const { message, from } = each;
    const first = joined.at(-1);
    const last = first?.message;
    if (first !== undefined && message.role === 'user' && last?.role === 'user') {
      put({ ...last, content: join(last.content, message.content) }, first, from);
    } else if (
      first !== undefined &&
      message.role === 'assistant' &&
      last?.role === 'assistant' &&
      !hasCalls(last)
    ) {
      put(joinAnswers(last, message), first, from);
    } else {
      joined.push(each);
    }
  }
  return joined;
}

/** The wire forms of the kernel's names and ids in one prompt. */
interface WireWords {
  readonly names: ToolNames;
  readonly members: MemberNames;
  readonly callIds: ReadonlyMap<string, string>;
  readonly rules: PromptRules;
}

type SentPrompt = readonly Sent<LanguageModelV3Message>[];

const toolResult = (message: ToolMessage, { names, callIds }: WireWords) => ({
  type: 'tool-result' as const,
  toolCallId: callIds.get(message.toolCallId) ?? message.toolCallId,
  toolName: names.toWire(message.name),
  output: { type: message.isError ? ('error-text' as const) : ('text' as const), value: message.content },
});

function toWireMessage(
  message: Exclude<Message, ToolMessage>,
  words: WireWords,
  onLeftOut: () => void,
): LanguageModelV3Message {
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
      return { role: 'assistant', content: toAssistantParts(message, toCall, { ...words.rules, onLeftOut }) };
    }
    default:
      return message satisfies never;
  }
}

function toWireMessages(
  messages: readonly Sent<Message>[],
  words: WireWords,
  notes: WireNote[],
): readonly Sent<LanguageModelV3Message>[] {
  const prompt: { message: LanguageModelV3Message; from: number[] }[] = [];
  const leftOut: number[] = [];
  for (const { message, from } of messages) {
    if (message.role !== 'tool') {
      const onLeftOut = (): void => void leftOut.push(...from);
      prompt.push({ message: toWireMessage(message, words, onLeftOut), from: [...from] });
      continue;
    }
    // The results of one step are one message: Anthropic requires that.
    const last = prompt.at(-1);
    if (last?.message.role === 'tool') {
      last.message.content.push(toolResult(message, words));
      last.from.push(...from);
    } else prompt.push({ message: { role: 'tool', content: [toolResult(message, words)] }, from: [...from] });
  }
  if (leftOut.length > 0) notes.push(leftOutNote(leftOut));
  return prompt;
}

/** A fixed text, so that a prompt stays the beginning of the next prompt. */
const NOTED_TEXT = '[noted]';
const NOTED: LanguageModelV3Message = { role: 'assistant', content: [{ type: 'text', text: NOTED_TEXT }] };

function closeResults(prompt: SentPrompt, notes: WireNote[]): SentPrompt {
  const before: number[] = [];
  const closed = prompt.flatMap((sent, index) => {
    if (sent.message.role !== 'user' || prompt[index - 1]?.message.role !== 'tool') return [sent];
    before.push(...sent.from.slice(0, 1));
    return [{ message: NOTED, from: [] }, sent];
  });
  if (before.length > 0)
    notes.push(fillerNote(NOTED_TEXT, before, 'is said by the assistant before the message'));
  return closed;
}

/**
 * Marks the system prompt and the end of the inherited context, which siblings share, and the last message, which the next step repeats.
 * These are at most three of the four marks that Anthropic allows.
 *
 * @param shared - The number of the prompt's messages that siblings share.
 */
function markCache(
  prompt: SentPrompt,
  {
    mark,
    shared,
    notes,
  }: {
    readonly mark: SharedV3ProviderOptions;
    readonly shared: number;
    readonly notes: WireNote[];
  },
): SentPrompt {
  const marked: number[] = [];
  const result = prompt.map(({ message, from }, index) => {
    const isMarked = message.role === 'system' || index === shared - 1 || index === prompt.length - 1;
    if (isMarked) marked.push(...from.slice(-1));
    return isMarked ? { message: { ...message, providerOptions: mark }, from } : { message, from };
  });
  if (marked.length > 0) notes.push(cacheNote(marked));
  return result;
}

/** Notes the fillers that the SDK's provider adds by itself. */
function noteFillers(
  prompt: SentPrompt,
  { callFiller }: PromptRules,
  of: { readonly modelId: string; readonly notes: WireNote[] },
): void {
  if (callFiller === undefined) return;
  const filled = prompt.filter(({ message }) => callFiller.isNeeded(message, of.modelId));
  if (filled.length === 0) return;
  const at = filled.flatMap(({ from }) => from.slice(-1));
  of.notes.push(fillerNote(callFiller.text, at, callFiller.why));
}

/** The number of wire messages for the first `count` messages; the results of one step are one message there. */
const wireCount = (messages: readonly Message[], count: number): number =>
  messages
    .slice(0, count)
    .filter(({ role }, index) => role !== 'tool' || messages[index - 1]?.role !== 'tool').length;

const callsIn = (messages: readonly Message[]) =>
  messages.flatMap((message) => (message.role === 'assistant' ? (message.toolCalls ?? []) : []));

const NONE: ReadonlyMap<string, string> = new Map();

/** The parameters of a tool in the form that this provider accepts. */
function fitTool(parameters: JsonValue, { toSchema }: Pick<PromptRules, 'toSchema'>): FittedSchema {
  const fitted = fitSchema(toObjectSchema(parameters));
  return toSchema?.(fitted) ?? fitted;
}

const describeTool = ({ description }: ToolSchema, { maxDescription }: PromptRules): string =>
  description.slice(0, maxDescription).toWellFormed();

/** The parts of a tool that a model of this provider does not see, in words. */
export function findUntold(tool: ToolSchema, rules: PromptRules): readonly string[] {
  const { description } = tool;
  const told = describeTool(tool, rules).length;
  const cut =
    told < description.length
      ? [`its description has ${description.length} characters: the first ${told} are sent`]
      : [];
  return [...fitTool(tool.parameters, rules).findings, ...cut];
}

/** A placeholder for a tool that the history used and this step does not offer. */
const pastTool = (name: string): ToolSchema => ({
  name,
  description: 'Not available in this step.',
  parameters: { type: 'object', properties: {} },
});

/** By the name of a tool: the member names of its arguments that differ on the wire. */
export type MemberNames = (tool: string) => ReadonlyMap<string, string>;

export interface WirePrompt {
  /** The parts that are sent in another form than in the request, or are not in the request at all. */
  readonly notes: readonly WireNote[];
  readonly names: ToolNames;
  readonly members: MemberNames;
  readonly options: Pick<LanguageModelV3CallOptions, 'prompt' | 'tools' | 'toolChoice'>;
}

/**
 * Translates a request's messages and tools. When a step has no tools but its history used some, the prompt declares those tools and
 * forbids calls: Anthropic, and gateways in front of it, refuse a history with undeclared calls.
 */
export function toWirePrompt(
  request: Pick<ModelRequest, 'messages' | 'tools'> & {
    readonly turn?: Pick<ModelRequest['turn'], 'sharedMessages'>;
  },
  rules: PromptRules,
  modelId: string,
): WirePrompt {
  const notes: WireNote[] = [];
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
      // The SDK's type of a JSON schema is narrower than valid schemas; the SDK passes them on unchanged.
      inputSchema: { ...schemas.get(tool.name)?.schema },
      ...(rules.strictTools === undefined ? {} : { strict: rules.strictTools }),
    }),
  );
  if (!offersTools)
    notes.push(...declared.map(({ name, description }) => placeholderNote(name, description)));
  for (const name of new Set([...declared.map((tool) => tool.name), ...called]))
    if (names.toWire(name) !== name) notes.push(nameNote(name, names.toWire(name)));
  const each = request.messages.map((message, index) => ({ message, from: [index] }));
  const sent = rules.joinsNeighbours === true ? joinNeighbours(each) : each;
  for (const { from } of sent) if (from.length > 1) notes.push(joinedNote(from));
  const messages = sent.map(({ message }) => message);
  const callIds = mapCallIds(messages, rules);
  const renamed = sent.filter(({ message }) => callsIn([message]).some(({ id }) => callIds.get(id) !== id));
  if (renamed.length > 0) notes.push(callIdNote(renamed.flatMap(({ from }) => from.slice(-1))));
  const written = toWireMessages(sent, { names, members, callIds, rules }, notes);
  const { cacheMark: mark } = rules;
  const shared = wireCount(messages, request.turn?.sharedMessages ?? 0);
  const marked = mark === undefined ? written : markCache(written, { mark, shared, notes });
  const closed = rules.closesResults === true ? closeResults(marked, notes) : marked;
  noteFillers(closed, rules, { modelId, notes });
  return {
    notes,
    names,
    members,
    options: {
      prompt: closed.map(({ message }) => message),
      ...(tools.length === 0 ? {} : { tools, toolChoice: { type: offersTools ? 'auto' : 'none' } }),
    },
  };
}
