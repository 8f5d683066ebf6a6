/** Converts context entries to entries of a tape. All texts of clients, including metadata, are in cards, so that they can be erased. */
import {
  type ContextEntryInput,
  type ContextType,
  type JsonObject,
  KernelError,
  MAX_CARD_BYTES,
  MAX_CONTEXT_BYTES,
  MAX_CONTEXT_METADATA_BYTES,
} from '@boxcar/kernel';
import type { NewContextEntry, TapeActor } from '@boxcar/store';
import { type EntryInput, toNewEntry } from './entry-input.js';

/** The JSON of a text is up to six times as long as the text, and the card also contains the metadata. */
const MAX_ESCAPED = 6;
const cardLimit = (limitBytes: number): number => limitBytes * MAX_ESCAPED + MAX_CONTEXT_METADATA_BYTES + 100;

function checkBytes(sizeBytes: number, limitBytes: number, field: string): void {
  if (sizeBytes <= limitBytes) return;
  throw new KernelError('payload_too_large', {
    message: `${field} has ${sizeBytes} bytes; the limit is ${limitBytes}.`,
    next: 'Send less, or several entries.',
    details: { field, sizeBytes, limitBytes },
  });
}

/** Cards of files and tool calls have types of their own, so that a file and a message with the same text are different entries. */
const CARD_TYPES: Readonly<Partial<Record<ContextType, string>>> = {
  file: 'context.file',
  tool_call: 'context.tool_call',
};

/** A tool call of a client is only a text about a call: it has no arguments and gets no result. So it becomes a message, as a file does. */
function inputOf({ context_type: type, content, metadata }: ContextEntryInput): EntryInput {
  const said = metadata === undefined ? content : { content, metadata };
  const meta = { context_type: type };
  if (type === 'system') return { kind: 'system', content: said, meta };
  const role = metadata?.role === 'assistant' ? 'assistant' : 'user';
  const cardType = CARD_TYPES[type];
  return {
    kind: 'message',
    content: said,
    role,
    meta,
    ...(cardType === undefined ? {} : { type: cardType }),
  };
}

/** @throws KernelError `payload_too_large`, `bad_request`. */
export function toContextEntries(
  inputs: readonly ContextEntryInput[],
  actor: TapeActor,
  maxCardBytes = MAX_CARD_BYTES,
): readonly NewContextEntry[] {
  const limitBytes = Math.min(maxCardBytes, MAX_CONTEXT_BYTES);
  return inputs.map((input, index) => {
    const field = `entries.${index}`;
    checkBytes(Buffer.byteLength(input.content), limitBytes, `${field}.content`);
    checkBytes(
      Buffer.byteLength(JSON.stringify(input.metadata ?? {})),
      MAX_CONTEXT_METADATA_BYTES,
      `${field}.metadata`,
    );
    const author = { ...actor, field, maxCardBytes: cardLimit(limitBytes) };
    return { type: input.context_type, entry: toNewEntry(inputOf(input), author) };
  });
}

/** An entry that the server writes. It counts like every other entry. */
export const systemEntry = (content: string, metadata: JsonObject): ContextEntryInput => ({
  context_type: 'system',
  content,
  metadata,
});
