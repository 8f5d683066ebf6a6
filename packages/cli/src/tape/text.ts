/** Tapes as lines for terminals. */
import { isJsonObject, type JsonObject, type JsonValue, jsonText, type TapeRecord } from '@boxcar/kernel';
import type { TapeInfo } from '@boxcar/runtime';
import type { TapeLine } from '@boxcar/store';
import { formatCount, formatFields, formatTable } from '../text.js';

/** A state or payload on one line; nothing for none. */
export const inline = (value: JsonValue): string =>
  value === null ? '' : typeof value === 'string' ? value : jsonText(value);

/** The day and the minute, in UTC. */
const shortDate = (date: string | null): string => date?.slice(0, 16).replace('T', ' ') ?? '';

const wordsOf = (payload: JsonObject, key: string): string => inline(payload[key] ?? null);

/** What a turn was asked comes first: a line may be cut. */
function eventText(payload: JsonObject): string {
  const data = isJsonObject(payload.data ?? null) ? (payload.data as JsonObject) : undefined;
  if (typeof data?.asked !== 'string')
    return `${wordsOf(payload, 'name')} ${wordsOf(payload, 'data')}`.trim();
  const { asked, ...rest } = data;
  return `${wordsOf(payload, 'name')} ${JSON.stringify(asked)} ${jsonText(rest)}`;
}

function contentOf({ kind, payload }: TapeRecord): string {
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
      return wordsOf(payload, 'calls');
    case 'tool_result':
      return wordsOf(payload, 'results');
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

/** Whose it is: a tape without a name and an agent is a fork. */
function ownerKindOf({ archived_at, agent, name }: TapeLine): string {
  if (archived_at !== null) return 'archived';
  if (agent !== null) return 'agent';
  return name === null ? 'fork' : 'name';
}

export const tapeTable = (tapes: readonly TapeLine[]): string =>
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
