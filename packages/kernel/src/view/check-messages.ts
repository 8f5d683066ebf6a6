/**
 * Checks a prompt against the combined rules of the strictest providers: OpenAI's chat completions and Anthropic's
 * messages.
 */
import { isJsonObject, type JsonValue } from '../base/index.js';
import type { Message, MessageToolCall, ToolSchema } from '../card/index.js';
import { isBlank } from '../render/render.js';

const callIdPattern = /^[a-zA-Z0-9_-]{1,64}$/;
/** The dot is the kernel's own (`tape.handoff`); adapters map it. */
const toolNamePattern = /^[a-zA-Z0-9_.-]{1,64}$/;

const isClean = (text: string): boolean => !text.includes('\u0000') && text.isWellFormed();

function isCleanJson(value: JsonValue): boolean {
  if (typeof value === 'string') return isClean(value);
  if (Array.isArray(value)) return value.every((item) => isCleanJson(item));
  if (isJsonObject(value))
    return Object.entries(value).every(([key, member]) => isClean(key) && isCleanJson(member));
  return true;
}

/**
 * Returns every finding in order, with the index of its message. The list is empty for a prompt that both OpenAI and
 * Anthropic accept.
 *
 * Rules: only the first message may be a system message; then a user message follows. Each call is answered exactly
 * once, directly after the message that makes it. No result is without a call. Call ids are unique and short. No text
 * is blank. Arguments are objects. Names fit the pattern. The prompt ends with a user or a tool message. No text has a
 * NUL or a lone surrogate.
 */
export function checkMessages(messages: readonly Message[], tools: readonly ToolSchema[]): readonly string[] {
  const findings = checkTools(tools);
  const callIds = new Set<string>();
  let open = new Map<string, string>();
  for (const [index, message] of messages.entries()) {
    const find = (what: string): void => {
      findings.push(`messages[${index}]: ${what}`);
    };
    if (message.role === 'tool') {
      const name = open.get(message.toolCallId);
      if (name === undefined) find(`answers '${message.toolCallId}', which is not an open call`);
      else if (name !== message.name)
        find(`answers '${message.toolCallId}' as ${message.name}, called ${name}`);
      open.delete(message.toolCallId);
    } else if (open.size > 0) {
      find(`is before the answers to ${[...open.keys()].join(', ')}`);
      open = new Map();
    }
    if (message.role === 'system' && index > 0) find('a system message that is not the first');
    const isFirst = index === 0 || (index === 1 && messages[0]?.role === 'system');
    if (isFirst && (message.role === 'assistant' || message.role === 'tool'))
      find('the first must be a user message');
    for (const finding of checkContent(message)) find(finding);
    if (message.role !== 'assistant' || message.toolCalls === undefined) continue;
    if (message.toolCalls.length === 0) find('an empty list of calls');
    for (const call of message.toolCalls) {
      if (callIds.has(call.id)) find(`call id '${call.id}' is used twice`);
      callIds.add(call.id);
      open.set(call.id, call.name);
      for (const finding of checkCall(call)) find(finding);
    }
  }
  if (open.size > 0) findings.push(`the prompt ends before the answers to ${[...open.keys()].join(', ')}`);
  const last = messages.at(-1);
  if (last === undefined || last.role === 'system') findings.push('the prompt holds no user message');
  else if (last.role === 'assistant') findings.push('the prompt ends with an assistant message');
  return findings;
}

function checkContent(message: Message): readonly string[] {
  const { content, role } = message;
  const findings: string[] = [];
  const hasCalls = role === 'assistant' && (message.toolCalls ?? []).length > 0;
  if (role === 'tool' && content === '') findings.push('the result is empty');
  else if (hasCalls && content !== '' && isBlank(content)) findings.push('blank text beside calls');
  else if (role !== 'tool' && !hasCalls && isBlank(content)) findings.push('the text is blank');
  if (!isClean(content)) findings.push('the text holds NUL or a lone surrogate');
  return findings;
}

function checkCall({ id, name, arguments: args }: MessageToolCall): readonly string[] {
  const findings: string[] = [];
  if (!callIdPattern.test(id)) findings.push(`call id '${id}' is not legal`);
  if (!toolNamePattern.test(name)) findings.push(`tool name '${name}' is not legal`);
  if (!isJsonObject(args)) findings.push(`the arguments of '${id}' are not an object`);
  if (!isCleanJson(args)) findings.push(`the arguments of '${id}' hold NUL or a lone surrogate`);
  return findings;
}

function checkTools(tools: readonly ToolSchema[]): string[] {
  const findings: string[] = [];
  const names = new Set<string>();
  for (const [index, { name, description, parameters }] of tools.entries()) {
    const head = `tools[${index}]`;
    if (!toolNamePattern.test(name)) findings.push(`${head}: name '${name}' is not legal`);
    if (names.has(name)) findings.push(`${head}: name '${name}' is used twice`);
    names.add(name);
    const isObjectSchema = isJsonObject(parameters) && parameters.type === 'object';
    if (!isObjectSchema) findings.push(`${head}: parameters are not a JSON schema of an object`);
    if (!isClean(description) || !isCleanJson(parameters))
      findings.push(`${head}: holds NUL or a lone surrogate`);
  }
  return findings;
}
