/**
 * The lines of a tape file, Bub's `tape/main.jsonl`: reads lines into entries to append, and writes entries as lines.
 *
 * J1  An imported line is exported byte for byte.
 * J2  A file is read as a whole or not at all: the error names the number of the first broken line.
 */

import {
  canonicalJson,
  isJsonObject,
  type JsonValue,
  KernelError,
  parseJson,
  pythonJson,
  sanitizeJson,
  toName,
} from '../base/index.js';
import { CARD_TYPES, type CardContent, ROLES, type Role } from '../card/index.js';
import {
  countSettled,
  type EntryDraft,
  type EntryKind,
  type ImportMark,
  readRecord,
  type StoredEntry,
  type TapeRecord,
  TURN_STARTED,
  toRecords,
} from '../tape/index.js';

/**
 * One line of a tape file and the entries to append for it: a single entry, or one for each of the line's calls or
 * results.
 */
export interface TapeLine {
  /** Counted from 1, including blank lines. */
  readonly number: number;
  readonly record: TapeRecord;
  readonly drafts: readonly EntryDraft[];
}

interface KnownCall {
  readonly id: string;
  readonly name: string;
  /** The call's id in its line. */
  readonly given: string;
}

/** The state that later lines need from earlier lines: the calls that their results answer. */
interface Pairing {
  readonly newCallId: () => string;
  /** Calls that wait for a result, by the id in their line. */
  readonly calls: Map<string, KnownCall>;
  pending: readonly KnownCall[];
  /** The previous line. */
  previous: TapeRecord | undefined;
}

type Part = Pick<EntryDraft, 'kind' | 'card' | 'payload' | 'anchorName'>;

/** Kinds of entries that are never shown to a model, as in Bub. */
const UNSEEN: ReadonlySet<string> = new Set(['system', 'error']);

function cardPart(
  record: TapeRecord,
  kind: EntryKind,
  card: { readonly type: string; readonly role: Role; readonly content: CardContent },
): Part {
  const { value, isChanged } = sanitizeJson(card.content);
  const isHidden = UNSEEN.has(kind) || record.meta.context === false;
  const metadata = { ...(isHidden ? { context: false } : {}), ...(isChanged ? { sanitized: true } : {}) };
  // The content stays valid: only characters in its texts were replaced.
  return {
    kind,
    card: { ...card, content: value as CardContent, metadata },
    payload: null,
    anchorName: null,
  };
}

/**
 * Keeps a line that does not fit into a card: it is readable as an event, and is exported unchanged. An imported
 * `turn.started` gets another name. Otherwise it would show the context that it names to every reader of the tape.
 */
function eventPart({ kind, payload }: TapeRecord): Part {
  const { name, data } = payload;
  const isEvent = kind === 'event' && typeof name === 'string' && name !== TURN_STARTED;
  const event = isEvent ? { name, data: data ?? null } : { name: `imported.${kind}`, data: payload };
  const { value } = sanitizeJson(event);
  return { kind: 'event', card: null, payload: isJsonObject(value) ? value : {}, anchorName: null };
}

/** The name of an anchor in its stored form. */
const anchorName = (name: JsonValue | undefined): string => toName(String(sanitizeJson(name ?? null).value));

/** The state of a handoff is stored only in the card of its anchor, where it can be erased; readers find it there. */
function handoffPart(record: TapeRecord, previous: TapeRecord | undefined): Part {
  const part = eventPart(record);
  const data = part.payload?.data;
  if (record.payload.name !== 'handoff' || !isJsonObject(data) || previous?.kind !== 'anchor') return part;
  const { state = {}, ...rest } = data;
  const name = anchorName(data.name);
  const isAnchors =
    typeof data.name === 'string' &&
    anchorName(previous.payload.name) === name &&
    canonicalJson(sanitizeJson(previous.payload.state ?? {}).value) === canonicalJson(state);
  return isAnchors ? { ...part, payload: { name: 'handoff', data: { ...rest, name } } } : part;
}

const MESSAGE_TYPES: Readonly<Record<Role, string>> = {
  user: CARD_TYPES.instruction,
  assistant: CARD_TYPES.thought,
  system: CARD_TYPES.context,
  tool: CARD_TYPES.context,
};

function messagePart(record: TapeRecord): Part {
  const { role, content } = record.payload;
  const known = ROLES.find((name) => name === role) ?? 'user';
  const body: CardContent =
    typeof content === 'string'
      ? { kind: 'text', text: content }
      : { kind: 'json', data: content ?? record.payload };
  return cardPart(record, 'message', { type: MESSAGE_TYPES[known], role: known, content: body });
}

function anchorPart(record: TapeRecord): Part {
  const { name, state } = record.payload;
  const part = cardPart(record, 'anchor', {
    type: CARD_TYPES.anchor,
    role: 'assistant',
    content: { kind: 'json', data: state ?? null },
  });
  const known = anchorName(name);
  // The name is also in the card's metadata: a box that inherits the card has no other place for it.
  const named =
    part.card === null ? {} : { card: { ...part.card, metadata: { ...part.card.metadata, name: known } } };
  return { ...part, ...named, anchorName: known };
}

function readArguments(value: JsonValue | undefined): JsonValue {
  if (typeof value !== 'string') return value ?? {};
  try {
    const parsed: unknown = parseJson(value);
    return isJsonObject(parsed) ? parsed : value;
  } catch {
    return value;
  }
}

const listOf = (value: JsonValue | undefined): readonly JsonValue[] => (Array.isArray(value) ? value : []);
const textOf = (value: JsonValue | undefined): string => (typeof value === 'string' ? value : '');

function callParts(record: TapeRecord, pairing: Pairing): readonly Part[] {
  const calls = listOf(record.payload.calls).filter(isJsonObject);
  const known: KnownCall[] = [];
  const parts = calls.map((call) => {
    const body = isJsonObject(call.function) ? call.function : {};
    const given = textOf(call.id);
    const found = { id: pairing.newCallId(), name: textOf(body.name), given };
    known.push(found);
    if (given !== '') pairing.calls.set(given, found);
    return cardPart(record, 'tool_call', {
      type: CARD_TYPES.toolCall,
      role: 'assistant',
      content: {
        kind: 'tool_call',
        tool_call_id: found.id,
        provider_call_id: given,
        name: found.name,
        arguments: readArguments(body.arguments),
      },
    });
  });
  pairing.pending = known;
  return parts;
}

function resultParts(record: TapeRecord, pairing: Pairing): readonly Part[] {
  const ids = listOf(record.meta.tool_call_ids);
  const { pending } = pairing;
  pairing.pending = [];
  return listOf(record.payload.results).map((result, index) => {
    const call = pairing.calls.get(textOf(ids[index])) ??
      pending[index] ?? { id: pairing.newCallId(), name: '', given: '' };
    // Only unanswered calls are held in memory, however long the file is.
    if (pairing.calls.get(call.given) === call) pairing.calls.delete(call.given);
    return cardPart(record, 'tool_result', {
      type: CARD_TYPES.toolResult,
      role: 'tool',
      content: { kind: 'tool_result', tool_call_id: call.id, name: call.name, status: 'success', result },
    });
  });
}

function partsOf(record: TapeRecord, pairing: Pairing): readonly Part[] {
  switch (record.kind) {
    case 'message':
      return [messagePart(record)];
    case 'anchor':
      return [anchorPart(record)];
    case 'tool_call':
      return callParts(record, pairing);
    case 'tool_result':
      return resultParts(record, pairing);
    case 'system': {
      const { content } = record.payload;
      const body: CardContent =
        typeof content === 'string'
          ? { kind: 'text', text: content }
          : { kind: 'json', data: record.payload };
      return [cardPart(record, 'system', { type: CARD_TYPES.notice, role: 'system', content: body })];
    }
    case 'error':
      return [
        cardPart(record, 'error', {
          type: CARD_TYPES.agentError,
          role: 'assistant',
          content: { kind: 'json', data: record.payload },
        }),
      ];
    case 'event':
      return [handoffPart(record, pairing.previous)];
    default:
      return [eventPart(record)];
  }
}

/** The entries to append for a line. Each of them records its part number, and the first also records the line. */
function draftsOf(line: string, record: TapeRecord, pairing: Pairing): readonly EntryDraft[] {
  const found = partsOf(record, pairing);
  const parts = found.length === 0 ? [eventPart(record)] : found;
  const said = sanitizeJson(record.meta).value;
  return parts.map((part, index) => {
    const imported: ImportMark = index === 0 ? { line, parts: parts.length } : { part: index };
    return { ...part, meta: { ...(isJsonObject(said) ? said : {}), imported: { ...imported } } };
  });
}

/**
 * The most characters in a line. Its text is kept and read as a whole, which blocks the process of a reader for that
 * time.
 */
export const MAX_LINE_LENGTH = 8 * 1024 * 1024;

/** The most calls or results in one line: each of them is an entry with a card. */
const MAX_LINE_PARTS = 10_000;

/** The error for a line that is too long to be read. */
export const lineTooLong = (number: number): KernelError =>
  new KernelError('payload_too_large', {
    message: `Line ${number} is longer than ${MAX_LINE_LENGTH} characters.`,
    details: { line: number, limit: MAX_LINE_LENGTH },
  });

/** The error for a line that cannot be read; it names the line's number. */
export const brokenLine = (number: number, why: string, field?: string): KernelError =>
  new KernelError('bad_request', {
    message: `Line ${number} ${why}.`,
    details: { line: number, ...(field === undefined ? {} : { field }) },
  });

/** Reads the lines of one file, in order; undefined for a blank line. */
export type TapeLineReader = (line: string, number: number) => TapeLine | undefined;

/**
 * @param options.newCallId - Makes the ids of calls. Every call needs an id that is unique in any prompt; the line's
 * own id is kept too.
 * @returns A reader, which throws KernelError `bad_request` or `payload_too_large` with `details.line`.
 */
export function tapeLineReader(options: { readonly newCallId: () => string }): TapeLineReader {
  const pairing: Pairing = {
    newCallId: options.newCallId,
    calls: new Map(),
    pending: [],
    previous: undefined,
  };
  return (line, number) => {
    if (line.length > MAX_LINE_LENGTH) throw lineTooLong(number);
    if (line.trim() === '') return undefined;
    if (!line.isWellFormed()) throw brokenLine(number, 'has half a character');
    const record = readRecord(line);
    if ('fault' in record) throw brokenLine(number, record.fault);
    const drafts = draftsOf(line, record, pairing);
    if (drafts.length > MAX_LINE_PARTS)
      throw new KernelError('payload_too_large', {
        message: `Line ${number} holds more than ${MAX_LINE_PARTS} calls or results.`,
        details: { line: number, limit: MAX_LINE_PARTS },
      });
    pairing.previous = record;
    return { number, record, drafts };
  };
}

/** Reads a whole file with `tapeLineReader`. Lines are numbered from 1. */
export function parseTapeLines(
  text: string,
  options: { readonly newCallId: () => string },
): readonly TapeLine[] {
  const read = tapeLineReader(options);
  return text.split('\n').flatMap((line, index) => read(line, index + 1) ?? []);
}

/** Writes the lines of a tape file from entries that arrive in pieces, in order. */
export interface TapeLineWriter {
  /** Returns the lines, without their line ends, that are complete so far. */
  add(entries: readonly StoredEntry[]): readonly string[];
  /** Returns the remaining lines. */
  end(): readonly string[];
}

/** An imported line keeps its id; each later id is one higher than the id before. */
export function tapeLineWriter(): TapeLineWriter {
  let last = 0;
  /** The previous imported line; its id is read only when it is needed. */
  let before: string | undefined;
  let waiting: readonly StoredEntry[] = [];
  const format = ({ line, kind, payload, meta, date }: TapeRecord): string => {
    if (line !== undefined) {
      before = line;
      return line;
    }
    const record = before === undefined ? undefined : readRecord(before);
    before = undefined;
    if (record !== undefined && !('fault' in record)) last = record.position;
    last += 1;
    return pythonJson({ id: last, kind, payload, meta, date });
  };
  const take = (count: number): readonly string[] => {
    const records = toRecords(waiting.slice(0, count));
    waiting = waiting.slice(count);
    return records.map(format);
  };
  return {
    add: (entries) => {
      waiting = waiting.length === 0 ? entries : [...waiting, ...entries];
      return take(countSettled(waiting));
    },
    end: () => take(waiting.length),
  };
}

/** The text of a tape file, written with `tapeLineWriter`; every line has its line end. */
export function formatTapeLines(entries: readonly StoredEntry[]): string {
  const writer = tapeLineWriter();
  return [...writer.add(entries), ...writer.end()].map((line) => `${line}\n`).join('');
}
