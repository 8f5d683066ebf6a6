/**
 * A tape entry in Bub's form: the answer to queries, the source of chat messages, and the line of an exported file. The
 * kernel's `position` is Bub's `id`.
 *
 * R1  A record of a single entry has the content of the entry's card; only ids of the entry are lost.
 * R2  The start of a turn includes the turn's request (`asked`) for readers with access. As a line in Bub's form it is
 *     the user's message, as in Bub.
 * R3  Entries from one imported line become that line again, while all of them follow each other.
 */

import type { BoxId } from '../base/index.js';
import { isJsonObject, type JsonObject, type JsonValue, jsonText, readPythonJson } from '../base/index.js';
import type { CardDraft, ContentOf } from '../card/index.js';
import { renderBody } from '../render/render.js';
import { parseTapeDate, pythonDate, secondsToDate } from './date.js';
import { type EntryKind, type TapeEntry, TURN_STARTED } from './tape.js';

export interface TapeRecord {
  readonly position: number;
  /** One of `ENTRY_KINDS`; imported lines may have other kinds. */
  readonly kind: string;
  /**
   * By kind: the chat message, `{content}`, `{name, state?}`, `{calls}`, `{results}`, `{kind, message, details?}`,
   * `{name, data?}`.
   */
  readonly payload: JsonObject;
  /**
   * `run_id` (the turn), `step`, and for results `tool_call_ids`; also the members from `append` or from an imported
   * line.
   */
  readonly meta: JsonObject;
  /** ISO 8601. Null for a line without a date, which counts as 1970-01-01. */
  readonly date: string | null;
  /** For results: the names of the tools that gave them, in the same order. Not part of a line. */
  readonly tools?: readonly string[] | undefined;
  /** The text of the imported line, when this record is that whole line. */
  readonly line?: string | undefined;
}

/** A stored entry with the fields that only its record shows. */
export interface StoredEntry extends TapeEntry {
  /** For the start of a turn: the turn's request, for a reader with access. */
  readonly asked?: string | undefined;
  readonly meta: JsonObject | null;
  readonly createdAt: Date | string;
}

/** The draft of one entry to append; the store adds position, author and ids. */
export interface EntryDraft {
  readonly kind: EntryKind;
  /** Null only for events. */
  readonly card: Omit<CardDraft, 'authorId'> | null;
  /** Only for events: `{ name, data }`. */
  readonly payload: JsonObject | null;
  readonly anchorName: string | null;
  readonly meta: JsonObject | null;
}

/** Facts about an imported file from its folder. They are stored with the file's first entry. */
export interface FileMark {
  /** For an archived file: its path in the folder of the manifest, and the time when it was written. */
  readonly file?: string;
  readonly written_at?: string;
  /** The place where the file's tape was forked. */
  readonly parent?: { readonly tape: string; readonly entry: number };
}

/**
 * The member of an entry's `meta` that identifies the part of the imported line. For an event it also has the time of
 * the import, `at`.
 */
export type ImportMark = { readonly line: string; readonly parts: number } | { readonly part: number };

function importOf(entry: StoredEntry): ImportMark | undefined {
  const mark = entry.meta?.imported;
  if (!isJsonObject(mark)) return undefined;
  const { line, parts, part } = mark;
  if (typeof line === 'string' && typeof parts === 'number') return { line, parts };
  return typeof part === 'number' ? { part } : undefined;
}

/** Reads the members of a line as Bub reads them; returns the fault of a line that is not valid. */
export function readRecord(line: string): TapeRecord | { readonly fault: string } {
  let value: unknown;
  try {
    value = readPythonJson(line);
  } catch {
    return { fault: 'is not valid JSON' };
  }
  if (!isJsonObject(value)) return { fault: 'is not a JSON object' };
  const { id, kind, payload, meta, timestamp } = value;
  if (!Number.isSafeInteger(id)) return { fault: 'has no integer `id`' };
  if (typeof kind !== 'string') return { fault: 'has no `kind`' };
  if (!isJsonObject(payload)) return { fault: 'has no object `payload`' };
  if (kind === 'anchor' && typeof payload.name !== 'string')
    return { fault: 'is an anchor without a `name`' };
  // Older lines have seconds in place of a date; the oldest have neither.
  const date: unknown = value.date ?? (typeof timestamp === 'number' ? secondsToDate(timestamp) : null);
  if (date !== null && !isDate(date)) return { fault: 'has no ISO `date`' };
  return { position: Number(id), kind, payload, meta: isJsonObject(meta) ? meta : {}, date, line };
}

/** True for a text that `parseTapeDate` accepts. */
export function isDate(value: unknown): value is string {
  try {
    return typeof value === 'string' && parseTapeDate(value) !== '';
  } catch {
    return false;
  }
}

function callOf(content: ContentOf<'tool_call'>): JsonObject {
  const { tool_call_id: id, name, arguments: args } = content;
  const text = typeof args === 'string' ? args : jsonText(args);
  return { id, type: 'function', function: { name, arguments: text } };
}

function resultOf({ status, error, result }: ContentOf<'tool_result'>): JsonValue {
  if (status === 'success') return result ?? null;
  const body: JsonObject | null =
    error === undefined
      ? null
      : { code: error.code, message: error.message, ...(error.details ? { details: error.details } : {}) };
  return { status, error: body, ...(result === undefined ? {} : { result }) };
}

const withAsked = (payload: JsonObject, asked: string | undefined): JsonObject =>
  asked === undefined || asked === '' || !isJsonObject(payload.data)
    ? payload
    : { ...payload, data: { ...payload.data, asked } };

/** The start of a turn with a request, as the user's message; any other record unchanged. */
export function askedAsMessage(record: TapeRecord): TapeRecord {
  const { kind, payload, line } = record;
  if (kind !== 'event' || line !== undefined || payload.name !== TURN_STARTED || !isJsonObject(payload.data))
    return record;
  const { asked, ...started } = payload.data;
  if (typeof asked !== 'string') return record;
  return {
    ...record,
    kind: 'message',
    payload: { role: 'user', content: asked },
    meta: { ...record.meta, [TURN_STARTED]: started },
  };
}

/** The context box that the start of a turn names; undefined for every other event. */
export function startedContext(payload: JsonValue | null): BoxId | undefined {
  if (!isJsonObject(payload) || payload.name !== TURN_STARTED || !isJsonObject(payload.data))
    return undefined;
  const { context_box_id: boxId } = payload.data;
  return typeof boxId === 'string' ? (boxId as BoxId) : undefined;
}

function payloadOf(entry: StoredEntry): JsonObject {
  const { kind, card, anchorName } = entry;
  if (card === null) return isJsonObject(entry.payload) ? withAsked(entry.payload, entry.asked) : {};
  const { content } = card;
  const data = content.kind === 'json' ? content.data : renderBody(content);
  switch (kind) {
    case 'anchor':
      return { name: anchorName ?? '', ...(data === null ? {} : { state: data }) };
    case 'tool_call':
      return { calls: content.kind === 'tool_call' ? [callOf(content)] : [] };
    case 'tool_result':
      return { results: content.kind === 'tool_result' ? [resultOf(content)] : [] };
    case 'error': {
      if (!isJsonObject(data)) return { kind: 'unknown', message: renderBody(content) };
      const { kind: named, code, message, details } = data;
      return {
        kind: named ?? code ?? 'unknown',
        message: message ?? renderBody(content),
        ...(details === undefined ? {} : { details }),
      };
    }
    case 'system':
      return { content: renderBody(content) };
    case 'message':
    case 'event':
      return {
        role: card.role ?? 'user',
        content: content.kind === 'text' ? content.text : renderBody(content),
      };
    default:
      return kind satisfies never;
  }
}

function metaOf({ meta, turnId, step, card }: StoredEntry): JsonObject {
  const { imported: _imported, ...said } = meta ?? {};
  const content = card?.content;
  return {
    ...(turnId === null ? {} : { run_id: turnId }),
    ...(step === null ? {} : { step }),
    ...(content?.kind === 'tool_result' ? { tool_call_ids: [content.tool_call_id] } : {}),
    ...(card?.metadata.context === false ? { context: false } : {}),
    ...said,
  };
}

/** One record for each entry, in the order and with the positions of the entries. */
export function toRecord(entry: StoredEntry): TapeRecord {
  const { position, kind } = entry;
  const mark = importOf(entry);
  if (mark !== undefined && 'line' in mark && mark.parts === 1) {
    const record = readRecord(mark.line);
    if (!('fault' in record)) return { ...record, position, ...toolsOf(entry) };
  }
  return {
    position,
    kind,
    payload: payloadOf(entry),
    meta: metaOf(entry),
    date: pythonDate(entry.createdAt),
    ...toolsOf(entry),
  };
}

const toolsOf = ({ card }: StoredEntry): Pick<TapeRecord, 'tools'> =>
  card?.content.kind === 'tool_result' && card.content.name !== '' ? { tools: [card.content.name] } : {};

/** The number of entries from `at` on that together are one imported line; 0 when they are not a whole line. */
function countLine(entries: readonly StoredEntry[], at: number): number {
  const parts = partsFrom(entries, at);
  return parts !== undefined && countParts(entries, at, parts) === parts ? parts : 0;
}

/** The number of parts of the line that begins here; undefined when no line begins here. */
function partsFrom(entries: readonly StoredEntry[], at: number): number | undefined {
  const entry = entries[at];
  const mark = entry === undefined ? undefined : importOf(entry);
  return mark !== undefined && 'line' in mark ? mark.parts : undefined;
}

/** The number of consecutive parts of the line from `at` on. */
function countParts(entries: readonly StoredEntry[], at: number, parts: number): number {
  for (let part = 1; part < parts; part += 1) {
    const next = entries[at + part];
    const mark = next === undefined ? undefined : importOf(next);
    if (mark === undefined || !('part' in mark) || mark.part !== part) return part;
  }
  return parts;
}

const isStepPart = (entry: StoredEntry): boolean =>
  entry.turnId !== null &&
  entry.step !== null &&
  (entry.kind === 'tool_call' || entry.kind === 'tool_result');

/** The number of entries from `at` on that are calls of one step, or results of one step. */
function countStep(entries: readonly StoredEntry[], at: number): number {
  const first = entries[at];
  if (first === undefined || !isStepPart(first)) return 1;
  const isOfStep = (entry: StoredEntry | undefined): boolean =>
    entry?.kind === first.kind && entry.turnId === first.turnId && entry.step === first.step;
  let end = at + 1;
  while (isOfStep(entries[end])) end += 1;
  return end - at;
}

/** True when the record that begins at `at` reaches the last entry, and more entries could belong to it. */
function isOpenAt(entries: readonly StoredEntry[], at: number): boolean {
  const first = entries[at];
  const parts = partsFrom(entries, at);
  if (parts !== undefined) {
    const found = countParts(entries, at, parts);
    return found < parts && at + found === entries.length;
  }
  return first !== undefined && isStepPart(first) && at + countStep(entries, at) === entries.length;
}

/** The number of entries, from the first on, whose records no later entry can extend. */
export function countSettled(entries: readonly StoredEntry[]): number {
  let at = 0;
  while (at < entries.length && !isOpenAt(entries, at))
    at += countLine(entries, at) || countStep(entries, at);
  return at;
}

const listOf = (value: JsonValue | undefined): readonly JsonValue[] => (Array.isArray(value) ? value : []);

function joinRecords(records: readonly TapeRecord[]): TapeRecord | undefined {
  const [first] = records;
  if (first === undefined || records.length === 1) return first;
  const member = first.kind === 'tool_call' ? 'calls' : 'results';
  const ids = records.flatMap(({ meta }) => listOf(meta.tool_call_ids));
  const tools = records.flatMap((record) => record.tools ?? []);
  return {
    ...first,
    ...(tools.length === records.length ? { tools } : {}),
    payload: { [member]: records.flatMap(({ payload }) => listOf(payload[member])) },
    meta: { ...first.meta, ...(ids.length > 0 ? { tool_call_ids: ids } : {}) },
  };
}

/**
 * One record for each line in Bub's form. The calls of one step form one record, and so do its results. Entries from
 * one imported line become that line again. A record has the position of its first entry.
 */
export function toRecords(entries: readonly StoredEntry[]): readonly TapeRecord[] {
  const records: TapeRecord[] = [];
  for (let at = 0; at < entries.length; ) {
    const ofLine = countLine(entries, at);
    const count = ofLine === 0 ? countStep(entries, at) : ofLine;
    const record =
      ofLine === 0 ? joinRecords(entries.slice(at, at + count).map(toRecord)) : lineRecord(entries[at]);
    if (record !== undefined) records.push(askedAsMessage(record));
    at += count;
  }
  return records;
}

function lineRecord(entry: StoredEntry | undefined): TapeRecord | undefined {
  const mark = entry === undefined ? undefined : importOf(entry);
  if (entry === undefined || mark === undefined || !('line' in mark)) return undefined;
  const record = readRecord(mark.line);
  return 'fault' in record ? toRecord(entry) : { ...record, position: entry.position };
}

/** The name of an anchor's record; undefined for every other record. */
export function anchorNameOf({ kind, payload }: TapeRecord): string | undefined {
  return kind === 'anchor' && typeof payload.name === 'string' ? payload.name : undefined;
}

/** The state of an anchor's record; null when it has no state. */
export const anchorState = ({ payload }: TapeRecord): JsonValue => payload.state ?? null;
