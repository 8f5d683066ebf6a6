import { createHash } from 'node:crypto';
import { canonicalJson, type JsonValue } from './json.js';
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

/** sha256 over the RFC 8785 text of `{ messages, tools }`: equal hashes, equal prompts. */
export function promptHash(messages: readonly Message[], tools: readonly ToolSchema[]): string {
  const hash = createHash('sha256');
  hash.update('{"messages":[');
  for (const [index, message] of messages.entries()) {
    hash.update(index === 0 ? canonicalMessage(message) : `,${canonicalMessage(message)}`);
  }
  const schemas: JsonValue = tools.map(({ name, description, parameters }) => ({
    name,
    description,
    parameters,
  }));
  hash.update(`],"tools":${canonicalJson(schemas)}}`);
  return hash.digest('hex');
}
