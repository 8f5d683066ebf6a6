/**
 * What is asked of a tape: a slice between anchors, then dates, text, kinds and limit, in this order. Source: docs/tape.md.
 *
 * Q1  Of several slices the first of these counts: between anchors, after the last anchor, after a named anchor.
 * Q2  A slice holds neither of its boundary anchors, but every later anchor in it.
 * Q3  A name means its latest anchor; the end of a slice is the first anchor of that name after its start.
 * Q4  Only a named anchor can be missing. Without any anchor, "after the last" is the whole tape.
 * Q5  `limit` keeps the oldest.
 */
import { z } from 'zod';
import { KernelError } from './errors.js';
import { ENTRY_KINDS, type EntryKind } from './tape.js';
import type { TapeRecord } from './tape-record.js';

/** Selects what follows the last anchor; the default of every reader. */
export const LAST_ANCHOR: unique symbol = Symbol('last anchor');
/** The last anchor, the latest of a name, or none: the whole tape. */
export type AnchorSelector = typeof LAST_ANCHOR | string | null;

export type TapeSlice =
  | { readonly kind: 'all' }
  | { readonly kind: 'after_last' }
  | { readonly kind: 'after'; readonly anchor: string }
  /** Up to the head when `end` is null. */
  | { readonly kind: 'between'; readonly start: string; readonly end: string | null };

/** A checked query. Dates are inclusive bounds as `YYYY-MM-DDTHH:MM:SS.ffffffZ`, so they compare as text. */
export interface TapeQuery {
  readonly slice: TapeSlice;
  readonly from: string | null;
  readonly until: string | null;
  /** Null or an empty text: any. */
  readonly text: string | null;
  /** Empty: any. */
  readonly kinds: readonly EntryKind[];
  readonly limit: number | null;
}

/** A query as it is written at a door. */
export const tapeQuerySchema = z.strictObject({
  last_anchor: z.boolean().optional(),
  after_anchor: z.string().optional(),
  between_anchors: z.strictObject({ start: z.string(), end: z.string().optional() }).optional(),
  between_dates: z.strictObject({ start: z.string().optional(), end: z.string().optional() }).optional(),
  text: z.string().optional(),
  kinds: z.array(z.enum(ENTRY_KINDS)).optional(),
  limit: z.int().min(0).optional(),
});
export type TapeQueryInput = z.input<typeof tapeQuerySchema>;

/** @throws KernelError `bad_request` naming the field: dates, their order, kinds, limit. */
export function parseTapeQuery(_input: unknown): TapeQuery {
  throw new Error('not yet');
}

export function toSlice(_selector: AnchorSelector): TapeSlice {
  throw new Error('not yet');
}

/**
 * A date or datetime of ISO 8601 as a bound that compares as text. Without a time it is the first or last moment of the
 * day, without an offset UTC.
 *
 * @throws KernelError `bad_request`.
 */
export function parseTapeDate(_value: string, _edge: 'start' | 'end'): string {
  throw new Error('not yet');
}

export const anchorNotFound = (name: string): KernelError =>
  new KernelError('not_found', { message: `Anchor '${name}' was not found.`, details: { anchor: name } });

/** The name of an anchor's record; undefined for every other. */
export function anchorNameOf(_record: TapeRecord): string | undefined {
  throw new Error('not yet');
}

/** True when the text stands, without regard to case, in the JSON text of kind, date, payload and meta. */
export function matchesText(_record: TapeRecord, _text: string): boolean {
  throw new Error('not yet');
}

/**
 * The query over records in memory: the model of what the store answers.
 *
 * @throws KernelError `not_found` for a named anchor that is absent.
 */
export function selectRecords(_records: readonly TapeRecord[], _query: TapeQuery): readonly TapeRecord[] {
  throw new Error('not yet');
}

/** An immutable query in the making; each method returns a new one. Nothing is read before `all`. */
export interface TapeQueryBuilder<Result> {
  /** Part of the text of an entry. */
  query(text: string): TapeQueryBuilder<Result>;
  /** An empty name clears it. */
  afterAnchor(name: string): TapeQueryBuilder<Result>;
  lastAnchor(): TapeQueryBuilder<Result>;
  /** Up to the head without an end. */
  betweenAnchors(start: string, end?: string): TapeQueryBuilder<Result>;
  betweenDates(start: string | Date, end: string | Date): TapeQueryBuilder<Result>;
  /** Without any: all kinds. */
  kinds(...kinds: readonly EntryKind[]): TapeQueryBuilder<Result>;
  limit(limit: number): TapeQueryBuilder<Result>;
  /** @throws KernelError `bad_request`, `not_found`. */
  all(): Result;
}

export function buildTapeQuery<Result>(_run: (query: TapeQuery) => Result): TapeQueryBuilder<Result> {
  throw new Error('not yet');
}
