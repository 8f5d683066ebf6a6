/**
 * Converts entries to chat messages in OpenAI's shape, as Bub does. The prompt of a turn comes from `buildView`
 * instead.
 *
 * M1  `strictBub` gives exactly the messages that Bub makes of the same entries, to the byte of every text, including
 *     its defects: the anchor before the slice is not shown, and results are paired by position with only the last
 *     calls.
 * M2  Otherwise every call is answered exactly once and directly: by id, else by position, and by a fixed text when the
 *     result is missing. A result without its call is left out. So is a step's message without words, which older
 *     builds wrote before the step's calls.
 */
import {
  isJsonObject,
  type JsonObject,
  type JsonValue,
  pythonJson,
  pythonJsonAt,
  pythonJsonItems,
} from '../base/index.js';
import { anchorText, isBlank, NOT_AVAILABLE } from '../render/render.js';
import { anchorNameOf, anchorState, type TapeRecord } from './record.js';
import { BOOTSTRAP_ANCHOR } from './tape.js';

/** `{role, content, tool_calls?}` or `{role: 'tool', content, tool_call_id?, name?}`, members in this order. */
export type ChatMessage = JsonObject;

export interface TapeMessagesOptions {
  /** See M1. Default false. */
  readonly strictBub?: boolean;
  /**
   * The anchor before the slice; its state is the first message. A bootstrap anchor and a hidden anchor are not shown.
   */
  readonly anchor?: TapeRecord | null;
}

function anchorMessage(record: TapeRecord): ChatMessage {
  const written = record.line === undefined ? undefined : pythonJsonAt(record.line, ['payload', 'state']);
  const state = written ?? pythonJson(anchorState(record));
  return { role: 'assistant', content: anchorText(anchorNameOf(record), state) };
}

const listOf = (value: JsonValue | undefined): readonly JsonValue[] | undefined =>
  Array.isArray(value) ? value : undefined;
const callsOf = ({ payload }: TapeRecord): readonly JsonObject[] =>
  listOf(payload.calls)?.filter(isJsonObject) ?? [];

/** The texts of a record's results. */
function resultTexts({ payload, line }: TapeRecord): readonly string[] {
  const results = listOf(payload.results) ?? [];
  const isText = (result: JsonValue): boolean => typeof result === 'string';
  const written =
    line === undefined || results.every(isText) ? undefined : pythonJsonItems(line, ['payload', 'results']);
  return results.map((result, index) =>
    typeof result === 'string' ? result : (written?.[index] ?? pythonJson(result)),
  );
}

const callMessage = (calls: readonly JsonObject[]): ChatMessage => ({
  role: 'assistant',
  content: '',
  tool_calls: calls,
});

/** @param call - The call that the result answers; undefined when there is none to pair it with. */
function resultMessage(content: string, call: JsonObject | undefined): ChatMessage {
  const id = call?.id;
  const name = isJsonObject(call?.function) ? call.function.name : undefined;
  return {
    role: 'tool',
    content,
    ...(typeof id === 'string' && id !== '' ? { tool_call_id: id } : {}),
    ...(typeof name === 'string' && name !== '' ? { name } : {}),
  };
}

function strictMessages(records: readonly TapeRecord[]): readonly ChatMessage[] {
  const messages: ChatMessage[] = [];
  let pending: readonly JsonObject[] = [];
  for (const record of records) {
    if (record.kind === 'anchor') messages.push(anchorMessage(record));
    else if (record.kind === 'message') messages.push(record.payload);
    else if (record.kind === 'tool_call') {
      pending = callsOf(record);
      if (pending.length > 0) messages.push(callMessage(pending));
    } else if (record.kind === 'tool_result') {
      for (const [index, text] of resultTexts(record).entries())
        messages.push(resultMessage(text, pending[index]));
      pending = [];
    }
  }
  return messages;
}

/** A call in a valid prompt: it has an id, and its result once the result is found. */
interface OpenCall {
  readonly call: JsonObject;
  readonly id: string;
  result: string | undefined;
}

function openCalls(record: TapeRecord): OpenCall[] {
  return callsOf(record).map((call, index) => {
    const id = typeof call.id === 'string' && call.id !== '' ? call.id : `call_${record.position}_${index}`;
    return { call: { ...call, id }, id, result: undefined };
  });
}

/** Calls of one step, in order. The calls before `next` have their results. */
interface CallQueue {
  readonly calls: OpenCall[];
  next: number;
}

/** The first call of the queue without a result. The search never visits earlier calls again. */
function firstOpen(queue: CallQueue): OpenCall | undefined {
  while (queue.next < queue.calls.length && queue.calls[queue.next]?.result !== undefined) queue.next += 1;
  return queue.calls[queue.next];
}

/** The latest queue that has a call without a result. Later queues are dropped, since a result is never removed. */
function latestOpen(queues: CallQueue[] | undefined): CallQueue | undefined {
  for (let last = queues?.at(-1); last !== undefined; last = queues?.at(-1)) {
    if (firstOpen(last) !== undefined) return last;
    queues?.pop();
  }
  return undefined;
}

/** Calls that wait for results: by step, and for each id by step. Every look-up takes constant time on average. */
class OpenCalls {
  readonly #steps: CallQueue[] = [];
  readonly #byId = new Map<string, CallQueue[]>();

  add(calls: OpenCall[]): void {
    this.#steps.push({ calls, next: 0 });
    const ofStep = new Map<string, CallQueue>();
    for (const call of calls) {
      const known = ofStep.get(call.id);
      if (known !== undefined) {
        known.calls.push(call);
        continue;
      }
      const queue: CallQueue = { calls: [call], next: 0 };
      ofStep.set(call.id, queue);
      const queues = this.#byId.get(call.id);
      if (queues === undefined) this.#byId.set(call.id, [queue]);
      else queues.push(queue);
    }
  }

  /**
   * Assigns the results of a record to earlier calls: by id, else in order to the latest step that still waits for
   * results.
   */
  settle(record: TapeRecord): void {
    const ids = listOf(record.meta.tool_call_ids) ?? [];
    const latest = latestOpen(this.#steps);
    for (const [index, text] of resultTexts(record).entries()) {
      const id = ids[index];
      const queue = id === undefined ? latest : latestOpen(this.#byId.get(String(id)));
      const call = queue === undefined ? undefined : firstOpen(queue);
      if (call !== undefined && (id === undefined || call.id === id)) call.result = text;
    }
  }
}

const isBlankStep = ({ kind, payload, meta, line }: TapeRecord): boolean =>
  kind === 'message' &&
  line === undefined &&
  typeof meta.step === 'number' &&
  payload.role === 'assistant' &&
  typeof payload.content === 'string' &&
  isBlank(payload.content);

function validMessages(records: readonly TapeRecord[]): readonly ChatMessage[] {
  const open = new OpenCalls();
  const parts: (() => readonly ChatMessage[])[] = [];
  for (const record of records) {
    if (isBlankStep(record)) continue;
    if (record.kind === 'anchor') parts.push(() => [anchorMessage(record)]);
    else if (record.kind === 'message') parts.push(() => [record.payload]);
    else if (record.kind === 'tool_result') open.settle(record);
    else if (record.kind === 'tool_call') {
      const step = openCalls(record);
      if (step.length === 0) continue;
      open.add(step);
      parts.push(() => [
        callMessage(step.map(({ call }) => call)),
        ...step.map(({ call, result }) => resultMessage(result ?? NOT_AVAILABLE, call)),
      ]);
    }
  }
  return parts.flatMap((part) => part());
}

/** @param records - In Bub's form, see `toRecords`. Records whose `meta.context` is false are left out. */
export function tapeMessages(
  records: readonly TapeRecord[],
  options: TapeMessagesOptions = {},
): readonly ChatMessage[] {
  const shown = records.filter(({ meta }) => meta.context !== false);
  if (options.strictBub) return strictMessages(shown);
  const { anchor = null } = options;
  const hasState =
    anchor !== null && anchor.meta.context !== false && anchorNameOf(anchor) !== BOOTSTRAP_ANCHOR;
  return [...(hasState ? [anchorMessage(anchor)] : []), ...validMessages(shown)];
}
