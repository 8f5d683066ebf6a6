/**
 * Compares the output of `explain`, `why` and `preview` for each model call with the bytes that the provider received.
 *
 * S1  The request that the adapter of the call makes from an explanation is the request that was sent, byte for byte.
 * S2  `why` finds every text of the bytes: in words of a card that the explanation names, in a fixed wording, or in a tool that it names.
 *     The only other texts are those that the provider attached to an answer; the explanation names such an attachment by its hash.
 * S3  Every card that the explanation names has a rule and a source, and is at the place that the rows say. Its words are in the bytes,
 *     unless the explanation lists them as left out. No word of any other card is in the bytes.
 * S4  The adapter does exactly the additions and changes that it reports: its fillers, placeholders, names and marks are in the bytes as
 *     often as it reports, and the bytes contain nothing else that is in no message and no tool.
 * S5  The messages of a preview give the bytes of the first step.
 */
import {
  AUTO_HANDOFF_ANCHOR,
  type BoxId,
  type CardContent,
  type CardId,
  describeProviderData,
  isJsonObject,
  type JsonValue,
  type Message,
  renderBody,
  type TurnId,
  type WireNote,
} from '@boxcar/kernel';
import { expandContexts } from '@boxcar/store';
import { expect } from 'vitest';
import type { CardOrigin } from '../explain/card-origin.js';
import type { ExplainedMessage, StepExplanation } from '../explain/explain-step.js';
import { TurnPrompts } from '../explain/turn-prompts.js';
import type { WhyPart } from '../explain/why.js';
import type { PackPreview } from '../pack/index.js';
import { MARK, type SentCall, type SentStage } from './sent-stage.js';

export interface Previewed {
  readonly turnId: TurnId;
  readonly preview: PackPreview;
}

/** Words of wire formats and of adapters, which are not texts of a prompt. */
const FIXED = new Set([
  'text',
  'function',
  'tool_use',
  'tool_result',
  'auto',
  'none',
  'thinking',
  'reasoning',
  'ephemeral',
]);
FIXED.add('function_call')
  .add('function_call_output')
  .add('summary_text')
  .add('input_text')
  .add('output_text')
  .add('message');
/** Members of bodies that contain no text of a prompt. */
const NO_TEXT = new Set([
  'model',
  'role',
  'type',
  'tools',
  'tool_choice',
  'toolConfig',
  'include',
  'generationConfig',
  'thinking',
  'reasoning',
  'store',
  'stream_options',
]);
/** Ids that connect a result with its call. */
const IDS = new Set(['id', 'call_id', 'tool_call_id', 'tool_use_id']);
/** Under these rules, the words of a card are sent unchanged. */
const OWN_WORDS: ReadonlySet<WhyPart['rule']> = new Set(['text', 'json', 'arguments', 'result']);

/** The state of an anchor is worded as in the original tape, but with different white space. */
const squash = (text: string): string => text.replaceAll(/\s+/g, '');
const marksIn = (text: string): ReadonlySet<string> => new Set(text.match(MARK) ?? []);

function* textsIn(value: JsonValue, key = ''): Generator<string> {
  if (typeof value === 'string') {
    if (value.trim() !== '' && !FIXED.has(value) && !IDS.has(key)) yield value;
  } else if (Array.isArray(value)) {
    for (const item of value as readonly JsonValue[]) yield* textsIn(item, key);
  } else if (isJsonObject(value)) {
    for (const [name, member] of Object.entries(value)) if (!NO_TEXT.has(name)) yield* textsIn(member, name);
  }
}

/**
 * The message that an explanation shows. Provider data is copied from the sent message, after a check that the explanation describes
 * exactly this data.
 */
function toMessage(explained: ExplainedMessage, sent: Message | undefined): Message {
  const { role, content } = explained;
  if (role === 'tool') {
    const { tool_call_id: toolCallId = '', name = '', is_error: isError = false } = explained;
    return { role, toolCallId, name, content, isError };
  }
  if (role !== 'assistant') return { role, content };
  const provider = sent?.role === 'assistant' ? sent.provider : undefined;
  expect(explained.provider_data).toEqual(
    provider === undefined ? undefined : describeProviderData(provider),
  );
  return {
    role,
    content,
    ...(explained.tool_calls === undefined ? {} : { toolCalls: explained.tool_calls }),
    ...(provider === undefined ? {} : { provider }),
  };
}

/** The texts that providers attached to the answers in a prompt. */
const attachedTo = (messages: readonly Message[]): ReadonlySet<string> =>
  new Set(
    messages.flatMap((message) =>
      message.role === 'assistant'
        ? [...textsIn((message.provider?.parts ?? []) as unknown as JsonValue)]
        : [],
    ),
  );

/** The names of tools in the form that providers accept. */
const wireNames = ({ tools, messages }: StepExplanation): ReadonlySet<string> =>
  new Set(
    [...(tools ?? []), ...messages.flatMap(({ tool_calls: calls = [] }) => calls)].map(({ name }) =>
      name.replaceAll('.', '__'),
    ),
  );

type Contents = ReadonlyMap<CardId, CardContent | null>;

async function contentsOf(stage: SentStage, cards: readonly CardOrigin[]): Promise<Contents> {
  const rows = await stage.h.rows<{ id: CardId; content: CardContent | null }>(
    'select id, content from boxcar.cards where id = any($1)',
    [[...new Set(cards.map((card) => card.card_id))]],
  );
  return new Map(rows.map(({ id, content }) => [id, content]));
}

/** The cards at their places according to the rows, each as a text. A forked tape includes the entries of the tapes before it. */
async function placesInRows(stage: SentStage, boxIds: readonly BoxId[]): Promise<ReadonlySet<string>> {
  const rows = await stage.h.rows<{ place: string }>(
    `
      select concat_ws(' ', e.card_id, b.id, e.kind, e.position) as place
      from boxcar.boxes b
      join boxcar.tape_entries e on e.box_id = b.id or e.box_id = any(b.line_boxes)
      where b.id = any($1) and e.card_id is not null
      union all
      select concat_ws(' ', card_id, box_id, name, version)
      from boxcar.profiles
      where box_id = any($1)`,
    [boxIds],
  );
  const contexts = await expandContexts(stage.h.database.pool, boxIds);
  const inContexts = [...contexts].flatMap(([boxId, cards]) =>
    cards.map(({ card, rule }, index) => `${card.id} ${boxId} ${rule} ${index + 1}`),
  );
  return new Set([...rows.map(({ place }) => place), ...inContexts]);
}

/** The same text for a card that an explanation names. */
function placeOf({ card_id: id, place }: CardOrigin): string {
  const { kind, box_id: boxId } = place;
  if (kind === 'profile') return `${id} ${boxId} ${place.name} ${place.version}`;
  if (kind === 'tape') return `${id} ${boxId} ${place.entry} ${place.position}`;
  return `${id} ${boxId} ${place.rule} ${place.position}`;
}

/** S2. */
async function checkText(
  text: string,
  of: { readonly prompts: TurnPrompts; readonly explained: StepExplanation; readonly contents: Contents },
): Promise<void> {
  const { prompts, explained, contents } = of;
  const answer = await prompts.why(text, { step: explained.step });
  if (answer.outcome !== 'found') throw new Error(`no card holds what was sent: ${text.slice(0, 300)}`);
  const named = new Set(explained.messages.flatMap(({ cards }) => cards.map((card) => card.card_id)));
  for (const part of answer.places[0]?.parts ?? []) {
    const { card, rule } = part;
    if (card === null) {
      expect(
        part.tool !== null || rule === 'context_contract' || rule.startsWith('notice.'),
        `${rule}: ${part.text}`,
      ).toBe(true);
      continue;
    }
    expect(named).toContain(card.card_id);
    const content = contents.get(card.card_id);
    if (part.is_own && OWN_WORDS.has(rule) && content != null)
      expect(squash(renderBody(content))).toContain(squash(part.text));
  }
}

const shownIn = (explained: StepExplanation): readonly CardOrigin[] =>
  explained.messages.flatMap(({ cards }) => cards);

/** S3: the bytes contain the marks of the cards that an explanation names, and no others. */
function checkMarks(
  bytes: string,
  of: {
    readonly explained: StepExplanation;
    readonly contents: Contents;
    readonly attached: ReadonlySet<string>;
  },
): void {
  const { explained, contents, attached } = of;
  const sent = marksIn(bytes);
  const left = new Set(explained.omissions.map(({ card }) => card.card_id));
  const named = new Set(marksIn(JSON.stringify([explained.tools, [...attached]])));
  for (const { card_id: id } of shownIn(explained)) {
    for (const mark of marksIn(JSON.stringify(contents.get(id) ?? null))) {
      named.add(mark);
      if (!left.has(id)) expect(sent, `card ${id}`).toContain(mark);
    }
  }
  expect([...sent].filter((mark) => !named.has(mark))).toEqual([]);
}

const timesIn = (bytes: string, text: string): number => bytes.split(text).length - 1;

/** The form in which each filler is written in the bytes. */
const FILLERS: Readonly<Record<string, string>> = {
  '[noted]': '"[noted]"',
  skip_thought_signature_validator: '"skip_thought_signature_validator"',
  '': '"reasoning_content":""',
};

/** S4. Returns the words that the adapter has added. */
function checkWire(bytes: string, wire: readonly WireNote[], seen: Set<string>): ReadonlySet<string> {
  const count = (kind: WireNote['kind'], text?: string): number =>
    wire
      .filter((note) => note.kind === kind && (text === undefined || note.text === text))
      .reduce((sum, { messages }) => sum + (messages?.length ?? 1), 0);
  for (const [text, written] of Object.entries(FILLERS))
    expect(timesIn(bytes, written), text).toBe(count('filler', text));
  expect(timesIn(bytes, 'Not available in this step.')).toBe(count('placeholder_tool'));
  expect(timesIn(bytes, '"cache_control"')).toBe(count('cache_mark'));
  for (const { kind, text, message } of wire) {
    seen.add(`wire ${kind}`);
    if (text !== undefined && kind !== 'filler') expect(bytes, message).toContain(JSON.stringify(text));
  }
  return new Set(wire.flatMap(({ text }) => text ?? []));
}

/** Collects the kinds of things that an explanation names. */
function note(seen: Set<string>, explained: StepExplanation): void {
  for (const { reason } of explained.omissions) seen.add(`omitted ${reason}`);
  for (const { notice } of explained.messages) if (notice !== null) seen.add(`notice ${notice}`);
  for (const { place, notice } of shownIn(explained)) {
    if (place.kind !== 'profile')
      seen.add(`${place.kind} ${place.kind === 'tape' ? place.entry : place.rule}`);
    if (notice !== null) seen.add(`card notice ${notice}`);
  }
}

interface Explained {
  readonly call: SentCall;
  readonly prompts: TurnPrompts;
  readonly explained: StepExplanation;
}

async function checkCall(
  stage: SentStage,
  { call, prompts, explained }: Explained,
  of: { readonly contents: Contents; readonly places: ReadonlySet<string> },
): Promise<void> {
  const { request, bytes } = call;
  const isCommitted = explained.committed_at !== null;
  expect(explained.findings.map(({ code }) => code)).toEqual(isCommitted ? [] : ['not_committed']);
  expect(explained.verified).toBe(isCommitted);
  const messages = explained.messages.map((message, index) => toMessage(message, request.messages[index]));
  // S1. The tools of an attempt without an answer are not recorded.
  const tools = explained.tools ?? (isCommitted ? [] : request.tools);
  const rebuilt = {
    messages,
    tools: tools.map(({ name, description, parameters }) => ({ name, description, parameters })),
  };
  expect(await stage.render({ ...request, ...rebuilt })).toBe(bytes);

  const attached = attachedTo(messages);
  const names = wireNames(explained);
  // An attempt without recorded tools has no notes of the adapter.
  const wire = explained.wire ?? stage.describe({ ...request, ...rebuilt });
  expect(explained.wire === null).toBe(explained.tools === null);
  const added = checkWire(bytes, wire, stage.seen);
  for (const text of new Set(textsIn(JSON.parse(bytes) as JsonValue)))
    if (!attached.has(text) && !names.has(text) && !added.has(text))
      await checkText(text, { prompts, explained, contents: of.contents });

  for (const { cards, notice, content } of explained.messages)
    expect(cards.length > 0 || notice !== null, content).toBe(true);
  for (const card of shownIn(explained)) expect(of.places).toContain(placeOf(card));
  checkMarks(bytes, { explained, contents: of.contents, attached });
}

/** S5. An exception is a preview that reports that the worker will first make room, or remind the agent to do so. */
async function checkPreview(
  stage: SentStage,
  { call, explained }: Explained,
  preview: PackPreview,
): Promise<void> {
  const messages = preview.prompt.messages.map(({ message }) => message);
  const isTooLong = preview.notices.some(({ field }) => field === 'prompt');
  const added = shownIn(explained).filter(
    ({ place, notice }) =>
      (place.kind === 'tape' && place.anchor === AUTO_HANDOFF_ANCHOR) || notice === 'context',
  );
  expect(added).toHaveLength(isTooLong ? 1 : 0);
  if (!isTooLong) expect(await stage.render({ ...call.request, messages }), 'the preview').toBe(call.bytes);
}

/** Checks the calls of turns that have ended. */
export async function checkSent(
  stage: SentStage,
  calls: readonly SentCall[],
  previewed: readonly Previewed[],
): Promise<void> {
  expect(stage.refusals()).toEqual([]);
  const loaded = new Map<string, TurnPrompts>();
  const all: Explained[] = [];
  for (const call of calls) {
    const { turnId, step, attempt } = call.request.turn;
    const wasTriedAgain = calls.some(
      ({ request: { turn } }) => turn.turnId === turnId && turn.step === step && turn.attempt > attempt,
    );
    // All steps are read at once, each with the attempt that counts.
    const choice = wasTriedAgain ? { step, attempt } : { allSteps: true };
    const known = wasTriedAgain ? undefined : loaded.get(turnId);
    const prompts =
      known ??
      (await TurnPrompts.load(stage.h.database.pool, turnId, {
        project: 'default',
        selectors: stage.h.runtime.selectors,
        model: stage.h.runtime.model,
        ...choice,
      }));
    if (!wasTriedAgain) loaded.set(turnId, prompts);
    all.push({ call, prompts, explained: prompts.explain({ step, attempt }) });
  }
  const cards = all.flatMap(({ explained }) => shownIn(explained));
  const contents = await contentsOf(stage, cards);
  const places = await placesInRows(stage, [...new Set(cards.map(({ place }) => place.box_id))]);
  for (const one of all) {
    note(stage.seen, one.explained);
    await checkCall(stage, one, { contents, places });
    const { turnId, step } = one.call.request.turn;
    const preview = previewed.find((shown) => shown.turnId === turnId)?.preview;
    if (preview !== undefined && step === 1) await checkPreview(stage, one, preview);
  }
  const first = new Set(
    calls.filter(({ request }) => request.turn.step === 1).map(({ request }) => request.turn.turnId),
  );
  expect(previewed.filter(({ turnId }) => !first.has(turnId))).toEqual([]);
}
