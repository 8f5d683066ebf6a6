/** Reads the request that a message makes to an agent. Rule: docs/reference/a2a.md, "Messages". */
import { type Message, type Part, Role, type SendMessageRequest } from '@a2a-js/sdk';
import { type A2AError, ContentTypeNotSupportedError } from '@a2a-js/sdk/errors';
import { DATA_TASK } from '@boxcar/adapters/a2a';
import { isCleanText, isPlainName, type JsonValue, parseJsonValue } from '@boxcar/kernel';
import type { PublicMessage, PublicReply } from '@boxcar/runtime';
import { malformed } from './errors.js';

const MAX_NAME = 500;

// Values that the SDK translates from protocol 0.3 may have any type.
export const isText = (value: unknown): value is string => typeof value === 'string';

export function checkName(name: string, field: string): string {
  if (isText(name) && name.length > 0 && name.length <= MAX_NAME && isPlainName(name) && isCleanText(name))
    return name;
  throw malformed(`${field}: must have 1 to ${MAX_NAME} characters, without control characters.`);
}

const noFiles = (): A2AError =>
  new ContentTypeNotSupportedError({
    message: 'This agent takes parts with text or data, and no files: send the words of the file.',
  });

function readData(value: unknown): JsonValue {
  try {
    return parseJsonValue(value, 'data');
  } catch {
    throw malformed('message.parts: data must be JSON.');
  }
}

/** The texts of all text parts, in order, and the data of all other parts. */
function readParts(parts: readonly Part[]): {
  readonly texts: readonly string[];
  readonly data: JsonValue[];
} {
  const texts: string[] = [];
  const data: JsonValue[] = [];
  for (const { content } of parts)
    switch (content?.$case) {
      case 'text':
        if (!isText(content.value)) throw malformed('message.parts: text must be a text.');
        if (content.value.trim() !== '') texts.push(content.value);
        break;
      case 'data':
        if (content.value != null) data.push(readData(content.value));
        break;
      case 'raw':
      case 'url':
        throw noFiles();
      default:
        throw malformed('message.parts: each part must have text or data.');
    }
  return { texts, data };
}

/** The message of a request. @throws A2AError when the message is missing, or asks for a feature that this agent does not have. */
export function messageOf({ message }: SendMessageRequest): Message {
  if (message === undefined) throw malformed('message: is missing.');
  if (!isText(message.taskId)) throw malformed('message.taskId: must be a text.');
  if (message.role !== Role.ROLE_USER) throw malformed('message.role: must be that of the user.');
  return message;
}

/** The content of a reply: its texts, and its data as JSON. @throws A2AError when the message has neither. */
export function readReply(message: Message): PublicReply {
  const messageId = checkName(message.messageId, 'message.messageId');
  const { texts, data } = readParts(message.parts);
  if (texts.length === 0 && data.length === 0) throw malformed('message.parts: must have text or data.');
  return { messageId, text: [...texts, ...data.map((value) => JSON.stringify(value))].join('\n\n') };
}

/** @throws A2AError when the message has no content, or has content that this agent does not accept. */
export function readMessage(message: Message): PublicMessage {
  const messageId = checkName(message.messageId, 'message.messageId');
  const { contextId } = message;
  const { texts, data } = readParts(message.parts);
  if (texts.length === 0 && data.length === 0) throw malformed('message.parts: must have text or data.');
  const [first] = data;
  const payload = data.length > 1 ? data : first;
  return {
    messageId,
    conversation: contextId === '' ? undefined : checkName(contextId, 'message.contextId'),
    task: texts.length === 0 ? DATA_TASK : texts.join('\n\n'),
    ...(payload === undefined ? {} : { payload }),
  };
}
