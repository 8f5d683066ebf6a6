import { describe, expect, test } from 'vitest';
import { canonicalJson, type JsonValue, sha256 } from '../base/json.js';
import { CardMaker, TestTape, testId } from '../testing/view-rows.js';
import { type EarlierRange, foldManifest } from './manifest.js';
import { buildView, type View } from './view.js';

/**
 * The view of the last prompt of a conversation. Each turn inherits the same card, so that all turns but the first omit
 * it.
 */
function converse(
  turns: number,
  options: { readonly words?: string; readonly anchorAt?: number } = {},
): View {
  const cards = new CardMaker();
  const tape = new TestTape();
  const shared = cards.text('user', 'shared');
  for (let turn = 1; turn <= turns; turn += 1) {
    if (turn === options.anchorAt) tape.anchor('pause', cards.anchor({ so: 'far' }));
    const turnId = tape.begin(turn, [
      { card: cards.instruction(options.words ?? 'Go on.'), rule: 'argument' },
      { card: shared, rule: 'inherited' },
    ]);
    if (turn < turns) tape.add(cards.text('assistant', 'Yes.'), { turnId, step: 1 });
  }
  return buildView(tape.rows());
}

const earlierIn = (view: View): EarlierRange => {
  const found = foldManifest(view).messages.find(({ kind }) => kind === 'earlier');
  if (found?.kind !== 'earlier') throw new Error('nothing was folded');
  return found;
};

describe('the manifest of a long conversation', () => {
  test('has one line for all earlier turns, without losing anything', () => {
    const view = converse(20);
    const folded = foldManifest(view);
    const box = { kind: 'context', boxId: testId('box', 20) };
    expect(folded).toMatchObject({
      v: 2,
      head: view.manifest.head,
      messages: [
        { kind: 'profile', first: 0, count: 1 },
        { kind: 'earlier', from: 1, to: view.manifest.head - 1, first: 1, count: 39 },
        { ...box, rule: 'argument', first: 40, count: 1 },
      ],
      omitted: [{ ...box, rule: 'inherited', reason: 'duplicate' }],
    });
    const { lines, omitted, hash } = earlierIn(view);
    const full = {
      messages: view.manifest.messages.slice(1, 1 + lines),
      omitted: view.manifest.omitted.slice(0, omitted),
    };
    expect(lines + omitted).toBe(view.manifest.messages.length + view.manifest.omitted.length - 3);
    expect(hash).toBe(sha256(canonicalJson(full as unknown as JsonValue)));
  });

  test('is as long after 100 turns as after 20', () => {
    const sizes = [20, 100].map((turns) => JSON.stringify(foldManifest(converse(turns))).length);
    expect(Math.abs((sizes[1] ?? 0) - (sizes[0] ?? 0))).toBeLessThan(20);
  });

  test('changes its hash for other sources, and only for other sources', () => {
    expect(earlierIn(converse(20, { words: 'Again.' }))).toEqual(earlierIn(converse(20)));
    const view = converse(20);
    const [, first, ...rest] = view.manifest.messages;
    if (first?.kind !== 'context') throw new Error('no context');
    const other = { ...first, rule: 'parent' as const };
    const changed = {
      ...view,
      manifest: { ...view.manifest, messages: [...view.manifest.messages.slice(0, 1), other, ...rest] },
    };
    expect(earlierIn(changed).hash).not.toBe(earlierIn(view).hash);
  });

  test('is stored unchanged while it is short, and when the turn began before the last anchor', () => {
    const short = converse(4);
    expect(foldManifest(short)).toBe(short.manifest);
    const anchored = converse(20, { anchorAt: 19 });
    expect(foldManifest(anchored)).toBe(anchored.manifest);
  });
});
