import { describe, expect, test } from 'vitest';
import { CardMaker, inherited, OTHER, TestTape } from '../testing/view-rows.js';
import { buildView } from '../view/view.js';
import {
  describeProviderData,
  type ProviderData,
  providerDataBytes,
  readProviderData,
} from './provider-data.js';

const data: ProviderData = {
  v: 1,
  model: 'm:1',
  parts: [
    { kind: 'reasoning', text: 'a secret thought', options: { anthropic: { signature: 'a secret' } } },
    { kind: 'text', length: 5, options: { openai: { itemId: 'a secret' } } },
    { kind: 'call', id: 'a secret' },
  ],
};

describe('the data that a provider attached', () => {
  test('is described by its kinds, size and hash, and by none of its values', () => {
    const facts = describeProviderData(data);
    expect(facts).toEqual({
      model: 'm:1',
      kinds: ['reasoning', 'anthropic.signature', 'openai.itemId', 'call_id'],
      size_bytes: Buffer.byteLength(JSON.stringify(data)),
      hash: expect.stringMatching(/^[0-9a-f]{64}$/),
    });
    expect(JSON.stringify(facts)).not.toContain('secret');
    const other = { ...data, parts: data.parts.slice(1) };
    expect(describeProviderData(other).hash).not.toBe(facts.hash);
  });

  test.each([
    ['nothing', null],
    ['another version', { ...data, v: 2 }],
    ['no model', { v: 1, parts: [] }],
    ['a part of another kind', { ...data, parts: [{ kind: 'image' }] }],
    ['options that are a text', { ...data, parts: [{ kind: 'call', id: 'x', options: 'y' }] }],
  ])('is read from a row, but not when the row has %s', (_name, value) => {
    expect(readProviderData(JSON.parse(JSON.stringify(data)))).toEqual(data);
    expect(readProviderData(value)).toBe(undefined);
  });

  test('counts four bytes a token in the estimate of the prompts that show it', () => {
    const viewFor = (model: string) => {
      const cards = new CardMaker();
      const tape = new TestTape();
      const turnId = tape.begin(1, [{ card: cards.instruction('do'), rule: 'argument' }]);
      const at = { turnId, step: 1 };
      tape.add({ ...cards.thought('I look.'), providerData: { ...data, parts: data.parts.slice(0, 1) } }, at);
      tape.add(cards.text('user', 'go on'), at);
      return buildView(tape.rows({ model }));
    };
    const [with1, without] = [viewFor('m:1'), viewFor('m:2')];
    const shown = with1.messages.flatMap((message) =>
      message.role === 'assistant' ? (message.provider ?? []) : [],
    );
    expect(shown).toHaveLength(1);
    const bytes = providerDataBytes(shown[0]);
    expect(bytes).toBeGreaterThan(80);
    expect(Math.abs(with1.estimateTokens - without.estimateTokens - bytes / 4)).toBeLessThanOrEqual(1);
    expect(without.manifest.omitted).toContainEqual(expect.objectContaining({ reason: 'other_model' }));
  });

  test('is neither shown nor listed as omitted in answers that were packed for another agent: there may be thousands', () => {
    const cards = new CardMaker();
    const tape = new TestTape();
    const steps = Array.from({ length: 50 }, (_step, index) => [
      { ...cards.thought(`I look, ${index}.`), providerData: { ...data, parts: data.parts.slice(0, 1) } },
      cards.call(`call-${index}`, 'look', {}),
      cards.result(`call-${index}`, 'look', 'seen'),
    ]);
    tape.begin(1, [...steps.flat().map(inherited), { card: cards.instruction('do'), rule: 'argument' }]);
    const { manifest, messages } = buildView(tape.rows({ model: 'm:1' }));
    expect(messages.length).toBeGreaterThan(150);
    expect(JSON.stringify(messages)).not.toContain('secret');
    expect(manifest.omitted.filter(({ reason }) => reason === 'other_agent')).toEqual([]);
  });

  const answerOf = (id: string): ProviderData => ({
    ...data,
    parts: [
      { kind: 'reasoning', text: `before ${id}` },
      { kind: 'call', id },
    ],
  });
  const shownWith = (view: ReturnType<typeof buildView>) =>
    view.messages.flatMap((message) =>
      message.role === 'assistant'
        ? [[message.toolCalls?.map(({ id }) => id), message.provider?.parts[0]]]
        : [],
    );

  test('belongs to the first call of an answer without text, and answers of a clone’s source stay separate', () => {
    const cards = new CardMaker();
    const tape = new TestTape();
    const made = ['a', 'b'].map((id) => ({
      ...cards.call(id, 'look', {}),
      providerData: answerOf('call_0'),
    }));
    tape.begin(1, [
      { card: cards.instruction('do'), rule: 'argument' },
      ...made.map((card) => ({ card, rule: 'inherited', native: true }) as const),
    ]);
    const view = buildView(tape.rows({ model: 'm:1', tools: ['look'] }));
    const reasoning = { kind: 'reasoning', text: 'before call_0' };
    expect(shownWith(view)).toEqual([
      [['a'], reasoning],
      [['b'], reasoning],
    ]);
  });

  test('is left out with a reason when the call that holds it is quoted', () => {
    const cards = new CardMaker();
    const tape = new TestTape();
    const own = tape.begin(1, [{ card: cards.instruction('do'), rule: 'argument' }]);
    const attached = (id: string, name: string, authorId?: string) => ({
      ...cards.call(id, name, {}, authorId === undefined ? {} : { authorId }),
      providerData: answerOf('call_0'),
    });
    const foreign = attached('a', 'look', OTHER);
    tape.add(foreign);
    const gone = attached('b', 'gone');
    tape.add(gone, { turnId: own, step: 1 });
    tape.begin(2, [{ card: cards.instruction('go on'), rule: 'argument' }]);
    const view = buildView(tape.rows({ model: 'm:1', tools: ['look'] }));
    expect(shownWith(view)).toEqual([]);
    const reasonOf = (model: string) =>
      buildView(tape.rows({ model, tools: ['look'] })).manifest.omitted.map((range) => range.reason);
    expect(reasonOf('m:1')).toEqual(['other_agent', 'step_split']);
    expect(reasonOf('m:2')).toEqual(['other_agent', 'other_model']);
  });
});
