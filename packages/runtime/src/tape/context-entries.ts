/** Context entries as entries of a tape. What clients say is in their cards, metadata too, so that it can be erased. */
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

/** JSON of a text is up to six times as long, and the metadata is beside it. */
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

/** Cards of files and tool calls are of a type of their own: the same text as a message is another entry. */
const CARD_TYPES: Readonly<Partial<Record<ContextType, string>>> = {
  file: 'context.file',
  tool_call: 'context.tool_call',
};

/** A text about a call is no call: it has no arguments and gets no result. So it is a message, as a file is. */
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

/** An entry that the server writes: it counts as the others do. */
export const systemEntry = (content: string, metadata: JsonObject): ContextEntryInput => ({
  context_type: 'system',
  content,
  metadata,
});
