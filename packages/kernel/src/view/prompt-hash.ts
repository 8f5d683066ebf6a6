import { createHash, type Hash } from 'node:crypto';
import { canonicalJson, type JsonValue, sha256 } from '../base/index.js';
import type { Message, ToolSchema } from '../card/index.js';

/** Writes the RFC 8785 text of a message directly: its keys are known, so nothing is sorted. */
function canonicalMessage(message: Message): string {
  const content = JSON.stringify(message.content);
  switch (message.role) {
    case 'system':
    case 'user':
      return `{"content":${content},"role":"${message.role}"}`;
    case 'assistant': {
      const { provider } = message;
      const attached =
        provider === undefined ? '' : `"provider":${canonicalJson(provider as unknown as JsonValue)},`;
      if (message.toolCalls === undefined) return `{"content":${content},${attached}"role":"assistant"}`;
      const calls = message.toolCalls.map(
        (call) =>
          `{"arguments":${canonicalJson(call.arguments)},"id":${JSON.stringify(call.id)},"name":${JSON.stringify(call.name)}}`,
      );
      return `{"content":${content},${attached}"role":"assistant","toolCalls":[${calls.join(',')}]}`;
    }
    case 'tool':
      return `{"content":${content},"isError":${message.isError},"name":${JSON.stringify(message.name)},"role":"tool","toolCallId":${JSON.stringify(message.toolCallId)}}`;
    default:
      return message satisfies never;
  }
}

/** Characters hashed at once: enough to make hash calls rare, few enough to avoid a copy of the whole prompt. */
const CHUNK = 65_536;

const EMPTY = createHash('sha256').update('{"messages":[');

/** Adds messages `from` to `to` (exclusive) of a prompt to the hash of the messages before them. */
function addMessages(hash: Hash, messages: readonly Message[], from: number, to: number): void {
  let chunk = '';
  for (let at = from; at < to; at += 1) {
    const message = messages[at];
    if (message === undefined) break;
    chunk += at === 0 ? canonicalMessage(message) : `,${canonicalMessage(message)}`;
    if (chunk.length < CHUNK) continue;
    hash.update(chunk);
    chunk = '';
  }
  hash.update(chunk);
}

/** sha256 over the RFC 8785 text of `{ messages, tools }`: equal hashes mean equal prompts. */
export const promptHash = (messages: readonly Message[], tools: readonly ToolSchema[]): string =>
  new PromptHasher().hash(messages, tools);

/** The hash of the beginning of a prompt. */
interface Mark {
  readonly messages: readonly Message[];
  readonly hash: Hash;
}

/** Compares contents first. Equal contents are mostly the same string, which costs no comparison of characters. */
const isEqual = (a: Message, b: Message): boolean =>
  a === b ||
  (a.role === b.role &&
    a.content === b.content &&
    (a.role === 'user' ||
      a.role === 'system' ||
      canonicalMessage(withoutCommon(a, b)) === canonicalMessage(withoutCommon(b, a))));

/**
 * Drops the members that need no comparison. A provider's attachment is large, and mostly the same object in both
 * messages.
 */
function withoutCommon(message: Message, other: Message): Message {
  if (message.role !== 'assistant' || other.role !== 'assistant') return { ...message, content: '' };
  const { provider, ...rest } = message;
  const isSame = provider === undefined || provider === other.provider;
  return { ...rest, content: '', ...(isSame ? {} : { provider }) };
}

const beginsWith = (messages: readonly Message[], begin: readonly Message[]): boolean =>
  begin.length <= messages.length &&
  begin.every((message, at) => {
    const other = messages[at];
    return other !== undefined && isEqual(message, other);
  });

/**
 * Hashes prompts that mostly begin like the prompt before, as in a turn or a conversation. The common beginning is
 * compared and not hashed again; the result is the hash of the whole prompt.
 */
export class PromptHasher {
  #marks: readonly Mark[] = [];

  /**
   * @param settled - The number of messages that will begin the next prompt even if the rest of this prompt does not.
   */
  hash(messages: readonly Message[], tools: readonly ToolSchema[], settled = 0): string {
    const marks = this.#marks.filter((mark) => beginsWith(messages, mark.messages));
    const last = marks.at(-1);
    const hash = (last?.hash ?? EMPTY).copy();
    let at = last?.messages.length ?? 0;
    const addUpTo = (to: number): void => {
      if (to <= at) return;
      addMessages(hash, messages, at, to);
      at = to;
      marks.push({ messages: messages.slice(0, to), hash: hash.copy() });
    };
    addUpTo(settled);
    addUpTo(messages.length);
    const kept = marks.filter((mark) => mark.messages.length <= settled).slice(-1);
    this.#marks = [...new Set([...kept, ...marks.slice(-1)])];
    hash.update(`],"tools":${canonicalTools(tools)}}`);
    return hash.digest('hex');
  }
}

/** sha256 over the RFC 8785 text of the tools alone, in the order in which they are offered. */
export const toolsetHash = (tools: readonly ToolSchema[]): string => sha256(canonicalTools(tools));

const canonicalTools = (tools: readonly ToolSchema[]): string =>
  canonicalJson(tools.map(({ name, description, parameters }) => ({ name, description, parameters })));
