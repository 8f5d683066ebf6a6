/**
 * Queries of a tape: a slice between anchors, then dates, text, kinds and limit, in this order.
 *
 * Q1  If several slices are given, the first of these applies: between anchors, after the last anchor, after a named
 *     anchor.
 * Q2  A slice contains neither of its boundary anchors, but every other anchor within it.
 * Q3  A name means its latest anchor; a slice ends at the first anchor of the end's name after its start.
 * Q4  Only a named anchor can be missing. On a tape without anchors, "after the last" is the whole tape.
 * Q5  `limit` keeps the oldest entries.
 */
import { z } from 'zod';
import {
  canonicalJson,
  isCleanText,
  KernelError,
  pythonJsonText,
  safeParse,
  toBadRequest,
  toName,
} from '../base/index.js';
import { parseTapeDate } from './date.js';
import { anchorNameOf, type TapeRecord } from './record.js';
import { foldCase } from './search.js';

/** Selects the entries after the last anchor; the default of every reader. */
export const LAST_ANCHOR: unique symbol = Symbol('last anchor');
/** The last anchor, the latest anchor of a name, or null for the whole tape. */
export type AnchorSelector = typeof LAST_ANCHOR | string | null;

export type TapeSlice =
  | { readonly kind: 'all' }
  | { readonly kind: 'after_last' }
  | { readonly kind: 'after'; readonly anchor: string }
  /** The slice reaches the head when `end` is null. */
  | { readonly kind: 'between'; readonly start: string; readonly end: string | null };

/** A checked query. */
export interface TapeQuery {
  readonly slice: TapeSlice;
  /** Inclusive bounds in the form of `parseTapeDate`; null for no bound. */
  readonly from: string | null;
  readonly until: string | null;
  /** Null for any text. */
  readonly text: string | null;
  /** Kinds of entries, or of imported lines whose kind is not an entry's. An empty list means any kind. */
  readonly kinds: readonly string[];
  readonly limit: number | null;
}

const MAX_KIND = 200;
const kindSchema = z
  .string()
  .min(1, 'must not be empty')
  .max(MAX_KIND, `must have at most ${MAX_KIND} characters`)
  .refine(isCleanText, 'contains a NUL character or a lone surrogate');

/** A query in the form that callers write. */
export const tapeQuerySchema = z.strictObject({
  last_anchor: z.boolean().optional(),
  after_anchor: z.string().optional(),
  between_anchors: z.strictObject({ start: z.string(), end: z.string().optional() }).optional(),
  between_dates: z.strictObject({ start: z.string().optional(), end: z.string().optional() }).optional(),
  text: z.string().optional(),
  kinds: z.array(kindSchema).optional(),
  limit: z.int().min(0, 'must not be negative').optional(),
});
export type TapeQueryInput = z.input<typeof tapeQuerySchema>;

/** The slice that a selector means. */
export function toSlice(selector: AnchorSelector): TapeSlice {
  if (selector === null) return { kind: 'all' };
  return selector === LAST_ANCHOR ? { kind: 'after_last' } : { kind: 'after', anchor: selector };
}

function sliceOf(input: z.output<typeof tapeQuerySchema>): TapeSlice {
  const { between_anchors: between, last_anchor: isLast, after_anchor: after } = input;
  if (between !== undefined) return { kind: 'between', start: between.start, end: between.end ?? null };
  if (isLast) return { kind: 'after_last' };
  return after === undefined || after === '' ? { kind: 'all' } : { kind: 'after', anchor: after };
}

/** @throws KernelError `bad_request` naming the field: dates, their order, kinds, limit. */
export function parseTapeQuery(input: unknown): TapeQuery {
  const parsed = safeParse(tapeQuerySchema, input);
  if (!parsed.success) throw toBadRequest(parsed.error, 'query');
  const { between_dates: dates, text, kinds, limit } = parsed.data;
  const from = dates?.start === undefined ? null : parseTapeDate(dates.start, 'start');
  const until = dates?.end === undefined ? null : parseTapeDate(dates.end, 'end');
  if (from !== null && until !== null && from > until)
    throw new KernelError('bad_request', {
      message: 'Start date must be earlier than or equal to end date.',
      details: { field: 'query.between_dates', from, until },
    });
  return {
    slice: sliceOf(parsed.data),
    from,
    until,
    text: text === undefined || text === '' ? null : text,
    kinds: kinds ?? [],
    limit: limit ?? null,
  };
}

export const anchorNotFound = (name: string): KernelError =>
  new KernelError('not_found', { message: `Anchor '${name}' was not found.`, details: { anchor: name } });

/**
 * True when the JSON text of the record's kind, date, payload and meta, with sorted keys, contains the text. Case is
 * ignored. Quotes and line ends in the text also match their JSON escapes.
 */
export function matchesText(record: TapeRecord, text: string): boolean {
  const { date, kind, meta, payload } = record;
  const stack = foldCase(pythonJsonText(canonicalJson({ date, kind, meta, payload })));
  return stack.includes(foldCase(text)) || stack.includes(foldCase(JSON.stringify(text).slice(1, -1)));
}

const NO_DATE = parseTapeDate('1970-01-01');

function isWithin({ date }: TapeRecord, { from, until }: TapeQuery): boolean {
  if (from === null && until === null) return true;
  const at = date === null ? NO_DATE : parseTapeDate(date);
  return (from === null || at >= from) && (until === null || at <= until);
}

function isAnchorOf(record: TapeRecord, name: string): boolean {
  const found = anchorNameOf(record);
  return found !== undefined && toName(found) === toName(name);
}

function sliceRecords(records: readonly TapeRecord[], slice: TapeSlice): readonly TapeRecord[] {
  const afterLatest = (name: string): readonly TapeRecord[] => {
    const at = records.findLastIndex((record) => isAnchorOf(record, name));
    if (at === -1) throw anchorNotFound(name);
    return records.slice(at + 1);
  };
  switch (slice.kind) {
    case 'all':
      return records;
    case 'after_last':
      return records.slice(records.findLastIndex((record) => anchorNameOf(record) !== undefined) + 1);
    case 'after':
      return afterLatest(slice.anchor);
    case 'between': {
      const { start, end } = slice;
      const behind = afterLatest(start);
      if (end === null) return behind;
      const until = behind.findIndex((record) => isAnchorOf(record, end));
      if (until === -1) throw anchorNotFound(end);
      return behind.slice(0, until);
    }
    default:
      return slice satisfies never;
  }
}

/**
 * Runs the query over records in memory: the model for the store's answers.
 *
 * @param records - All records of a tape, in order.
 * @throws KernelError `not_found` for a named anchor that is absent.
 */
export function selectRecords(records: readonly TapeRecord[], query: TapeQuery): readonly TapeRecord[] {
  const { text, kinds, limit } = query;
  const wanted: ReadonlySet<string> = new Set(kinds);
  const found = sliceRecords(records, query.slice).filter(
    (record) =>
      isWithin(record, query) &&
      (text === null || matchesText(record, text)) &&
      (wanted.size === 0 || wanted.has(record.kind)),
  );
  return limit === null ? found : found.slice(0, limit);
}

/** An immutable query builder: each method returns a new builder, and nothing is read before `all`. */
export interface TapeQueryBuilder<Result> {
  /** A part of the text of an entry, see `matchesText`; an empty text clears it. */
  query(text: string): TapeQueryBuilder<Result>;
  /** Clears `lastAnchor`; an empty name clears both. */
  afterAnchor(name: string): TapeQueryBuilder<Result>;
  /** Clears `afterAnchor`. */
  lastAnchor(): TapeQueryBuilder<Result>;
  /** Without an end, the slice reaches the head. */
  betweenAnchors(start: string, end?: string): TapeQueryBuilder<Result>;
  betweenDates(start: string | Date, end: string | Date): TapeQueryBuilder<Result>;
  /** Kinds as separate arguments or as lists, including kinds of imported lines. Without any: all kinds. */
  kinds(...kinds: readonly (string | readonly string[])[]): TapeQueryBuilder<Result>;
  limit(limit: number): TapeQueryBuilder<Result>;
  /** Runs the query. Errors in the query are reported here, never before. */
  all(): Result;
}

const dateText = (value: string | Date): string =>
  value instanceof Date && !Number.isNaN(value.getTime()) ? value.toISOString() : String(value);

/** @param run - Checks the query (`parseTapeQuery`) and answers it when `all` is called. */
export function buildTapeQuery<Result>(
  run: (query: TapeQueryInput) => Result,
  input: TapeQueryInput = {},
): TapeQueryBuilder<Result> {
  const withPart = (part: TapeQueryInput): TapeQueryBuilder<Result> =>
    buildTapeQuery(run, { ...input, ...part });
  return {
    query: (text) => withPart({ text }),
    afterAnchor: (name) => withPart({ after_anchor: name, last_anchor: false }),
    lastAnchor: () => withPart({ after_anchor: '', last_anchor: true }),
    betweenAnchors: (start, end) =>
      withPart({ between_anchors: end === undefined ? { start } : { start, end } }),
    betweenDates: (start, end) => withPart({ between_dates: { start: dateText(start), end: dateText(end) } }),
    kinds: (...kinds) => withPart({ kinds: kinds.flat() }),
    limit: (limit) => withPart({ limit }),
    all: () => run(input),
  };
}
