import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { type AutoHandoffEntry, appendAutoHandoff, draftAutoHandoff } from './auto-handoff.js';
import type { CardContent } from './card.js';
import { checkMessages } from './check-messages.js';
import { planCompaction } from './compaction-plan.js';
import type { TapeEntry } from './tape.js';
import { play } from './testing/view-history.js';
import { historyPlan } from './testing/view-plan.js';
import { argument, CardMaker, inherited, OTHER, TestTape, testId } from './testing/view-rows.js';
import { buildView, type View, type ViewRows } from './view.js';
import { messageParts } from './view-parts.js';

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

/** Each message in few words. */
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
  test('is the state, the task, the summary of what is left out, then the newest steps', () => {
    const { tape } = longTurn(6, 400);
    const { view, plan } = compact(tape.rows(), 330);
    expect(heads(view)).toEqual([
      'system: You work.',
      expect.stringMatching(/^user: \[Anchor auto_handoff\/context_overflow\]/),
      'user: Count the lines.',
      expect.stringMatching(/^user: \[Summary of 12 earlier cards/),
      'assistant: Look 5. | read',
      expect.stringMatching(/^tool: 5555/),
      'assistant: Look 6. | read',
      expect.stringMatching(/^tool: 6666/),
    ]);
    expect(plan).toMatchObject({ keptSteps: 2, references: [] });
    expect(view.manifest).toMatchObject({ anchor: 22, head: 25 });
    expect(view.firstMessage).toBe(2);
  });

  test('spills a large result and keeps its call', () => {
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

  test('refers to inherited cards, the largest and oldest first, and never to the instruction', () => {
    const cards = new CardMaker();
    const tape = new TestTape();
    const sizes = [4_000, 200, 9_000, 4_000];
    const boxed = sizes.map((size) => cards.text('user', 'x'.repeat(size), { authorId: OTHER }));
    tape.begin(1, [argument(cards.instruction('i'.repeat(4_000))), ...boxed.map(inherited)]);
    const { plan, view } = compact(tape.rows(), 4_000);
    expect(plan.references).toEqual([boxed[2]?.id, boxed[0]?.id]);
    expect(heads(view).slice(-3)).toEqual([
      expect.stringMatching(/^user: \[note, about 2250 tokens/),
      `user: ${'x'.repeat(40)}`,
      `user: ${'i'.repeat(40)}`,
    ]);
    expect(compact(tape.rows(), 10).plan.references).not.toContain(testId('card', 5));
  });

  test('stays as it is at its beginning while the turn goes on', () => {
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

  test('links what it left out by one summary, that of an earlier turn included', () => {
    const { tape, cards } = longTurn(3, 800);
    const first = compact(tape.rows(), 400);
    for (const draft of first.drafts) {
      if (draft.kind === 'anchor') tape.anchor(draft.anchorName, draft.card);
      else if (draft.kind === 'message') tape.add(draft.card);
    }
    const turnId = tape.begin(2, [argument(cards.instruction('And now?'))]);
    tape.add(cards.thought('w'.repeat(4_000)), { turnId, step: 1 });
    const second = compact(tape.rows(), 300);
    expect(second.plan.summarized).toContain(ids.summaryId);
    expect(heads(second.view)).toContain('user: And now?');
  });
});

describe('any prompt of any history, compacted to any size', () => {
  function forEvery(check: (before: ViewRows, compacted: Compacted) => void): void {
    fc.assert(
      fc.property(historyPlan, fc.integer({ min: 1, max: 400 }), (history, tokens) => {
        const rows = play(history).prompts.at(-1);
        if (rows !== undefined) check(rows, compact(rows, tokens));
      }),
      { numRuns },
    );
  }

  test('is taken by every provider, and shows the instruction as it was', () => {
    forEvery((before, { view }) => {
      expect(checkMessages(view.messages, [])).toEqual([]);
      expect(view.instruction).toEqual(buildView(before).instruction);
    });
  });

  test('shows every card, or a reference to it, or links it by the summary', () => {
    forEvery((before, { plan, rows, view }) => {
      const linked = new Set<string>([...plan.summarized, ...view.origins.flatMap(({ cardIds }) => cardIds)]);
      const shown = buildView(before).origins.flatMap(({ cardIds }) => cardIds);
      // What is in reach and not shown has its reason in the manifest.
      const reach = new Set(cardsIn(rows));
      expect(shown.filter((id) => !linked.has(id) && !reach.has(id))).toEqual([]);
    });
  });

  test('says of every word by which rule it stands there', () => {
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

  /** Calls that are not one pair, whatever is left out: without a result in the box that holds them, or of an id that others have too. */
  function unpaired({ entries, contexts }: ViewRows): ReadonlySet<string> {
    const tape = entries.flatMap(({ card }) => card?.content ?? []);
    const places = [tape, ...[...contexts.values()].map((cards) => cards.map(({ card }) => card.content))];
    const counts = new Map<string, number>();
    for (const of of places.flat())
      if (of.kind === 'tool_call' || of.kind === 'tool_result')
        counts.set(of.tool_call_id, (counts.get(of.tool_call_id) ?? 0) + 1);
    const isPair = (place: readonly CardContent[], id: string): boolean =>
      counts.get(id) === 2 && place.some((of) => of.kind === 'tool_result' && of.tool_call_id === id);
    return new Set(
      places.flatMap((place) =>
        place.flatMap((of) =>
          of.kind === 'tool_call' && !isPair(place, of.tool_call_id) ? [of.tool_call_id] : [],
        ),
      ),
    );
  }

  test('parts no call from its result', () => {
    const unanswered = ({ messages }: View): readonly string[] =>
      messages.flatMap((message) =>
        message.role === 'tool' && message.content.includes('"not_available"') ? [message.toolCallId] : [],
      );
    let pairs = 0;
    forEvery((before, { view }) => {
      const exempt = new Set([...unanswered(buildView(before)), ...unpaired(before)]);
      expect(unanswered(view).filter((id) => !exempt.has(id))).toEqual([]);
      pairs += view.messages.filter(({ role }) => role === 'tool').length;
    });
    expect(pairs).toBeGreaterThan(numRuns / 10);
  });
});
