import { type Field, isJsonObject, type JsonValue, type Message, type ModelRequest } from '@boxcar/kernel';
import { createModelRouter } from '@boxcar/llm';
import { TurnPrompts, type WhyAnswer, type WhyPart } from '@boxcar/runtime';
import { expect, test } from 'vitest';
import { registerSurvey, runSurvey } from './index.js';
import { copyFixture, openTestRuntime } from './testing/survey-harness.js';

/** Pseudorandom numbers that are the same in every run (mulberry32). */
function createRandom(seed: number): () => number {
  let state = seed;
  return () => {
    state = (state + 0x6d2b79f5) | 0;
    let mixed = Math.imul(state ^ (state >>> 15), 1 | state);
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed;
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
}

const MAX_PIECE = 48;

/** Pieces from the start, the middle and the end of a text, and one from a random place. */
function piecesOf(text: string, random: () => number): readonly string[] {
  const length = Math.min(text.length, 1 + Math.floor(random() * MAX_PIECE));
  const starts = [0, Math.floor((text.length - length) / 2), text.length - length];
  starts.push(Math.floor(random() * (text.length - length + 1)));
  // Half of a surrogate pair cannot be copied from a text.
  return starts
    .map((start) => text.slice(start, start + length))
    .filter((piece) => piece.trim() !== '' && piece.isWellFormed());
}

/** Every text of a message that a model reads. */
const textsOf = (message: Message): readonly string[] => [
  message.content,
  ...(message.role === 'assistant'
    ? (message.toolCalls ?? []).flatMap((call) => [call.name, call.id, JSON.stringify(call.arguments)])
    : []),
  ...(message.role === 'tool' ? [message.name, message.toolCallId] : []),
];

/** All strings of a value, unchanged and as they appear in its JSON. */
const stringsOf = (value: JsonValue): readonly string[] =>
  typeof value === 'string'
    ? [value]
    : typeof value === 'object' && value !== null
      ? Object.values(value).flatMap(stringsOf)
      : [];
const fieldLines = (fields: readonly Field[]): readonly string[] =>
  fields.map(({ name, type, required, description }) => {
    const line = `- ${name} (${type ?? 'any'}, ${required === false ? 'optional' : 'required'})`;
    return description === undefined ? line : `${line}: ${description}`;
  });

/** The operator has a name; the agents of a survey have none. */
const nameOf = (agentId: string): string =>
  agentId === '00000000-0000-7000-8000-000000000002' ? 'agent:operator' : agentId;

/** The text that a rule adds around the facts of a card, implemented a second time, independently of the view. */
function wordingOf({ rule }: WhyPart, content: JsonValue): string {
  if (!isJsonObject(content)) throw new Error(`the rule ${rule} has no card`);
  switch (rule) {
    case 'parent':
      return isJsonObject(content.data)
        ? `Parent agent: ${nameOf(String(content.data.parent_agent_id))}`
        : '';
    case 'fields':
      return fieldLines(content.fields as unknown as readonly Field[]).join('\n');
    case 'result_fields':
      return 'Result fields:\n\nEnd this task by calling submit_result; its `result` is an object with exactly these fields.';
    default:
      throw new Error(`the survey has no text of the rule ${rule}`);
  }
}

test('every piece of every prompt of the example run has a source', async () => {
  const router = createModelRouter();
  const sent: ModelRequest[] = [];
  await using tree = await copyFixture();
  await using h = await openTestRuntime({
    ...router,
    generate: (request, options) => {
      sent.push(request);
      return router.generate(request, options);
    },
  });
  const { pool } = h.runtime;
  await registerSurvey(h.runtime, { root: tree.root });
  expect(await runSurvey({ runtime: h.runtime, timeoutMs: 25_000 })).toMatchObject({ status: 'success' });

  const { rows: cards } = await pool.query<{ id: string; content: JsonValue }>(
    'select id, content from boxcar.cards',
  );
  const contents = new Map(cards.map(({ id, content }) => [id, content]));
  const ownTexts = new Map(
    cards.map(({ id, content }) => [id, [JSON.stringify(content), ...stringsOf(content)]]),
  );
  const random = createRandom(14);
  const asked = { steps: 0, pieces: 0, rules: new Set<string>() };

  /** Checks that the part names a source that really contains its text. */
  function check(part: WhyPart, request: ModelRequest): void {
    asked.rules.add(part.rule);
    if (part.tool !== null) {
      const tool = request.tools.find(({ name }) => name === part.tool?.name);
      expect([tool?.name, tool?.description, JSON.stringify(tool?.parameters)].join('\n')).toContain(
        part.text,
      );
      return;
    }
    const cardId = part.card?.card_id ?? '';
    const texts = part.is_own ? ownTexts.get(cardId) : [wordingOf(part, contents.get(cardId) ?? null)];
    if (texts?.some((text) => text.includes(part.text)) !== true)
      throw new Error(`${part.rule}: card '${cardId}' does not hold '${part.text}'`);
  }

  async function ask(
    prompts: TurnPrompts,
    request: ModelRequest,
    piece: string,
  ): Promise<WhyAnswer & { outcome: 'found' }> {
    const answer = await prompts.why(piece, { step: request.turn.step });
    if (answer.outcome !== 'found') throw new Error(`no source for '${piece}'`);
    asked.pieces += 1;
    expect(answer).toMatchObject({ match: 'exact', step: request.turn.step, verified: true });
    const texts = answer.places.flatMap(({ parts, text }) => [text, parts.map((part) => part.text).join('')]);
    expect(new Set(texts)).toEqual(new Set([piece]));
    for (const { parts } of answer.places) for (const part of parts) check(part, request);
    return answer;
  }

  const turnIds = new Set(sent.map(({ turn }) => turn.turnId));
  expect(turnIds.size).toBe(5);
  for (const turnId of turnIds) {
    const prompts = await TurnPrompts.load(pool, turnId, { project: 'default', allSteps: true });
    const requests = sent.filter(({ turn }) => turn.turnId === turnId);
    expect(prompts.steps).toEqual(requests.map(({ turn }) => turn.step));
    for (const request of requests) {
      asked.steps += 1;
      const explained = prompts.explain({ step: request.turn.step });
      expect(explained).toMatchObject({ verified: true, findings: [] });
      expect(explained.messages.map(({ content }) => content)).toEqual(
        request.messages.map(({ content }) => content),
      );
      for (const [index, message] of request.messages.entries()) {
        for (const piece of textsOf(message)
          .filter((text) => text !== '')
          .flatMap((text) => piecesOf(text, random))) {
          const { places, place_count } = await ask(prompts, request, piece);
          const messages = places.flatMap(({ parts }) => parts.map((part) => part.message));
          if (place_count === places.length) expect(messages).toContain(index + 1);
        }
      }
      for (const tool of request.tools) {
        const texts = [tool.name, tool.description, JSON.stringify(tool.parameters)];
        for (const piece of texts.flatMap((text) => piecesOf(text, random)))
          await ask(prompts, request, piece);
      }
    }
  }
  expect(asked.steps).toBe(12);
  expect(asked.pieces).toBeGreaterThan(500);
  for (const rule of [
    'instructions',
    'text',
    'parent',
    'fields',
    'result_fields',
    'arguments',
    'result',
    'call_name',
  ])
    expect(asked.rules).toContain(rule);
});
