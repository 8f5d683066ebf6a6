/** Tapes as lines for terminals. */
import { isJsonObject, type JsonObject, type JsonValue, jsonText, type TapeRecord } from '@boxcar/kernel';
import type { TapeInfo } from '@boxcar/runtime';
import type { ListedTape } from '@boxcar/store';
import { formatCount, formatFields, formatTable } from '../../text/text.js';

/** A state or payload on one line; empty when there is none. */
export const inline = (value: JsonValue): string =>
  value === null ? '' : typeof value === 'string' ? value : jsonText(value);

/** The day and the minute, in UTC. */
const shortDate = (date: string | null): string => date?.slice(0, 16).replace('T', ' ') ?? '';

const wordsOf = (payload: JsonObject, key: string): string => inline(payload[key] ?? null);

/** The instruction of a turn comes first, since a line may be cut. */
function eventText(payload: JsonObject): string {
  const data = isJsonObject(payload.data ?? null) ? (payload.data as JsonObject) : undefined;
  if (typeof data?.asked !== 'string')
    return `${wordsOf(payload, 'name')} ${wordsOf(payload, 'data')}`.trim();
  const { asked, ...rest } = data;
  return `${wordsOf(payload, 'name')} ${JSON.stringify(asked)} ${jsonText(rest)}`;
}

const listOf = (value: JsonValue | undefined): readonly JsonValue[] => (Array.isArray(value) ? value : []);
const textOf = (value: JsonValue | undefined): string => (typeof value === 'string' ? value : '');

/** A tool's name before its arguments or result. An imported line with another wording is shown unchanged. */
const named = (name: string, value: JsonValue): string => `${name === '' ? '' : `${name} `}${inline(value)}`;

/** The calls of a record: the tool's name with its arguments. */
const callsText = ({ payload }: TapeRecord): string =>
  listOf(payload.calls)
    .map((call) => {
      const called = isJsonObject(call) && isJsonObject(call.function) ? call.function : undefined;
      return called === undefined ? inline(call) : named(textOf(called.name), called.arguments ?? null);
    })
    .join(' · ') || wordsOf(payload, 'calls');

/** The results of a record: the tool's name with its result. */
const resultsText = ({ payload, tools }: TapeRecord): string =>
  listOf(payload.results)
    .map((result, index) => named(tools?.[index] ?? '', result))
    .join(' · ') || wordsOf(payload, 'results');

function contentOf(record: TapeRecord): string {
  const { kind, payload } = record;
  switch (kind) {
    case 'message':
      return `${wordsOf(payload, 'role')}: ${wordsOf(payload, 'content')}`;
    case 'system':
      return wordsOf(payload, 'content');
    case 'anchor':
      return `${wordsOf(payload, 'name')} ${wordsOf(payload, 'state')}`.trim();
    case 'event':
      return eventText(payload);
    case 'tool_call':
      return callsText(record);
    case 'tool_result':
      return resultsText(record);
    default:
      return inline(payload);
  }
}

export const recordTable = (records: readonly TapeRecord[]): string =>
  formatTable(
    [{ title: 'pos', align: 'right' }, { title: 'kind' }, { title: 'date (UTC)' }, { title: 'content' }],
    records.map((record) => [
      String(record.position),
      record.kind,
      shortDate(record.date),
      contentOf(record),
    ]),
  );

/** The owner of a tape: a tape with neither a name nor an agent is a fork. */
function ownerKindOf({ archived_at, agent, name }: ListedTape): string {
  if (archived_at !== null) return 'archived';
  if (agent !== null) return 'agent';
  return name === null ? 'fork' : 'name';
}

export const tapeTable = (tapes: readonly ListedTape[]): string =>
  formatTable(
    [
      { title: 'tape', max: 36 },
      { title: 'of', max: 8 },
      { title: 'entries', align: 'right' },
      { title: 'anchors', align: 'right' },
      { title: 'last anchor' },
    ],
    tapes.map((tape) => [
      `${tape.name ?? tape.agent ?? tape.box_id}${tape.archived_at === null ? '' : ` #${tape.incarnation}`}`,
      ownerKindOf(tape),
      formatCount(tape.entries),
      formatCount(tape.anchors),
      tape.last_anchor ?? '',
    ]),
  );

export const infoFields = (info: TapeInfo): string =>
  formatFields(Object.entries(info).map(([name, value]) => [name, String(value ?? 'none')] as const));
