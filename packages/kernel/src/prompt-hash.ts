import { createHash } from 'node:crypto';
import { canonicalJson, sha256 } from './json.js';
import type { Message, ToolSchema } from './message.js';

/** The RFC 8785 text of a message, written out: its keys are known, so nothing is sorted. */
function canonicalMessage(message: Message): string {
  const content = JSON.stringify(message.content);
  switch (message.role) {
    case 'system':
    case 'user':
      return `{"content":${content},"role":"${message.role}"}`;
    case 'assistant': {
      if (message.toolCalls === undefined) return `{"content":${content},"role":"assistant"}`;
      const calls = message.toolCalls.map(
        (call) =>
          `{"arguments":${canonicalJson(call.arguments)},"id":${JSON.stringify(call.id)},"name":${JSON.stringify(call.name)}}`,
      );
      return `{"content":${content},"role":"assistant","toolCalls":[${calls.join(',')}]}`;
    }
    case 'tool':
      return `{"content":${content},"isError":${message.isError},"name":${JSON.stringify(message.name)},"role":"tool","toolCallId":${JSON.stringify(message.toolCallId)}}`;
    default:
      return message satisfies never;
  }
}

/** Characters hashed at once: enough to make calls rare, few enough to copy no whole prompt. */
const CHUNK = 65_536;

/** sha256 over the RFC 8785 text of `{ messages, tools }`: equal hashes, equal prompts. */
export function promptHash(messages: readonly Message[], tools: readonly ToolSchema[]): string {
  const hash = createHash('sha256');
  let chunk = '{"messages":[';
  for (const [index, message] of messages.entries()) {
    chunk += index === 0 ? canonicalMessage(message) : `,${canonicalMessage(message)}`;
    if (chunk.length < CHUNK) continue;
    hash.update(chunk);
    chunk = '';
  }
  hash.update(`${chunk}],"tools":${canonicalTools(tools)}}`);
  return hash.digest('hex');
}

/** sha256 over the RFC 8785 text of the tools alone, in the order they are offered. */
export const toolsetHash = (tools: readonly ToolSchema[]): string => sha256(canonicalTools(tools));

const canonicalTools = (tools: readonly ToolSchema[]): string =>
  canonicalJson(tools.map(({ name, description, parameters }) => ({ name, description, parameters })));
