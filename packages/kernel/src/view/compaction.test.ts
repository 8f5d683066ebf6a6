import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { type AutoHandoffEntry, appendAutoHandoff, draftAutoHandoff } from '../overflow/auto-handoff.js';
import { planCompaction } from '../overflow/compaction-plan.js';
import type { TapeEntry } from '../tape/tape.js';
import { play } from '../testing/view-history.js';
import { historyPlan } from '../testing/view-plan.js';
import { argument, CardMaker, inherited, OTHER, TestTape, testId } from '../testing/view-rows.js';
import { checkMessages } from './check-messages.js';
import type { ViewRows } from './context.js';
import { messageParts } from './parts.js';
import { buildView, type View } from './view.js';

const numRuns = process.env.CI ? 1_000 : 150;

const PROJECT = testId('agent', 99) as unknown as Parameters<typeof draftAutoHandoff>[2]['projectId'];
const ids = { projectId: PROJECT, anchorId: testId('card', 900_001), summaryId: testId('card', 900_002) };
const facts = { error: 'prompt is too long', tokensBefore: 9_000, tokensAfter: 900, limitTokens: 8_000 };

interface Compacted {
  readonly plan: ReturnType<typeof planCompaction>;
  readonly drafts: readonly AutoHandoffEntry[];
  readonly rows: ViewRows;
  readonly view: View;
}

function compact(rows: ViewRows, tokens: number): Compacted {
  const plan = planCompaction(rows, { tokens, summaryId: ids.summaryId });
  const drafts = draftAutoHandoff(plan, facts, { ...ids, step: 3, elapsedMs: 1 });
  const after = appendAutoHandoff(rows, plan, drafts);
  return { plan, drafts, rows: after, view: buildView(after) };
}

/** The beginning of each message. */
const heads = ({ messages }: View): readonly string[] =>
  messages.map((message) => {
    const calls = message.role === 'assistant' ? (message.toolCalls ?? []).map(({ name }) => name) : [];
    return [`${message.role}: ${message.content.slice(0, 40)}`, ...calls].join(' | ');
  });

const cardsIn = (rows: ViewRows): readonly string[] => [
  ...rows.entries.flatMap(({ card }) => card?.id ?? []),
  ...[...rows.contexts.values()].flat().map(({ card }) => card.id),
];

/** A turn of `steps` steps, each with one call and a result of `size` characters. */
function longTurn(steps: number, size: number): { cards: CardMaker; tape: TestTape } {
  const cards = new CardMaker();
  const tape = new TestTape();
  const turnId = tape.begin(1, [argument(cards.instruction('Count the lines.'))]);
  for (let step = 1; step <= steps; step += 1) {
    tape.add(cards.thought(`Look ${step}.`), { turnId, step });
    tape.add(cards.call(`k${step}`, 'read', { file: step }), { turnId, step });
    tape.add(cards.result(`k${step}`, 'read', `${step}`.repeat(size)), { turnId, step });
  }
  return { cards, tape };
}

describe('a compacted prompt', () => {
  test('is the state, the task, the summary of the left-out parts, then the newest steps', () => {
    const { tape } = longTurn(6, 400);
    const { view, plan } = compact(tape.rows(), 330);
    expect(heads(view)).toEqual([
      'system: You work.',
      'user: [context]',
      expect.stringMatching(/^assistant: \[Anchor created: auto_handoff\/context_ov/),
      'user: Count the lines.',
      expect.stringMatching(/^user: \[Summary of 12 earlier cards/),
      'assistant: Look 5. | read',
      expect.stringMatching(/^tool: 5555/),
      'assistant: Look 6. | read',
      expect.stringMatching(/^tool: 6666/),
    ]);
    expect(plan).toMatchObject({ keptSteps: 2, references: [] });
    expect(view.manifest).toMatchObject({ anchor: 22, head: 25 });
    expect(view.firstMessage).toBe(3);
  });

  test('moves a large result out of the prompt and keeps its call', () => {
    const { tape } = longTurn(2, 6_000);
    const { view, plan } = compact(tape.rows(), 1_500);
    expect(plan).toMatchObject({ keptSteps: 2, summarized: [] });
    expect(plan.references).toHaveLength(2);
    const result = view.messages.at(-1);
    expect(result).toMatchObject({ role: 'tool', toolCallId: 'k2', isError: false });
    expect(result?.content).toMatch(
      /^\[tool\.result, about 1500 tokens, left out to make room; expand\(\{"card_id":".*"\}\) reads it\] 2{600}…$/,
    );
    expect(view.origins.at(-1)).toMatchObject({ isReference: true });
    expect(view.manifest.omitted.filter(({ reason }) => reason === 'referenced')).toHaveLength(2);
  });

  test('replaces inherited cards by references, the largest and oldest first, and never the instruction', () => {
    const cards = new CardMaker();
    const tape = new TestTape();
    const sizes = [4_000, 200, 9_000, 4_000];
    const boxed = sizes.map((size) => cards.text('user', 'x'.repeat(size), { authorId: OTHER }));
    tape.begin(1, [argument(cards.instruction('i'.repeat(4_000))), ...boxed.map(inherited)]);
    const { plan, view } = compact(tape.rows(), 4_000);
    expect(plan.references).toEqual([boxed[2]?.id, boxed[0]?.id]);
    expect(heads(view).slice(-4)).toEqual([
      expect.stringMatching(/^user: \[note, about 2250 tokens/),
      `user: ${'x'.repeat(40)}`,
      `user: ${'i'.repeat(40)}`,
      expect.stringMatching(/^user: \[The conversation before this/),
    ]);
    expect(compact(tape.rows(), 10).plan.references).not.toContain(testId('card', 5));
  });

  test('replaces every kind of inherited card by a reference, also thoughts, calls and instructions of others', () => {
    const cards = new CardMaker();
    const tape = new TestTape();
    const long = 'x'.repeat(4_000);
    const boxed = [
      cards.thought(long, { authorId: OTHER }),
      cards.call('f1', 'write', { text: long }, { authorId: OTHER }),
      cards.instruction(long, { authorId: OTHER }),
    ];
    tape.begin(1, [argument(cards.instruction('Go on.')), ...boxed.map(inherited)]);
    const { plan, view } = compact(tape.rows(), 1_000);
    expect(new Set(plan.references)).toEqual(new Set(boxed.map(({ id }) => id)));
    expect(checkMessages(view.messages, [])).toEqual([]);
    expect(view.instruction).toBe('Go on.');
  });

  test('leaves out even references when they are too many, the oldest first, and links them by the summary', () => {
    const cards = new CardMaker();
    const tape = new TestTape();
    const boxed = Array.from({ length: 2_000 }, (_, index) =>
      cards.text('user', `${index} `.repeat(20), { authorId: OTHER }),
    );
    tape.begin(1, [argument(cards.instruction('Go on.')), ...boxed.map(inherited)]);
    const { plan, view } = compact(tape.rows(), 4_000);
    expect(view.estimateTokens).toBeLessThan(4_500);
    const count = plan.leftOut.length;
    expect(count).toBeGreaterThan(1_000);
    expect(plan.leftOut).toEqual(boxed.slice(0, count).map(({ id }) => id));
    expect(plan.summarized).toEqual(plan.leftOut);
    expect(view.manifest.omitted).toMatchObject([
      { kind: 'context', from: expect.any(Number), to: expect.any(Number), reason: 'summarized' },
    ]);
    const words = view.messages.map(({ content }) => content);
    expect(words.at(-2)).toBe('Go on.');
    expect(words.at(-1)).toMatch(/^\[Summary of \d+ earlier cards/);
    expect(words).toContain('1999 '.repeat(20));
  });

  test('leaves out a call of a clone’s source together with its result', () => {
    const cards = new CardMaker();
    const tape = new TestTape();
    const boxed = Array.from({ length: 60 }, (_, index) => [
      cards.thought(`Look ${index}.`),
      cards.call(`n${index}`, 'read', { file: 'x'.repeat(300) }),
      cards.result(`n${index}`, 'read', 'y'.repeat(300)),
    ]).flat();
    const native = boxed.map((card) => ({ ...inherited(card), native: true as const }));
    tape.begin(1, [argument(cards.instruction('Go on.')), ...native]);
    const { plan, view } = compact(tape.rows(), 3_000);
    expect(plan.leftOut.length).toBeGreaterThan(60);
    expect(plan.leftOut.length).toBeLessThan(180);
    expect(JSON.stringify(view.messages)).not.toContain('not_available');
    expect(checkMessages(view.messages, [])).toEqual([]);
  });

  test('shows the next turn the context that it gets again, though the previous turn had left it out', () => {
    const cards = new CardMaker();
    const tape = new TestTape();
    const long = cards.text('user', 'x'.repeat(9_000), { authorId: OTHER });
    tape.begin(1, [argument(cards.instruction('First.')), inherited(long)]);
    const first = compact(tape.rows(), 1_000);
    expect(first.plan.references).toEqual([long.id]);
    for (const draft of first.drafts)
      if (draft.kind === 'anchor') tape.anchor(draft.anchorName, draft.card, { turnId: testId('turn', 1) });
    tape.begin(2, [argument(cards.instruction('Again.')), inherited(long)]);
    expect(heads(buildView(tape.rows()))).toContain(`user: ${'x'.repeat(40)}`);
  });

  test('keeps its beginning unchanged while the turn continues', () => {
    const { cards, tape } = longTurn(6, 400);
    const { rows, view } = compact(tape.rows(), 330);
    const position = rows.entries.at(-1)?.position ?? 0;
    const more = { payload: null, anchorName: null, turnId: testId('turn', 1), step: 7 };
    const written: TapeEntry[] = [
      { ...more, position: position + 1, kind: 'tool_call', card: cards.call('k7', 'list', {}) },
      { ...more, position: position + 2, kind: 'tool_result', card: cards.result('k7', 'list', 'a') },
    ];
    const next = buildView({ ...rows, entries: [...rows.entries, ...written] });
    expect(next.messages.slice(0, view.messages.length)).toEqual(view.messages);
    expect(next.messages.length).toBe(view.messages.length + 2);
  });

  test('links everything that it left out by one summary, including the summary of an earlier turn', () => {
    const { tape, cards } = longTurn(3, 800);
    const first = compact(tape.rows(), 400);
    for (const draft of first.drafts) {
      if (draft.kind === 'anchor') tape.anchor(draft.anchorName, draft.card);
      else if (draft.kind === 'message') tape.add(draft.card);
    }
    const turnId = tape.begin(2, [argument(cards.instruction('And now?'))]);
    const { messages } = buildView(tape.rows());
    expect(messages.map(({ content }) => content).join('\n')).toContain(
      '\n- the task was: "Count the lines."',
    );
    tape.add(cards.thought('w'.repeat(4_000)), { turnId, step: 1 });
    const second = compact(tape.rows(), 300);
    expect(second.plan.summarized).toContain(ids.summaryId);
    expect(heads(second.view)).toContain('user: And now?');
  });

  describe('keeps the task’s words for later turns', () => {
    const RULE = 'Use metric units in ALL answers.';

    /** Plays a turn that overflows with this instruction, and compacts it. Returns the plan of the compaction. */
    function overflow(
      tape: TestTape,
      cards: CardMaker,
      turn: number,
      instruction: string,
      write: () => void,
    ) {
      tape.begin(turn, [argument(cards.instruction(instruction))]);
      write();
      const { plan, drafts } = compact(tape.rows(), 900);
      for (const draft of drafts) {
        if (draft.kind === 'anchor')
          tape.anchor(draft.anchorName, draft.card, { turnId: testId('turn', turn) });
        else if (draft.kind === 'message') tape.add(draft.card, { turnId: testId('turn', turn) });
      }
      return plan;
    }
    const textOf = (tape: TestTape): string =>
      buildView(tape.rows())
        .messages.map(({ content }) => content)
        .join('\n');

    test('also when only large results became references', () => {
      const [cards, tape] = [new CardMaker(), new TestTape()];
      const plan = overflow(tape, cards, 1, RULE, () => {
        const at = { turnId: testId('turn', 1), step: 1 };
        tape.add(cards.call('k1', 'list', {}), at);
        tape.add(cards.result('k1', 'list', 'x'.repeat(9_000)), at);
      });
      expect([plan.summarized, plan.references.length]).toEqual([[], 1]);
      tape.begin(2, [argument(cards.instruction('And now?'))]);
      expect(textOf(tape)).toContain(`\n- the task was: "${RULE}"`);
    });

    test('also the words of earlier turns, through any number of compactions', () => {
      const [cards, tape] = [new CardMaker(), new TestTape()];
      const fill = (turn: number) => () => {
        for (let step = 1; step < 30; step += 1)
          tape.add(cards.thought('w'.repeat(400)), { turnId: testId('turn', turn), step });
      };
      tape.begin(1, [argument(cards.instruction(RULE))]);
      tape.add(cards.thought('Noted.'), { turnId: testId('turn', 1), step: 1 });
      for (const turn of [2, 3, 4])
        overflow(tape, cards, turn, `Count the lines of file ${turn}.`, fill(turn));
      tape.begin(5, [argument(cards.instruction('And now?'))]);
      expect(textOf(tape).match(/^- (the|an earlier) task was: .*/gm)).toEqual([
        `- an earlier task was: "${RULE}"`,
        '- an earlier task was: "Count the lines of file 2."',
        '- an earlier task was: "Count the lines of file 3."',
        '- the task was: "Count the lines of file 4."',
      ]);
    });
  });
});

describe('any prompt of any history, compacted to any size,', () => {
  function forEvery(check: (before: ViewRows, compacted: Compacted) => void): void {
    fc.assert(
      fc.property(historyPlan, fc.integer({ min: 1, max: 400 }), (history, tokens) => {
        const rows = play(history).prompts.at(-1);
        if (rows !== undefined) check(rows, compact(rows, tokens));
      }),
      { numRuns },
    );
  }

  test('is accepted by every provider, and shows the instruction unchanged', () => {
    forEvery((before, { view }) => {
      expect(checkMessages(view.messages, [])).toEqual([]);
      expect(view.instruction).toEqual(buildView(before).instruction);
    });
  });

  test('shows every card, or a reference to it, or links it by the summary', () => {
    forEvery((before, { plan, rows, view }) => {
      const linked = new Set<string>([...plan.summarized, ...view.origins.flatMap(({ cardIds }) => cardIds)]);
      const shown = buildView(before).origins.flatMap(({ cardIds }) => cardIds);
      // A card in reach that is not shown has its reason in the manifest.
      const reach = new Set(cardsIn(rows));
      expect(shown.filter((id) => !linked.has(id) && !reach.has(id))).toEqual([]);
    });
  });

  test('names for every word the rule by which it is included', () => {
    forEvery((_before, { rows, view }) => {
      const cards = new Map(
        [...rows.entries, ...[...rows.contexts.values()].flat()].flatMap(({ card }) =>
          card === null ? [] : [[card.id, card] as const],
        ),
      );
      for (const [index, message] of view.messages.entries()) {
        const origin = view.origins[index];
        if (origin === undefined) throw new Error(`message ${index} has no origin`);
        const own = origin.cardIds.flatMap((id) => cards.get(id) ?? []);
        const parts = messageParts(message, origin, own).filter(({ field }) => field.kind === 'content');
        expect(parts.map(({ text }) => text).join('')).toBe(message.content);
        if (origin.isReference)
          expect(parts.map(({ rule, isOwn }) => [rule, isOwn])).toEqual([['reference', false]]);
      }
    });
  });

  test('never separates a call from its result', () => {
    const callIdsOf = (rows: ViewRows): readonly string[] =>
      [...rows.entries, ...[...rows.contexts.values()].flat()].flatMap(({ card }) =>
        card?.content.kind === 'tool_call' ? [card.content.tool_call_id] : [],
      );
    const unanswered = ({ messages }: View): readonly string[] =>
      messages.flatMap((message) =>
        message.role === 'tool' && message.content.includes('"not_available"') ? [message.toolCallId] : [],
      );
    forEvery((before, { view }) => {
      const calls = callIdsOf(before);
      // If two calls have the same id, the first may be left out. The other call then shows that its own result is
      // hidden.
      const isRepeated = (id: string): boolean => calls.indexOf(id) !== calls.lastIndexOf(id);
      const was = new Set(unanswered(buildView(before)));
      expect(unanswered(view).filter((id) => !was.has(id) && !isRepeated(id))).toEqual([]);
    });
  });
});
