/** Checks the input of appends and turns it into entries with cards. */

import {
  type AgentId,
  BOOTSTRAP_ANCHOR,
  BOOTSTRAP_STATE,
  buildCard,
  CARD_TYPES,
  type CardContent,
  type CardDraft,
  type EntryDraft,
  isJsonObject,
  isPlainName,
  type JsonObject,
  type JsonValue,
  KernelError,
  MAX_ANCHOR_NAME,
  MAX_CARD_BYTES,
  type NewCard,
  PLAIN_NAME,
  type ProjectId,
  parseCardInput,
  parseId,
  parseJsonValue,
  parseTapeDate,
  TURN_STARTED,
  toName,
} from '@boxcar/kernel';
import type { AppendRequest, NewTapeEntry } from '@boxcar/store';
import { newId } from '../lib/index.js';
import type { AppendOptions, EntryOptions } from './tape-types.js';

/** One entry to append: a text, an anchor, an event, or a draft with its card (imported lines, calls and results). */
export type EntryInput =
  | (EntryOptions & {
      readonly kind: 'message' | 'system' | 'error';
      /** Text, or any JSON. */
      readonly content: JsonValue;
      /** The role of a message; default `user`. */
      readonly role?: 'user' | 'assistant';
      /** The type of the card; the default depends on kind and role. */
      readonly type?: string;
      readonly metadata?: JsonObject;
    })
  | (EntryOptions & { readonly kind: 'anchor'; readonly name: string; readonly state?: JsonValue })
  | (EntryOptions & { readonly kind: 'event'; readonly name: string; readonly data?: JsonValue })
  | (EntryOptions & { readonly kind: 'draft'; readonly draft: EntryDraft; readonly createdAt?: string });

export interface EntryAuthor {
  readonly projectId: ProjectId;
  readonly actorId: AgentId;
  /** The path of the entry in the input, for errors. */
  readonly field?: string;
  /** The limit for the content of a card; default 1 MiB. */
  readonly maxCardBytes?: number | undefined;
}

const MAX_KEY = 500;
const MAX_STEP = 2 ** 31 - 1;

const refuse = (field: string, message: string): KernelError =>
  new KernelError('bad_request', { message: `${field}: ${message}`, details: { field } });

function checkName(name: unknown, field: string): string {
  const parsed = parseJsonValue(name, field);
  if (typeof parsed !== 'string' || parsed === '')
    throw refuse(field, 'must be a text of one character or more.');
  const checked = toName(parsed);
  if (checked.length > MAX_ANCHOR_NAME)
    throw refuse(field, `must have ${MAX_ANCHOR_NAME} characters at most.`);
  if (!isPlainName(checked)) throw refuse(field, `${PLAIN_NAME}.`);
  return checked;
}

/**
 * Checks the options of an append. A key belongs to its author: equal keys of different authors are different keys.
 *
 * @throws KernelError `bad_request`.
 */
export function checkAppend(
  { expectedHead, dedupKey }: AppendOptions,
  { actorId }: EntryAuthor,
): Pick<AppendRequest, 'dedupKey' | 'isNamed' | 'expectedHead'> {
  if (expectedHead !== undefined && !(Number.isSafeInteger(expectedHead) && expectedHead >= 0))
    throw refuse('expectedHead', 'must be a position, or 0.');
  if (dedupKey === undefined) return { expectedHead, dedupKey: newId(), isNamed: false };
  if (
    typeof dedupKey !== 'string' ||
    dedupKey === '' ||
    dedupKey.length > MAX_KEY ||
    !dedupKey.isWellFormed() ||
    !isPlainName(dedupKey)
  )
    throw refuse('dedupKey', `must have 1 to ${MAX_KEY} characters, and ${PLAIN_NAME}.`);
  return { expectedHead, dedupKey: `append:${actorId}:${dedupKey}`, isNamed: true };
}

/** A value that is stored in the entry itself may be at most as large as the content of a card. */
function checkSize(value: JsonValue, field: string, limitBytes = MAX_CARD_BYTES): void {
  const sizeBytes = Buffer.byteLength(JSON.stringify(value));
  if (sizeBytes <= limitBytes) return;
  throw new KernelError('payload_too_large', {
    message: `${field} has ${sizeBytes} bytes; the limit is ${limitBytes}.`,
    details: { field, sizeBytes, limitBytes },
  });
}

function checkValue(value: JsonValue, field: string, limitBytes?: number): JsonValue {
  const parsed = parseJsonValue(value, field);
  checkSize(parsed, field, limitBytes);
  return parsed;
}

/**
 * Checks the limits of a draft, whose values are plain and clean. The text of the imported line is stored in addition and has its own
 * limit.
 */
function checkDraft({ payload, anchorName, meta }: EntryDraft, limitBytes?: number): void {
  const { imported: _imported, ...said } = meta ?? {};
  checkSize(said, 'meta', limitBytes);
  if (payload !== null) checkSize(payload, 'payload', limitBytes);
  for (const name of [anchorName, payload?.name])
    if (typeof name === 'string' && name.length > MAX_ANCHOR_NAME)
      throw refuse('payload.name', `must have ${MAX_ANCHOR_NAME} characters at most.`);
}

/** `imported` contains the line from which an entry was imported. Readers trust it, so only imports may write it. */
function checkMeta(meta: JsonObject, field: string, limitBytes?: number): JsonObject {
  const parsed = checkValue(meta, field, limitBytes);
  if (!isJsonObject(parsed) || parsed.imported !== undefined)
    throw refuse(field, 'must be an object without `imported`.');
  return parsed;
}

function checkStep(step: number | undefined, field: string): number | null {
  if (step === undefined) return null;
  if (Number.isInteger(step) && step > 0 && step <= MAX_STEP) return step;
  throw refuse(field, 'must be the number of a step.');
}

/** A `turn.started` event shows readers of the tape the context that it names, so only claims of turns may write it. */
function checkEvent<T>(name: T, field: string): T {
  if (name === TURN_STARTED) throw refuse(field, `${TURN_STARTED} is written by turns alone.`);
  return name;
}

function buildEntryCard(draft: Omit<CardDraft, 'authorId'>, author: EntryAuthor): NewCard {
  const { projectId, actorId, maxCardBytes } = author;
  return buildCard({ ...draft, authorId: actorId }, { id: newId<'card'>(), projectId }, maxCardBytes);
}

const contentOf = (value: JsonValue): CardContent =>
  typeof value === 'string' ? { kind: 'text', text: value } : { kind: 'json', data: value };

const TYPES = { user: CARD_TYPES.input, assistant: CARD_TYPES.thought } as const;

/** The card also contains the name, because a view shows an anchor as an ordinary card unless the view begins with it. */
const anchorDraft = (name: string, state: JsonValue): Omit<CardDraft, 'authorId'> => ({
  type: CARD_TYPES.anchor,
  role: 'assistant',
  content: { kind: 'json', data: state },
  metadata: { name },
});

/** Builds the entry of an input. @throws KernelError `bad_request`, `payload_too_large`. */
export function toNewEntry(input: EntryInput, author: EntryAuthor): NewTapeEntry {
  const { field = 'entry' } = author;
  const shared = {
    authorId: author.actorId,
    payload: null,
    anchorName: null,
    turnId: input.turnId === undefined ? null : parseId<'turn'>(input.turnId, `${field}.turnId`),
    step: checkStep(input.step, `${field}.step`),
    meta: input.meta === undefined ? null : checkMeta(input.meta, `${field}.meta`, author.maxCardBytes),
  };
  switch (input.kind) {
    case 'anchor': {
      const name = checkName(input.name, `${field}.name`);
      const state = input.state === undefined ? null : parseJsonValue(input.state, `${field}.state`);
      return {
        ...shared,
        kind: 'anchor',
        anchorName: name,
        card: buildEntryCard(anchorDraft(name, state), author),
      };
    }
    case 'event': {
      const name = checkEvent(checkName(input.name, `${field}.name`), `${field}.name`);
      const data =
        input.data === undefined
          ? {}
          : { data: checkValue(input.data, `${field}.data`, author.maxCardBytes) };
      return { ...shared, kind: 'event', card: null, payload: { name, ...data } };
    }
    case 'draft': {
      const { kind, card, payload, anchorName, meta } = input.draft;
      checkEvent(payload?.name, `${field}.draft.payload.name`);
      checkDraft(input.draft, author.maxCardBytes);
      return {
        ...shared,
        kind,
        card: card === null ? null : buildEntryCard(card, author),
        payload,
        anchorName,
        meta: meta ?? shared.meta,
        createdAt: input.createdAt === undefined ? null : parseTapeDate(input.createdAt),
      };
    }
    case 'message':
    case 'system':
    case 'error':
      return { ...shared, kind: input.kind, card: wordsCard(input, author, field) };
    default:
      throw refuse(`${field}.kind`, 'must be message, system, error, anchor or event.');
  }
}

function wordsCard(
  input: Extract<EntryInput, { readonly content: JsonValue }>,
  author: EntryAuthor,
  field: string,
): NewCard {
  const role =
    input.kind === 'message' ? (input.role ?? 'user') : input.kind === 'system' ? 'system' : 'user';
  if (input.kind === 'message' && role !== 'user' && role !== 'assistant')
    throw refuse(`${field}.role`, 'must be user or assistant.');
  const type =
    input.kind === 'system'
      ? CARD_TYPES.notice
      : input.kind === 'error'
        ? CARD_TYPES.agentError
        : TYPES[role as 'user' | 'assistant'];
  const { type: wanted = type, metadata } = input;
  const parsed = parseCardInput(
    {
      type: wanted,
      role,
      content: contentOf(input.content),
      ...(metadata === undefined ? {} : { metadata }),
    },
    field,
  );
  return buildEntryCard(
    { type: parsed.type, role, content: parsed.content, metadata: { ...parsed.metadata, role } },
    author,
  );
}

/**
 * An anchor and its event. The event contains only the name; the state is in the card of the anchor, where it can be erased.
 *
 * @throws KernelError `bad_request`, `payload_too_large`.
 */
export function toNewHandoff(
  name: string,
  options: EntryOptions & { readonly state?: JsonValue },
  author: EntryAuthor,
): readonly NewTapeEntry[] {
  const { state, ...rest } = options;
  const named = { ...author, field: 'handoff' };
  const checked = checkName(name, 'handoff.name');
  if (state !== undefined && state !== null && !isJsonObject(state))
    throw refuse('handoff.state', 'must be an object.');
  return [
    toNewEntry(
      { kind: 'anchor', name: checked, ...(state === undefined ? {} : { state }), ...pick(rest) },
      named,
    ),
    toNewEntry({ kind: 'event', name: 'handoff', data: { name: checked }, ...pick(rest) }, named),
  ];
}

/** The card of the first anchor of a tape, when its state has more members than the default state. */
export const toNewBootstrap = (state: JsonObject, author: EntryAuthor): NewCard =>
  toAnchorCard(BOOTSTRAP_ANCHOR, { ...BOOTSTRAP_STATE, ...state }, author);

const pick = ({ meta, turnId, step }: EntryOptions): EntryOptions => ({
  ...(meta === undefined ? {} : { meta }),
  ...(turnId === undefined ? {} : { turnId }),
  ...(step === undefined ? {} : { step }),
});

/** The card of an anchor that is created together with its tape. @throws KernelError `bad_request`, `payload_too_large`. */
export const toAnchorCard = (name: string, state: JsonObject, author: EntryAuthor): NewCard =>
  buildEntryCard(anchorDraft(name, state), author);
