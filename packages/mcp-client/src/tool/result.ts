/** Converts the result of a tool call to JSON for models: texts, structured content, and notes in place of any other content. */
import { isJsonObject, type JsonValue, KernelError } from '@boxcar/kernel';
import type { CallToolResult, ContentBlock } from '@modelcontextprotocol/client';

/** The limits of a result and of an error, in characters. */
const MAX_RESULT = 200_000;
const MAX_ERROR = 4_000;

function cut(text: string, most: number): string {
  if (text.length <= most) return text;
  return `${text.slice(0, most).toWellFormed()}\n[cut: ${text.length - most} more characters]`;
}

const bytesOf = (base64: string): number => Math.floor((base64.length * 3) / 4);

/** Models read only text. */
function wordsOf(block: ContentBlock): string {
  switch (block.type) {
    case 'text':
      return block.text;
    case 'image':
    case 'audio':
      return `[${block.type}: ${block.mimeType}, ${bytesOf(block.data)} bytes, not shown]`;
    case 'resource_link':
      return `[resource: ${block.uri} (${block.name})]`;
    case 'resource': {
      const { resource } = block;
      if ('text' in resource) return `[resource: ${resource.uri}]\n${resource.text}`;
      return `[resource: ${resource.uri}, ${bytesOf(resource.blob)} bytes, not shown]`;
    }
    default:
      return `[${String((block as { type: unknown }).type)}: not shown]`;
  }
}

/** Servers repeat structured content as text, for clients that do not support it. */
function isRepeated(text: string, structured: string): boolean {
  try {
    return JSON.stringify(JSON.parse(text)) === structured;
  } catch {
    return false;
  }
}

/** @throws KernelError `tool_failed` for a result that the server marks as an error. */
export function toResult(
  tool: string,
  { content = [], structuredContent, isError }: CallToolResult,
): JsonValue {
  const text = content.map(wordsOf).join('\n\n');
  if (isError === true)
    throw new KernelError('tool_failed', {
      message: cut(text.trim() === '' ? `${tool} failed without a reason.` : text, MAX_ERROR),
      details: { tool },
    });
  if (!isJsonObject(structuredContent)) return cut(text, MAX_RESULT);
  const structured = JSON.stringify(structuredContent);
  if (structured.length > MAX_RESULT)
    return {
      text: cut(text, MAX_RESULT),
      note: `structured content left out: ${structured.length} characters`,
    };
  if (text === '' || isRepeated(text, structured)) return structuredContent;
  return { text: cut(text, MAX_RESULT), structured: structuredContent };
}
