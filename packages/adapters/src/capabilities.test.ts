import { KernelError } from '@boxcar/kernel';
import { expect, test } from 'vitest';
import { type AdapterCapabilities, CARRIED_KINDS } from './adapter.js';
import { checkCapabilities } from './capabilities.js';
import { everyCard, requestFor, textCard } from './testing/cards.js';

const target = { platform: 'openai', model: 'm' } as const;

const adapterWith = (given: Partial<AdapterCapabilities>) => ({
  capabilities: {
    streaming: true,
    cancel: false,
    messages: false,
    max_context_tokens: null,
    carries: CARRIED_KINDS,
    ...given,
  },
});

function codeOf(work: () => unknown): string {
  try {
    work();
    return 'none';
  } catch (error) {
    return error instanceof KernelError ? error.code : String(error);
  }
}

test('kinds of cards that the platform does not carry are lost with the reason, and the others are kept in order', () => {
  const cards = everyCard();
  const request = requestFor(target, { cards });
  const { cards: kept, lost } = checkCapabilities(adapterWith({ carries: ['text', 'image'] }), request);
  expect(kept.map(({ id }) => id)).toEqual(['text', 'fields', 'image']);
  expect(lost.map(({ card_id, what }) => `${card_id} ${what}`)).toEqual([
    'json json',
    'tool_call tool_call',
    'tool_result tool_result',
    'file file',
    'local_file file',
  ]);
  expect(lost[0]?.why).toBe('the platform does not carry json');
});

test('a file that only this installation can read is lost on every platform', () => {
  const request = requestFor(target, { cards: everyCard() });
  expect(checkCapabilities(adapterWith({}), request).lost).toEqual([
    { card_id: 'local_file', what: 'file', why: expect.stringContaining('http://') },
  ]);
});

test('a request of which no card would remain is refused', () => {
  const cards = everyCard().filter(({ id }) => id === 'json');
  const request = requestFor(target, { cards });
  expect(codeOf(() => checkCapabilities(adapterWith({ carries: ['text'] }), request))).toBe(
    'cards_not_carried',
  );
  expect(checkCapabilities(adapterWith({ carries: ['text'] }), requestFor(target)).cards).toEqual([]);
});

test('of too many cards the newest are kept, up to the smaller limit of platform and target', () => {
  const cards = ['a', 'b', 'c'].map((id) => textCard(id, 'x'.repeat(4_000)));
  for (const [own, entry, kept] of [
    [null, undefined, ['a', 'b', 'c']],
    [2_200, undefined, ['b', 'c']],
    [2_200, 1_200, ['c']],
    [1_200, 2_200, ['c']],
    [null, 2_200, ['b', 'c']],
  ] as const) {
    const limits = entry === undefined ? {} : { max_context_tokens: entry };
    const request = requestFor({ ...target, ...limits }, { cards });
    const carried = checkCapabilities(adapterWith({ max_context_tokens: own }), request);
    expect(carried.cards.map(({ id }) => id)).toEqual(kept);
    expect(carried.lost.map(({ card_id }) => card_id)).toEqual(
      cards.map(({ id }) => id).filter((id) => !(kept as readonly string[]).includes(id)),
    );
  }
});

test('a task that does not fit is refused, and so is a task that leaves no room for a card', () => {
  const small = adapterWith({ max_context_tokens: 100 });
  const long = 'x'.repeat(1_000);
  expect(codeOf(() => checkCapabilities(small, requestFor(target, { task: long })))).toBe('context_overflow');
  expect(codeOf(() => checkCapabilities(small, requestFor(target, { payload: [long] })))).toBe(
    'context_overflow',
  );
  expect(codeOf(() => checkCapabilities(small, requestFor({ ...target, instructions: long })))).toBe(
    'context_overflow',
  );
  expect(codeOf(() => checkCapabilities(small, requestFor(target, { cards: [textCard('a', long)] })))).toBe(
    'context_overflow',
  );
});

test('the capabilities of an adapter for one target apply to that target', () => {
  const adapter = {
    ...adapterWith({}),
    capabilitiesOf: () => adapterWith({ carries: ['text'] }).capabilities,
  };
  const { cards } = checkCapabilities(adapter, requestFor(target, { cards: everyCard() }));
  expect(cards.map(({ id }) => id)).toEqual(['text', 'fields']);
});
