// There are millions of checks, and vitest's `expect` would cost more than the views themselves.
import assert from 'node:assert/strict';
import fc from 'fast-check';
import { test } from 'vitest';
import type { Card } from '../card/card.js';
import type { Message, ToolSchema } from '../card/message.js';
import { isBlank } from '../render/render.js';
import type { TapeEntry } from '../tape/tape.js';
import { type History, OUTSIDE_STEP, play, READER_MODEL } from '../testing/view-history.js';
import { historyPlan } from '../testing/view-plan.js';
import { checkMessages } from './check-messages.js';
import type { ViewRows } from './context.js';
import type { OmissionReason, ViewSource } from './manifest.js';
import { promptHash } from './prompt-hash.js';
import { buildView, type View } from './view.js';

/** Histories for each property; every history gives a prompt for each of its moments. */
const numRuns = process.env.CI ? 500 : 200;

const NOTICES = [
  '[context]',
  '[continue]',
  'Two steps are left for this task. Prepare your answer.',
  'This is the last step. Call submit_result now.',
  'This is the last step. Give your answer now, without calling tools.',
  '{"error":{"code":"not_available","message":"The result of this call is not available."}}',
];

const tools: readonly ToolSchema[] = ['list', 'read', 'tape.handoff', 'submit_result'].map((name) => ({
  name,
  description: name,
  parameters: { type: 'object' },
}));

const texts = (messages: readonly Message[]): readonly string[] =>
  messages.map((message) => JSON.stringify(message));

/** Runs `check` on every prompt of many histories. */
function forEveryPrompt(check: (rows: ViewRows, view: View, history: History) => void): void {
  fc.assert(
    fc.property(historyPlan, (plan) => {
      const history = play(plan);
      for (const rows of history.prompts) check(rows, buildView(rows), history);
    }),
    { numRuns },
  );
}

/** Every card that could enter, once for each of its places: entries, and contexts that begin after the anchor. */
function cardsInReach({ turn, entries, lastAnchorPosition, contexts }: ViewRows): readonly Card[] {
  const boxes = new Set([turn.contextBoxId]);
  for (const { kind, position, payload } of entries) {
    if (kind !== 'event' || position <= lastAnchorPosition) continue;
    for (const boxId of contexts.keys()) if (JSON.stringify(payload).includes(boxId)) boxes.add(boxId);
  }
  const fromContexts = [...boxes].flatMap((boxId) => (contexts.get(boxId) ?? []).map(({ card }) => card));
  return [...entries.flatMap(({ card }) => (card === null ? [] : [card])), ...fromContexts];
}

/** Reasons for which a card is shown without its provider's attachment. */
const ATTACHED: ReadonlySet<string> = new Set<OmissionReason>(['other_agent', 'other_model', 'step_split']);

const isHidden = (card: Card): boolean => card.metadata.context === false;
const shownOf = (view: View): readonly string[] => view.origins.flatMap(({ cardIds }) => cardIds);

test('every prompt of every history is accepted by OpenAI and Anthropic', { timeout: 300_000 }, () => {
  forEveryPrompt((_rows, view) => {
    assert.deepEqual(checkMessages(view.messages, tools), []);
  });
});

test('the same rows give the same bytes, and the rows stay unchanged', { timeout: 300_000 }, () => {
  forEveryPrompt((rows, view) => {
    const copy = structuredClone(rows);
    const again = buildView(copy);
    assert.equal(JSON.stringify(again), JSON.stringify(view));
    assert.equal(promptHash(again.messages, tools), promptHash(view.messages, tools));
    assert.deepEqual(copy, rows);
  });
});

test('a prompt is a prefix of the next one until an anchor is written', { timeout: 300_000 }, () => {
  fc.assert(
    fc.property(historyPlan, (plan) => {
      const { prompts } = play(plan);
      for (const [index, rows] of prompts.entries()) {
        const next = prompts[index + 1];
        if (next === undefined || next.lastAnchorPosition !== rows.lastAnchorPosition) continue;
        const [before, after] = [texts(buildView(rows).messages), texts(buildView(next).messages)];
        assert.deepEqual(after.slice(0, before.length), before);
        assert.equal(buildView(next).firstMessage, buildView(rows).firstMessage);
      }
    }),
    { numRuns },
  );
});

test('a prompt contains only cards of the rows and fixed texts, and no card twice', {
  timeout: 300_000,
}, () => {
  forEveryPrompt((rows, view, { marks }) => {
    const reach = cardsInReach(rows);
    const visible = new Set<string>(reach.filter((card) => !isHidden(card)).map(({ id }) => id));
    const shown = shownOf(view);
    assert.equal(new Set(shown).size, shown.length);
    assert.deepEqual(
      shown.filter((id) => !visible.has(id)),
      [],
    );
    for (const [index, { source, cardIds }] of view.origins.entries()) {
      const message = view.messages[index];
      if (message === undefined) throw new Error(`no message ${index}`);
      if (source.kind === 'profile')
        assert.deepEqual(message, { role: 'system', content: rows.profile.instructions });
      else if (source.kind === 'notice')
        assert.ok(
          NOTICES.some((notice) => notice === message.content),
          `not a notice: ${JSON.stringify(message)}`,
        );
      else assert.notEqual(cardIds.length, 0);
      const said = new Set(JSON.stringify(message).match(/§\d+§/g) ?? []);
      const due = new Set(cardIds.flatMap((id) => marks.get(id) ?? []));
      assert.deepEqual(said, due);
    }
  });
});

test('every card is shown or left out for a reason that is true; no visible result is lost', {
  timeout: 300_000,
}, () => {
  forEveryPrompt((rows, view) => {
    const reach = cardsInReach(rows);
    const shown = new Set(shownOf(view));
    const omitted = view.manifest.omitted
      .filter(({ reason }) => !ATTACHED.has(reason))
      .flatMap((range) => ('to' in range ? range.to - range.from + 1 : 0));
    assert.equal(
      omitted.reduce((sum, count) => sum + count, shown.size),
      reach.length,
    );

    let first = 0;
    for (const range of view.manifest.messages) {
      assert.equal(range.first, first);
      first += range.count;
      for (const { source } of view.origins.slice(range.first, first)) {
        for (const [key, value] of Object.entries(listOf(range)))
          assert.deepEqual(Reflect.get(source, key), value);
        if ('to' in source && 'to' in range) assert.ok(range.from <= source.from && source.to <= range.to);
      }
    }
    assert.equal(first, view.messages.length);

    if (hasRepeatedCallIds(rows)) return;
    for (const entry of rows.entries) {
      if (entry.card === null || isHidden(entry.card) || shown.has(entry.card.id)) continue;
      const calls = reach.filter((other) => isCallOf(other, entry.card));
      const isTooOld = entry.position <= rows.lastAnchorPosition && !isCutStep(rows, entry);
      const isExcused = isTooOld || calls.some(isHidden) || new Set(calls.map(({ id }) => id)).size > 1;
      if (isExcused) continue;
      // V3, W1: an omitted card is blank, repeats earlier text, or is a result whose call is not shown before it.
      const { content, type } = entry.card;
      const hasCall = view.origins.some(
        ({ source, cardIds }) =>
          source.kind === 'tape' &&
          source.from < entry.position &&
          calls.some(({ id }) => cardIds.includes(id)),
      );
      if (content.kind === 'tool_result') assert.equal(hasCall, false);
      else if (type === 'agent.thought') assert.ok(content.kind === 'text' && isBlank(content.text));
      else assert.equal(type, 'task.deliverable');
    }
  });
});

test('a provider’s attached data is shown to its own model with all calls of the answer, or the manifest gives the reason', {
  timeout: 300_000,
}, () => {
  forEveryPrompt((rows, view) => {
    const byId = new Map(cardsInReach(rows).map((card) => [card.id, card]));
    const counts = { shown: 0, noted: 0, given: 0 };
    for (const [index, { cardIds, source }] of view.origins.entries()) {
      const message = view.messages[index];
      const [data] = cardIds.flatMap((id) => byId.get(id)?.providerData ?? []);
      const { provider, toolCalls = [] } = message?.role === 'assistant' ? message : {};
      // If a box has a card twice, the first place counts and decides whether the card is native.
      const isPacked =
        source.kind === 'context' && rows.contexts.get(source.boxId)?.[source.from - 1]?.native !== true;
      if (isPacked) {
        assert.equal(provider, undefined);
        continue;
      }
      if (data !== undefined) counts.given += 1;
      if (provider === undefined) continue;
      counts.shown += 1;
      assert.equal(provider, data);
      assert.equal(provider.model, READER_MODEL);
      assert.equal(provider.parts.filter(({ kind }) => kind === 'call').length, toolCalls.length);
    }
    for (const range of view.manifest.omitted)
      if (ATTACHED.has(range.reason) && 'to' in range) counts.noted += range.to - range.from + 1;
    assert.equal(counts.shown + counts.noted, counts.given);
  });
});

/** True for the thought, calls and results of a step of this turn that continues after the anchor. */
function isCutStep(
  { turn, entries, lastAnchorPosition }: ViewRows,
  { card, turnId, step }: TapeEntry,
): boolean {
  const isStep =
    card?.type === 'agent.thought' ||
    card?.content.kind === 'tool_call' ||
    card?.content.kind === 'tool_result';
  const reaches = (other: TapeEntry): boolean =>
    other.turnId === turnId &&
    other.step === step &&
    other.position > lastAnchorPosition &&
    other.kind === 'tool_result';
  return isStep && turnId === turn.turnId && step !== null && step < OUTSIDE_STEP && entries.some(reaches);
}

/** A source without its positions. */
function listOf(source: ViewSource): Partial<ViewSource> {
  if (source.kind !== 'context') return { kind: source.kind };
  return { kind: source.kind, boxId: source.boxId, rule: source.rule };
}

/**
 * Kernel ids never repeat. The properties above hold for repeated ids too, but then results with the same id cannot be
 * distinguished.
 */
function hasRepeatedCallIds({ entries }: ViewRows): boolean {
  const ids = entries.flatMap(({ card }) =>
    card?.content.kind === 'tool_call' ? [card.content.tool_call_id] : [],
  );
  return new Set(ids).size < ids.length;
}

function isCallOf(call: Card | null, result: Card | null): boolean {
  return (
    call?.content.kind === 'tool_call' &&
    result?.content.kind === 'tool_result' &&
    call.content.tool_call_id === result.content.tool_call_id
  );
}
