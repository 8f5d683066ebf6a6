import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { type Harness, harness } from '../testing/harness.js';
import type { EntryInput } from './entry-input.js';
import type { Tape } from './tape.js';

let h: Harness;
let n = 0;
const fresh = (): string => `tape-${++n}`;

beforeAll(async () => {
  h = await harness();
  await h.profile('writer', [{ say: 'done' }]);
});

afterAll(() => h[Symbol.asyncDispose]());

const messages = (...texts: string[]): EntryInput[] => texts.map((content) => ({ kind: 'message', content }));
/** An agent without a turn. */
const idle = async (): Promise<string> => {
  const made = await h.runtime.submit('provision_agent', { action: 'create', profile_name: 'writer' });
  return (made as { agent_id: string }).agent_id;
};

test('an append at an outdated head changes nothing and returns the real head', async () => {
  const tape = await h.runtime.tape(fresh());
  await tape.append([{ kind: 'message', content: 'one' }], { expectedHead: 2 });
  await expect(tape.append([{ kind: 'message', content: 'two' }], { expectedHead: 2 })).rejects.toMatchObject(
    {
      code: 'tape_conflict',
      details: { head: 3 },
    },
  );
  expect((await tape.info()).entries).toBe(3);
});

test('an append with a key is made once, whichever request is first', async () => {
  const tape = await h.runtime.tape(fresh());
  const answers = await Promise.all(
    Array.from({ length: 4 }, () =>
      tape.append(
        [
          { kind: 'message', content: 'x' },
          { kind: 'event', name: 'e' },
        ],
        { dedupKey: 'k' },
      ),
    ),
  );
  expect(answers.map(({ first, last }) => [first, last])).toEqual([
    [3, 4],
    [3, 4],
    [3, 4],
    [3, 4],
  ]);
  expect(answers.filter(({ isRepeated }) => !isRepeated)).toHaveLength(1);
});

test('four writers of 25 appends each leave 100 consecutive positions', async () => {
  const tape = await h.runtime.tape(fresh());
  const handles = await Promise.all(Array.from({ length: 4 }, () => h.runtime.tape({ box: tape.boxId })));
  const firsts = await Promise.all(
    handles.map(async (handle, writer) => {
      const mine: number[] = [];
      for (let i = 0; i < 25; i += 1)
        mine.push((await handle.append([{ kind: 'message', content: `${writer}.${i}` }])).first);
      return mine;
    }),
  );
  for (const mine of firsts) expect(mine).toEqual(mine.toSorted((a, b) => a - b));
  expect(firsts.flat().toSorted((a, b) => a - b)).toEqual(Array.from({ length: 100 }, (_, i) => i + 3));
  expect((await tape.info()).entries).toBe(102);
});

describe('a key', () => {
  test('that was used for other entries is refused, and nothing is appended', async () => {
    const tape = await h.runtime.tape(fresh());
    const [one, two] = messages('one', 'two');
    if (one === undefined || two === undefined) throw new Error('no messages');
    const first = await tape.append([one, two], { dedupKey: 'k' });
    await tape.append(messages('three'));
    const others: EntryInput[][] = [
      [one],
      [one, { ...two, content: 'other' } as EntryInput],
      [one, two, ...messages('three')],
      [one, { ...two, role: 'assistant' } as EntryInput],
      [{ kind: 'event', name: 'one' }, two],
    ];
    for (const entries of others)
      await expect(tape.append(entries, { dedupKey: 'k' })).rejects.toMatchObject({
        code: 'idempotency_conflict',
        details: { position: 3 },
      });
    await expect(tape.handoff('phase', { dedupKey: 'k' })).rejects.toMatchObject({
      code: 'idempotency_conflict',
    });
    expect(await tape.append([one, two], { dedupKey: 'k' })).toEqual({ ...first, isRepeated: true });
    expect((await tape.info()).entries).toBe(5);
  });

  test('returns the first answer for a handoff, to several callers at once, whatever was written since and wherever the head is', async () => {
    const tape = await h.runtime.tape(fresh());
    const options = { state: { summary: 'done' }, dedupKey: 'k', expectedHead: 2 };
    const answers = await Promise.all(Array.from({ length: 4 }, () => tape.handoff('phase', options)));
    for (const answer of answers) expect(answer).toMatchObject({ anchor: 3, event: 4 });
    expect(answers.filter(({ isRepeated }) => !isRepeated)).toHaveLength(1);
    await tape.append(messages('more'));
    const { entries, ...repeated } = await tape.handoff('phase', options);
    expect(repeated).toEqual({ anchor: 3, event: 4, isRepeated: true });
    expect(entries.map(({ position, kind }) => [position, kind])).toEqual([
      [3, 'anchor'],
      [4, 'event'],
    ]);
  });

  test('of another author is another key', async () => {
    const tape = await h.runtime.tape(fresh());
    const writer = await idle();
    await h.runtime.submit('grant_box', { box_id: tape.boxId, grantee: writer, mode: 'append' });
    const theirs = await h.runtime.tape({ box: tape.boxId }, { as: writer });
    await tape.append(messages('mine'), { dedupKey: 'k' });
    expect(await theirs.append(messages('theirs'), { dedupKey: 'k' })).toMatchObject({
      first: 4,
      isRepeated: false,
    });
  });
});

describe('after a reset of a tape', () => {
  test('a head that was read before the reset is refused', async () => {
    const name = fresh();
    const [tape, other] = [await h.runtime.tape(name), await h.runtime.tape(name)];
    const { entries } = await tape.info();
    await other.reset();
    expect((await other.info()).entries).toBe(entries);
    await expect(tape.append(messages('late'), { expectedHead: entries })).rejects.toMatchObject({
      code: 'tape_conflict',
    });
    expect((await other.info()).entries).toBe(entries);
  });

  test('an agent that may append but not read is redirected to the next tape', async () => {
    const name = fresh();
    const tape = await h.runtime.tape(name);
    const writer = await idle();
    const theirs = await h.runtime.tape(name, { as: writer });
    await tape.reset();
    await h.runtime.submit('grant_box', { box_id: tape.boxId, grantee: writer, mode: 'append' });
    expect(await theirs.append(messages('by grant'))).toMatchObject({ first: 3 });
  });
});

describe('an event named handoff', () => {
  test.each<[string, EntryInput[]]>([
    ['with a text', [{ kind: 'event', name: 'handoff', data: 'text' }]],
    ['with null', [{ kind: 'event', name: 'handoff', data: null }]],
    ['with nothing', [{ kind: 'event', name: 'handoff' }]],
    ['without a preceding anchor', [{ kind: 'event', name: 'handoff', data: { name: 'x' } }]],
    [
      'after an anchor of another name',
      [
        { kind: 'anchor', name: 'a', state: { secret: 1 } },
        { kind: 'event', name: 'handoff', data: { name: 'b' } },
      ],
    ],
  ])('without valid handoff data is read as it was appended: %s', async (_what, entries) => {
    const tape = await h.runtime.tape(fresh());
    await tape.append(entries);
    const { name, data } = entries.at(-1) as { name: string; data?: unknown };
    expect((await tape.query().kinds('event').all()).at(-1)?.payload).toEqual({
      name,
      ...(data === undefined ? {} : { data }),
    });
  });
});

describe('a refused append', () => {
  const long = 'y'.repeat(2 ** 20);
  const message: EntryInput = { kind: 'message', content: 'x' };
  const draft = { kind: 'event', card: null, payload: { name: 'd' }, anchorName: null, meta: null } as const;
  test.each<[string, (tape: Tape) => unknown, string?]>([
    [
      'an event that begins a turn',
      (tape) =>
        tape.append([{ kind: 'event', name: 'turn.started', data: { turn_id: 't', context_box_id: 'b' } }]),
    ],
    [
      'a message that claims to be of a file',
      (tape) =>
        tape.append([{ kind: 'message', content: 'x', meta: { imported: { line: '{}', parts: 1 } } }]),
    ],
    ['nothing to append', (tape) => tape.append([])],
    ['an unknown kind', (tape) => tape.append([{ kind: 'other' } as unknown as EntryInput])],
    [
      'a message with an unknown role',
      (tape) => tape.append([{ ...message, role: 'tool' } as unknown as EntryInput]),
    ],
    ['an expected head of −1', (tape) => tape.append([message], { expectedHead: -1 })],
    ['an expected head that is not a number', (tape) => tape.append([message], { expectedHead: Number.NaN })],
    [
      'an expected head that is too large',
      (tape) => tape.append([message], { expectedHead: 2 ** 40 }),
      'tape_conflict',
    ],
    ['an empty key', (tape) => tape.append([message], { dedupKey: '' })],
    ['a key with NUL', (tape) => tape.append([message], { dedupKey: 'a\0b' })],
    ['a key that is too long', (tape) => tape.handoff('x', { dedupKey: long })],
    ['a turn id that is not valid', (tape) => tape.append([{ ...message, turnId: 'abc' as never }])],
    ['a fractional step', (tape) => tape.append([{ ...message, step: 1.5 }])],
    ['a date that is too long', (tape) => tape.append([{ kind: 'draft', createdAt: 'infinity', draft }])],
    ['meta that is too large', (tape) => tape.append([{ ...message, meta: { long } }]), 'payload_too_large'],
    [
      'an event that is too large',
      (tape) => tape.append([{ kind: 'event', name: 'e', data: long }]),
      'payload_too_large',
    ],
  ])('changes nothing: %s', async (_what, work, code = 'bad_request') => {
    const tape = await h.runtime.tape(fresh());
    await expect((async () => work(tape))()).rejects.toMatchObject({ code });
    expect((await tape.info()).entries).toBe(2);
  });

  test.each([
    ['a tape', () => h.runtime.tape('half \ud800')],
    ['a tape', () => h.runtime.tape('x'.repeat(513))],
    ['an agent', () => h.runtime.tape({ agent: 'a\0' })],
    ['a reader', () => h.runtime.tape('x', { as: 'a\0' })],
    ['a project', () => h.runtime.tape('x', { projectId: 'a\0' })],
  ])('has a name that is not valid: of %s', async (_what, open) => {
    await expect(open()).rejects.toMatchObject({ code: 'bad_request' });
  });
});
