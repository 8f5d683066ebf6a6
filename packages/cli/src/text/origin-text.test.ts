import type { BoxId, CardId, TurnId } from '@boxcar/kernel';
import type { CardOrigin, CardPlace } from '@boxcar/runtime';
import { expect, test } from 'vitest';
import { describePlace } from './origin-text.js';

type TapePlace = Extract<CardPlace, { kind: 'tape' }>;

const onTape = (place: Partial<TapePlace>): CardOrigin => ({
  card_id: 'c' as CardId,
  hash: 'h',
  type: 'tape.anchor',
  role: 'assistant',
  author: { id: 'a', name: null },
  tokens: 1,
  created_at: new Date(0),
  is_erased: false,
  notice: null,
  place: {
    kind: 'tape',
    box_id: 'b' as BoxId,
    position: 5,
    entry: 'anchor',
    anchor: 'phase-1',
    turn_id: 't' as TurnId,
    is_own_turn: true,
    step: null,
    written_by: 'agent',
    ...place,
  },
});

test.each<[Partial<TapePlace>, string]>([
  [{}, "tape 5: anchor 'phase-1', by the agent itself"],
  [{ is_own_turn: false }, "tape 5: anchor 'phase-1', by the agent itself in turn t"],
  [{ written_by: 'kernel' }, "tape 5: anchor 'phase-1', by the kernel"],
  [{ written_by: 'outside', turn_id: null }, "tape 5: anchor 'phase-1', from outside"],
  [{ entry: 'message', anchor: null, step: 2 }, 'tape 5: message, step 2'],
])('an entry of a tape shows its kind and its author: %j', (place, words) => {
  expect(describePlace(onTape(place))).toBe(words);
});
