import { createHash, type Hash } from 'node:crypto';
import { canonicalJson, type JsonValue, sha256 } from '../base/index.js';
import type { Message, ToolSchema } from '../card/index.js';

/** The RFC 8785 text of a message, written out: its keys are known, so nothing is sorted. */
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

/** Characters hashed at once: enough to make calls rare, few enough to copy no whole prompt. */
const CHUNK = 65_536;

const EMPTY = createHash('sha256').update('{"messages":[');

/** Adds messages `from` to `to` of a prompt to the hash of those before. */
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

/** sha256 over the RFC 8785 text of `{ messages, tools }`: equal hashes, equal prompts. */
export const promptHash = (messages: readonly Message[], tools: readonly ToolSchema[]): string =>
  new PromptHasher().hash(messages, tools);

/** The hash of the beginning of a prompt. */
interface Mark {
  readonly messages: readonly Message[];
  readonly hash: Hash;
}

/** Contents first: equal ones are mostly the same string, and then nothing is compared. */
const isEqual = (a: Message, b: Message): boolean =>
  a === b ||
  (a.role === b.role &&
    a.content === b.content &&
    (a.role === 'user' ||
      a.role === 'system' ||
      canonicalMessage(withoutCommon(a, b)) === canonicalMessage(withoutCommon(b, a))));

/** Without what is equal anyway: what a provider attached is large, and mostly the same object. */
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
 * Hashes prompts of which each mostly begins as the one before did, as those of a turn and of a conversation do. What both begin with is
 * compared and not hashed again; the hash is that of the whole prompt.
 */
export class PromptHasher {
  #marks: readonly Mark[] = [];

  /** @param settled - So many messages will begin the next prompt even where the rest of this one will not. */
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

/** sha256 over the RFC 8785 text of the tools alone, in the order they are offered. */
export const toolsetHash = (tools: readonly ToolSchema[]): string => sha256(canonicalTools(tools));

const canonicalTools = (tools: readonly ToolSchema[]): string =>
  canonicalJson(tools.map(({ name, description, parameters }) => ({ name, description, parameters })));
